"""The race of a run: where its placements are built, on which samples, and until when."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.run.problem_data import ProblemData
from collage_engine.trials.contender import ProfiledCover, Sample
from collage_engine.trials.placement_process import TrialModel
from collage_engine.trials.race import Race
from collage_engine.trials.runner import Module, TrialRunner, TrialSettings


def open_race(
    open_model: OpenModel,
    samples: Sequence[Sample],
    tolerance: float,
    control: RunControl,
    settings: TrialSettings,
    *,
    ends_at: float,
    modules: Mapping[tuple[object, ...], Module],
    on_answer: Callable[[Race], None] = lambda race: None,
) -> Race:
    """Open a race whose processes end with the job.

    Args:
        open_model: The model; modules lie in its folder, which is emptied after the job.
        samples: On all of them the outputs must be right; the first one is timed.
        tolerance: Bound on ``max|y-r| / max|r|`` of the outputs.
        control: Its cancel flag ends every call, and its ``keep`` flag ends the race soon.
        settings: How placements are built and run.
        ends_at: When the race is to be over, in seconds of the monotonic clock.
        modules: What was built before, by the contender's key; it is not built again.
        on_answer: Takes the race whenever there is a faster leader than before.
    """
    runner = TrialRunner(
        TrialModel.of(open_model.model),
        samples,
        tolerance,
        Path(tempfile.mkdtemp(prefix="race-", dir=open_model.folder)),
        cancelled=control.cancelled,
        settings=settings,
        modules=modules,
        faults=control.faults,
        left_s=control.left_s,
    )
    race = Race(runner, ends_at, keep=control.keep, on_answer=lambda: on_answer(race))
    return control.open(race)


def profiled_covers(race: Race, data: ProblemData) -> tuple[ProfiledCover, ...]:
    """Return the covers of known candidates that took part in the race, with their times."""
    return tuple(
        ProfiledCover(contender.cover, trial)
        for contender, trial in race.trials()
        if all(candidate.id in data.by_id for candidate in contender.cover)
    )
