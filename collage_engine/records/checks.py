"""What a record from a file must keep to before anything is computed with it.

Decoding makes sure of types and of the ranges of numbers (``records.ranges``); these functions make
sure that values fit each other. Each returns a sentence about the first fault, or None.
"""

from __future__ import annotations

from collections.abc import Collection

from collage_engine.records.cost import Cost
from collage_engine.records.pin import Pin


def cost_fault(cost: Cost) -> str | None:
    """Return why a cost cannot be used; None: it can."""
    if cost.state == "invalid" and not cost.reason:
        return "it is invalid without a reason"
    if cost.state == "measured" and cost.median_us is None:
        return "it is measured without a time"
    return None


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
