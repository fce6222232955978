"""What a record from a file must keep to before anything is computed with it.

Decoding makes sure of types; these functions make sure of values. Each returns a sentence about
the first fault that it finds, or None.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from collage_engine.records.candidate import Candidate
from collage_engine.records.cost import Cost
from collage_engine.records.pin import Pin

LONGEST_US = 1e12
"""Microseconds above which no time of a call is believed, 11 days; chosen."""
LARGEST_INTEGER = 2**63 - 1
"""Largest integer that SQLite keeps ("Datatypes in SQLite", section 2)."""


def cost_fault(cost: Cost) -> str | None:
    """Return why a cost cannot be used; None: it can."""
    if not _is_count(cost.count):
        return "it counts something with a number that is negative or larger than 2^63"
    if cost.max_rel_error is not None and cost.max_rel_error < 0:
        return "its relative error is negative"
    if cost.state == "invalid" and not cost.reason:
        return "it is invalid without a reason"
    times = (cost.low_us, cost.high_us, cost.alone_us)
    if cost.state == "measured" and cost.median_us is None:
        return "it is measured without a time"
    if cost.median_us is not None and not 0 < cost.median_us < LONGEST_US:
        return f"{cost.median_us!r} µs is no time that a call can take"
    return times_fault(times)


def pin_fault(pin: Pin, operators: int) -> str | None:
    """Return why a pin does not fit a graph of so many operators; None: it does."""
    wrong = nodes_fault(pin.nodes, operators)
    if wrong:
        return wrong
    if pin.kind in ("on", "never") and not pin.toolchain:
        return f"a pin of kind {pin.kind!r} names no toolchain"
    if pin.kind == "device" and not pin.device:
        return "a pin of kind 'device' names no device"
    return None


def nodes_fault(nodes: Collection[int], operators: int) -> str | None:
    """Return why a set of operator numbers does not fit a graph; None: it does."""
    if not nodes:
        return "it is on no node"
    outside = next((n for n in nodes if not 0 <= n < operators), None)
    if outside is not None:
        return f"it is on node {outside}, and operators are 0…{operators - 1}"
    if len(set(nodes)) < len(nodes):
        return "it names a node twice"
    return None


def candidate_fault(candidate: Candidate, operators: int) -> str | None:
    """Return why a candidate does not fit a graph of so many operators; None: it does."""
    wrong = nodes_fault(candidate.nodes, operators)
    if wrong:
        return wrong
    inside = set(candidate.nodes)
    if any(not inside.issuperset(members) for _, members in candidate.composites):
        return "one of its composites is on a node outside of it"
    values = (*candidate.takes, *candidate.gives)
    outside = next((n for n in values if not 0 <= n < operators), None)
    if outside is not None:
        return f"it has a format for the value of node {outside}, which is none"
    if not _is_count(candidate.instance.threads):
        return "its number of threads is not possible"
    return None


def times_fault(times: Iterable[float | None]) -> str | None:
    """Return why figures in microseconds cannot be shown or computed with; None: they can."""
    for us in times:
        if us is not None and not 0 <= us < LONGEST_US:
            return f"{us!r} µs is not possible"
    return None


def _is_count(number: int) -> bool:
    return 0 <= number <= LARGEST_INTEGER
