"""Timings as costs: records of what was measured, and of several measurements of the same work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage_engine.records.cost import Cost
from collage_engine.store.normalising import slowness_at
from collage_engine.timing.order_statistics import percentile
from collage_engine.timing.protocol import MOST_ROUNDS, Timing

KEPT_REPEATS = MOST_ROUNDS
"""Repeats that a cost keeps at most; chosen: enough for resampling, some 500 bytes."""


def kept_repeats(samples: Sequence[float], limit: int = KEPT_REPEATS) -> tuple[float, ...]:
    """Return at most ``limit`` samples, spread evenly over the time in which they were taken."""
    if len(samples) <= limit:
        return tuple(samples)
    step = len(samples) / limit
    return tuple(samples[int(i * step)] for i in range(limit))


def cost_of(
    timing: Timing,
    *,
    threads: int,
    fingerprint: str | None = None,
    measured_at: str | None = None,
    max_rel_error: float | None = None,
    cold_s: float | None = None,
    probe: str = "",
    reading_us: float | None = None,
    reference_us: float | None = None,
) -> Cost:
    """Return the record of a timing.

    Args:
        timing: in seconds.
        threads: of the candidate.
        fingerprint: of the machine.
        measured_at: ISO 8601, UTC.
        max_rel_error: of its outputs.
        cold_s: seconds of a call with cold weights.
        probe: name of the speed probe; empty: it was not read.
        reading_us: what it took beside the work (``store.normalising.geometric_mean_us``).
        reference_us: its reference. Times are divided by how much slower the machine was than
            at it.
    """
    slowness = slowness_at(reading_us, reference_us) if reading_us and reference_us else 1.0
    us = 1e6 / slowness
    return Cost(
        state="measured",
        median_us=timing.median * us,
        low_us=timing.low * us,
        high_us=timing.high * us,
        cold_us=None if cold_s is None else cold_s * us,
        count=len(timing.samples),
        repeats_us=tuple(s * us for s in kept_repeats(timing.samples)),
        max_rel_error=max_rel_error,
        threads=threads,
        fingerprint=fingerprint,
        measured_at=measured_at,
        slowness=slowness,
        probe=probe,
        probe_us=reference_us,
        reading_us=reading_us,
    )


def merged(old: Cost, new: Cost) -> Cost:
    """Return two measurements of the same work as one cost.

    Its repeats are those of both, and its other facts are the newer one's. Each gives half of the
    repeats that are kept at most, however many samples it has: while one measurement lasts, the
    machine's state is one and the same, and many samples of it say little more than these.

    Args:
        old: The earlier measurement.
        new: The later one, which is returned where one of the two has no times.
    """
    if not (old.usable and new.usable and old.repeats_us and new.repeats_us):
        return new
    half = KEPT_REPEATS // 2
    repeats = kept_repeats(old.repeats_us, half) + kept_repeats(new.repeats_us, half)
    return Cost(
        state="measured",
        median_us=percentile(repeats, 50),
        low_us=percentile(repeats, 20),
        high_us=percentile(repeats, 80),
        cold_us=new.cold_us if new.cold_us is not None else old.cold_us,
        count=old.count + new.count,
        repeats_us=repeats,
        max_rel_error=new.max_rel_error,
        threads=new.threads,
        fingerprint=new.fingerprint,
        measured_at=new.measured_at,
        slowness=new.slowness,
        probe=new.probe,
        probe_us=new.probe_us,
        reading_us=new.reading_us,
    )


def repeats_apart(old: Cost, both: Cost) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the repeats of a cost, and those of the later measurement that was merged with it.

    Args:
        old: The cost before.
        both: The cost now.

    Returns:
        The repeats of both, in microseconds; None where no measurement was merged with the cost.
    """
    first = kept_repeats(old.repeats_us, KEPT_REPEATS // 2)
    kept = both.repeats_us[: len(first)]
    # What came from the store was multiplied by a slowness and divided by it again.
    same = len(kept) == len(first) and all(map(math.isclose, kept, first))
    if both.count <= old.count or not same:
        return None
    second = both.repeats_us[len(first) :]
    return (old.repeats_us, second) if second else None
