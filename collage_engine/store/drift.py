"""How much sittings differ on this machine, learnt from what was measured in more than one.

Every time a run measures something again, in a process of its own, the store keeps how far the new
median lies beyond what the old repeats' scatter explains. What runs have found out so far is the
drift of the next one; until there is enough of it, no less than the default.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from collage_engine.records.errors import MeasureError
from collage_engine.records.versions import MEASURING_PROTOCOL
from collage_engine.search.run_to_run_drift import BUSY_DRIFT, drift_tolerance_bound, required_drift
from collage_engine.store.store import Store, StoreReader

_LOG = logging.getLogger(__name__)

KEPT = 24
"""Runs that are remembered, the latest; chosen: enough for a median, and no older than weeks."""
SITTINGS, ENOUGH = 3, 40
"""Runs, and candidates measured twice in them, from which on the default is not needed; chosen:
candidates of one run have much in common, so many of them in one run say little."""

Repeats = Sequence[float]


def learn(
    store: Store, threads: int, twice: Sequence[tuple[Repeats, Repeats]]
) -> list[list[float]]:
    """Keep what another sitting showed; all that is known then, by sitting."""
    known = recall(store, threads)
    if twice:
        known = [*known, [required_drift(ours, theirs) for ours, theirs in twice]][-KEPT:]
        try:
            store.put_constant(_name(threads), known)
        except MeasureError as error:
            _LOG.warning("the run-to-run drift is not kept: %s", error)
    return known


def recall(store: StoreReader, threads: int) -> list[list[float]]:
    """What sittings have shown on this machine, by sitting."""
    try:
        return store.constant(_name(threads)) or []
    except MeasureError as error:
        _LOG.warning("the run-to-run drift is not known: %s", error)
        return []


def enough(known: Sequence[Sequence[float]]) -> bool:
    """Whether what was learnt stands without the default."""
    return len(known) >= SITTINGS and sum(map(len, known)) >= ENOUGH


def drift(known: Sequence[Sequence[float]], default: float) -> float:
    """The share that medians of separate sittings differ by, besides their repeats' scatter.

    ``default``: until enough is known; on a busy machine (``BUSY_DRIFT``) at least that, whatever
    quieter days have shown.
    """
    every = [one for sitting in known for one in sitting]
    if not every:
        return default
    learnt = drift_tolerance_bound(every)
    quiet = default < BUSY_DRIFT
    return learnt if quiet and enough(known) else max(learnt, default)


def _name(threads: int) -> str:
    return f"drift, {threads} threads, protocol {MEASURING_PROTOCOL}"
