"""What trials measure for each objective of a run: latency, throughput or the tail of latencies."""

from __future__ import annotations

from collage_engine.records.settings import RunSettings
from collage_engine.trials.placement_process import Deployment, RoundSettings
from collage_engine.trials.runner import TrialSettings

THROUGHPUT_ROUND = RoundSettings(seconds=0.25, warm_s=0.0)
"""A round of several instances at once; chosen: long beside the moment in which they start."""
TAIL_ROUND = RoundSettings(seconds=0.4, least_calls=20, most_calls=4000, percentile=99)
"""A round whose 99th percentile is compared; chosen: a hundred calls of up to 4 ms."""


def trial_settings(settings: RunSettings) -> TrialSettings:
    """Return how placements are built and timed on the way to the confirmation.

    One instance is timed, whatever the objective. Where several are to run at once its threads do
    not spin, as they would take the time of the others.
    """
    return TrialSettings(
        deployed=Deployment(spin=_spin(settings)), most_memory_bytes=settings.max_memory_bytes
    )


def _spin(settings: RunSettings) -> bool | None:
    """Return whether idle threads spin; None: as ``build.may_spin`` says."""
    return False if settings.objective == "throughput" and settings.streams > 1 else None


def confirming_settings(settings: RunSettings) -> TrialSettings:
    """Return how contenders are timed in the confirmation: as they are going to be deployed."""
    most = settings.max_memory_bytes
    if settings.objective == "throughput":
        deployed = Deployment(streams=max(1, settings.streams), spin=_spin(settings))
        return TrialSettings(round=THROUGHPUT_ROUND, deployed=deployed, most_memory_bytes=most)
    if settings.objective == "p99":
        return TrialSettings(round=TAIL_ROUND, most_memory_bytes=most)
    return TrialSettings(most_memory_bytes=most)
