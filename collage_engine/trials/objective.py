"""How placements are built and timed: what a round is follows from the objective of the run.

That is latency, throughput or the tail of latencies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from collage_engine.machine.device import WARM_S
from collage_engine.records.settings import RunSettings
from collage_engine.trials.trial_job import LONG_ROUND_S, PAUSE_S

TAIL = 99
"""The percentile of a round's calls that stands for it where the tail is the objective."""


@dataclass(frozen=True, kw_only=True)
class TrialSettings:
    """How placements are built, and how a round of one goes: a rest, a warm-up, then timed calls.

    Attributes:
        round_s: Seconds of timed calls, one at least; chosen: with some ten contenders, two rounds
            a second.
        warm_s: Seconds of calls before, at least one.
        rest_s: Seconds of rest before these.
        tail: Whether a round's slowest calls stand for it, so that every interruption counts.
        streams: Instances that work without a pause, in one process, each with threads and
            processors of its own; 0: single calls are timed, of one instance.
        spin: Whether idle threads spin; None: as ``build.may_spin`` says.
        most_memory_bytes: Resident memory of a running placement, from which on it cannot win; 0:
            any is allowed.
    """

    round_s: float = 0.04
    """Chosen: with some ten contenders, two rounds a second."""
    warm_s: float = WARM_S
    rest_s: float = PAUSE_S
    tail: bool = False
    streams: int = 0
    spin: bool | None = None
    most_memory_bytes: int = 0


def trial_settings(settings: RunSettings) -> TrialSettings:
    """Return how placements are built and timed on the way to the confirmation.

    One instance is timed, whatever the objective. Where several are to run at once its threads do
    not spin, as they would take the time of the others.
    """
    several = settings.objective == "throughput" and settings.streams > 1
    return TrialSettings(
        spin=False if several else None, most_memory_bytes=settings.max_memory_bytes
    )


def confirming_settings(settings: RunSettings) -> TrialSettings:
    """Return how contenders are timed in the confirmation: as they are going to be deployed."""
    plain = trial_settings(settings)
    if settings.objective == "throughput":
        return replace(plain, round_s=LONG_ROUND_S, warm_s=0.0, streams=max(1, settings.streams))
    if settings.objective == "p99":
        return replace(plain, round_s=LONG_ROUND_S, tail=True)
    return plain
