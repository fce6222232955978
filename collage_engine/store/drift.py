"""The run-to-run drift of this machine, learnt from work that was measured more than once.

Every time a run measures something again, in another process, the store keeps how far the new
median lies beyond what the scatter of the repeats explains. Later runs take the drift from there;
until enough is known, it is not less than the default.
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
ENOUGH_RUNS, ENOUGH_CANDIDATES = 3, 40
"""Runs, and candidates measured twice in them, from which on the default is not needed; chosen:
candidates of one run have much in common, so many of them in one run say little."""

Repeats = Sequence[float]


def learn(
    store: Store, threads: int, twice: Sequence[tuple[Repeats, Repeats]]
) -> list[list[float]]:
    """Keep what measuring again showed.

    Args:
        store: Where it is kept; a store that fails keeps nothing.
        threads: Threads of the run.
        twice: Repeats in µs of the same work, of an earlier time and of now.

    Returns:
        The drifts known now, relative, one list for each run that measured something again.
    """
    known = recall(store, threads)
    if twice:
        known = [*known, [required_drift(ours, theirs) for ours, theirs in twice]][-KEPT:]
        try:
            store.put_constant(_name(threads), known)
        except MeasureError as error:
            _LOG.warning("the run-to-run drift is not kept: %s", error)
    return known


def recall(store: StoreReader, threads: int) -> list[list[float]]:
    """Return the drifts known on this machine, relative, one list for each run that learnt some."""
    try:
        return store.constant(_name(threads)) or []
    except MeasureError as error:
        _LOG.warning("the run-to-run drift is not known: %s", error)
        return []


def enough(known: Sequence[Sequence[float]]) -> bool:
    """Return whether what was learnt stands without the default."""
    return len(known) >= ENOUGH_RUNS and sum(map(len, known)) >= ENOUGH_CANDIDATES


def drift(known: Sequence[Sequence[float]], default: float) -> float:
    """Return how far medians of separate runs lie apart, beyond the scatter of their repeats.

    It is a share of the median.

    Args:
        known: What ``recall`` gives.
        default: The drift until enough is known. On a busy machine (``BUSY_DRIFT``) the drift is
            at least this, whatever quieter days have shown.
    """
    every = [share for run in known for share in run]
    if not every:
        return default
    learnt = drift_tolerance_bound(every)
    quiet = default < BUSY_DRIFT
    return learnt if quiet and enough(known) else max(learnt, default)


def _name(threads: int) -> str:
    return f"drift, {threads} threads, protocol {MEASURING_PROTOCOL}"
