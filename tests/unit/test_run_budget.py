"""The time of a run: what stages may spend, what is kept back, and what ends a part of it."""

from __future__ import annotations

import threading
import time

import pytest

from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import Cancelled
from collage_engine.records.event import Progress
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.calibrate import WORTH_CALIBRATING_S
from collage_engine.run.stages.measure import MEASURING_SHARE, measuring_s


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def budget(clock: Clock, seconds: float = 120.0, **more: float) -> RunBudget:
    return RunBudget.of(RunSettings(budget_s=seconds, **more), clock=clock)


def test_a_run_counts_from_its_start_to_its_artifact(clock: Clock) -> None:
    run = budget(clock)
    clock.now += 30
    assert (run.left_s, run.to_improve_s) == (90, 90)
    clock.now += 100
    assert (run.left_s, run.to_improve_s) == (0, 0)


def test_what_was_spent_on_opening_the_model_is_the_runs(clock: Clock) -> None:
    settings = RunSettings(budget_s=60)
    assert RunBudget.of(settings, spent_s=8.0, clock=clock).left_s == 52


def test_the_end_of_a_run_is_kept_back_from_what_improves_it(clock: Clock) -> None:
    run = budget(clock).keeping_back(confirming_s=25, exporting_s=5)
    assert run.to_improve_s == 90
    clock.now += 100
    assert run.to_improve_s == 0, "measuring ends"


def test_time_for_tuning_is_added_and_left_alone_by_others(clock: Clock) -> None:
    run = budget(clock, 60, tune_budget_s=40)
    assert (run.left_s, run.to_improve_s) == (100, 60)
    assert run.given(30) == 30
    clock.now += 85
    assert run.to_improve_s == 0
    assert run.given(30) == 15, "what is not there cannot be given"


def test_a_part_ends_with_its_time_and_the_job_goes_on() -> None:
    control = RunControl()
    part = control.within(0.05)
    part.check()
    time.sleep(0.06)
    with pytest.raises(Cancelled):
        part.check()
    control.check()
    control.cut("measure")
    assert control.cut_short == part.cut_short == ["measure"]


def test_a_part_ends_when_the_user_keeps_the_best_and_when_he_cancels() -> None:
    cancelled, keep = threading.Event(), threading.Event()
    control = RunControl(None, cancelled, keep)
    part = control.within(60)
    keep.set()
    assert part.cancelled.is_set() and not control.cancelled.is_set()
    cancelled.set()
    with pytest.raises(Cancelled):
        control.cut("calibrate")  # a cancel is no early end of one stage


def test_the_time_left_that_is_shown_obeys_the_budget() -> None:
    told: list[Progress] = []
    control = RunControl(told.append)  # type: ignore[arg-type]
    control.ends_at = time.monotonic() + 20
    control.emit(Progress(stage="measure", done=1, total=1000, left_s=900.0))
    control.within(5).emit(Progress(stage="measure", done=1, total=1000, left_s=900.0))
    control.within(5).emit(Progress(stage="measure", done=1, total=1000, left_s=2.0))
    whole, part, short = told
    assert whole.run_left_s == pytest.approx(20, abs=1) and whole.left_s == whole.run_left_s
    assert part.left_s == pytest.approx(5, abs=1) and part.run_left_s == pytest.approx(20, abs=1)
    assert short.left_s == 2.0


def test_measuring_takes_what_calibration_could_not_use() -> None:
    assert measuring_s(15.0) == 15.0
    assert measuring_s(22.0) == 22.0 - WORTH_CALIBRATING_S
    assert measuring_s(100.0) == pytest.approx(100.0 * MEASURING_SHARE)
