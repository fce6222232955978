"""The time of a run: what stages may spend, what is kept back, and what ends a part of it.

Which toolchains a run waits for where their runtimes are not compiled yet.

A run whose measuring child is lost for good goes on with what it knows, if that is a cover.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from collage_engine.candidates import catalog
from collage_engine.candidates.catalog import Probing
from collage_engine.machine.cuda import TargetChoice
from collage_engine.machine.run_control import RunControl
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import UNKNOWN, Cost
from collage_engine.records.event import Progress
from collage_engine.records.pin import Pin
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState
from collage_engine.run.stages import measure
from collage_engine.run.stages.enumerate import (
    named_toolchains,
    set_up_s,
)
from collage_engine.run.stages.measure import measure_candidates
from collage_engine.run.task import RunState, RunTask
from collage_engine.support.errors import Cancelled, MeasureError
from collage_engine.support.time_limits import LEAST_S, SHORTEST_RUN_S
from collage_engine.timing.measurer import Measuring
from collage_engine.toolchains.registry import NOT_READY
from collage_engine.trials.race import Race
from tests.support.candidates import inputs_of, row
from tests.support.graphs import chain
from tests.support.scripted_workers import Script


def test_a_part_ends_with_its_time_and_the_job_goes_on() -> None:
    control = RunControl()
    control.within(3600.0).check()
    part = control.within(0.0)
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
    control.ends_at = time.monotonic() + 2000
    control.emit(Progress(stage="measure", done=1, total=1000, left_s=90000.0))
    control.within(500).emit(Progress(stage="measure", done=1, total=1000, left_s=90000.0))
    control.within(500).emit(Progress(stage="measure", done=1, total=1000, left_s=2.0))
    whole, part, short = told
    assert whole.run_left_s == pytest.approx(2000, abs=100) and whole.left_s == whole.run_left_s
    assert part.left_s == pytest.approx(500, abs=100)
    assert part.run_left_s == pytest.approx(2000, abs=100)
    assert short.left_s == 2.0


def test_a_step_has_half_of_the_time_and_no_less_than_is_worthwhile(tmp_path: Path) -> None:
    with Script().bench(tmp_path) as bench:
        race = Race(bench, clock=lambda: 0.0)
        kept_s = 3 / 2  # a third of the time, where little is left
        race.clock.ends_at = kept_s * (LEAST_S - 1)
        assert race.clock.for_step_s == 0.0
        race.clock.ends_at = kept_s * LEAST_S
        assert race.clock.for_step_s == LEAST_S
        race.clock.ends_at = 600.0
        assert race.clock.for_step_s == race.clock.to_improve_s / 2


CPU = TargetChoice("cpu")
NAMES = ("onnxruntime", "onednn", "openvino")


@pytest.fixture
def nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No toolchain is ready in time; those that are waited for are."""

    def probe_all(
        names: Collection[str] | None = None,
        *,
        waited_for: Collection[str] = (),
        ready_by: float = math.inf,
        on_child: object = None,
        beside: bool = False,
    ) -> tuple[ToolchainState, ...]:
        return tuple(
            ToolchainState(name=name, available=True, targets=("cpu",))
            if name in waited_for or ready_by > time.monotonic()
            else ToolchainState(name=name, available=False, reason=NOT_READY, late=True)
            for name in (NAMES if names is None else names)
        )

    monkeypatch.setattr(catalog, "probe_all", probe_all)


def ready(settings: RunSettings, probing: Probing, asked: Sequence[str] = NAMES) -> list[str]:
    states = catalog._states(settings, CPU, probing)
    assert [state.name for state in states] == list(asked)
    return [state.name for state in states if state.available]


@pytest.mark.usefixtures("nothing_is_compiled")
def test_one_toolchain_is_waited_for_where_none_is_ready() -> None:
    late = Probing(ready_by=time.monotonic())
    assert ready(RunSettings(), late) == ["onnxruntime"]


@pytest.mark.usefixtures("nothing_is_compiled")
def test_toolchains_that_nobody_named_are_not_looked_for() -> None:
    late = Probing(ready_by=time.monotonic(), waited_for=frozenset({"onednn"}))
    named = RunSettings(toolchains=("openvino",))
    assert ready(named, Probing(), ["openvino"]) == ["openvino"]
    assert ready(named, late, ["onednn", "openvino"]) == ["onednn", "openvino"]


def test_toolchains_of_pins_and_own_placements_are_named() -> None:
    pins = [
        Pin(kind="on", nodes=(0,), toolchain="onnxruntime[level=basic]"),
        Pin(kind="together", nodes=(1, 2)),
    ]
    settings = RunSettings(placements=({"conv": "openblas", "relu": "tvm"},))
    assert named_toolchains(pins, settings) == {"onnxruntime", "openblas", "tvm"}


def test_small_budgets_wait_for_what_is_compiled_already() -> None:
    assert set_up_s(3.0) == set_up_s(25.0) == SHORTEST_RUN_S
    assert set_up_s(60.0) == pytest.approx(21.0) and set_up_s(600.0) > 120


ENDED = "the model could not be opened for measuring: killed by SIGKILL"
IN_TRIAL = Cost(state="measured", median_us=100.0)
ARRIVED = Cost(state="measured", median_us=7.0)


class LostMeasuring(Measuring):
    """Measures nothing: its child was killed whenever it was started."""

    def measure_batch(self, *_: object) -> NoReturn:
        raise MeasureError(ENDED)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the measuring of candidates is replaced by what it would find in an instant."""
    monkeypatch.setattr(measure, "transition_constants", lambda *_: {})


def measured(
    whole: Cost, control: RunControl
) -> tuple[SearchInputs, SearchInputs, CandidateCounts]:
    """What is known before and after of a model that nothing can be measured of.

    Two operators; what both take on one toolchain is as given, and a part of them arrives.
    """
    graph = chain("nn.relu", "nn.relu")
    wanted = (("a", (0, 1), whole), ("a", (0,), UNKNOWN), ("b", (0, 1), UNKNOWN))
    rows = []
    for name, nodes, cost in wanted:
        made = make_candidate(graph, ToolchainInstance(toolchain=name), nodes, rule="region")
        rows.append(row(made, cost, key=made.id))
    settings = RunSettings(threads=1, budget_s=600.0)
    inputs = inputs_of(graph, rows, settings=settings)
    arrived = {c.id: ARRIVED for c in inputs.candidates if c.nodes == (0,)}
    opened = SimpleNamespace(
        model=SimpleNamespace(graph=graph),
        with_stored_costs=lambda _, costs: costs.with_isolated(arrived),
    )
    nowhere = cast("Any", None)
    task = RunTask(
        open_model=cast("Any", opened),
        settings=settings,
        pins=(),
        out=None,
        run_id="run",
        previous=None,
        started_at="",
        machine_before=nowhere,
    )
    measuring = LostMeasuring(nowhere, nowhere, settings, {}, control)
    clock, standings = SimpleNamespace(for_step_s=600.0), SimpleNamespace(profiled=list)
    race: Any = SimpleNamespace(leader=object(), clock=clock, standings=standings)
    state = RunState(task, control, nowhere, inputs, nowhere)
    state.race = race
    return inputs, measure_candidates(state, measuring), measuring.counts


@pytest.mark.usefixtures("lost")
def test_with_a_cover_the_run_goes_on_and_says_so() -> None:
    control = RunControl()
    inputs, after, counts = measured(IN_TRIAL, control)
    assert (counts.distinct, counts.from_trials, counts.skipped) == (3, 1, 2)
    assert [after.costs.cost(c.id).median_us for c in inputs.candidates] == [100.0, 7.0, None]
    assert control.cut_short == ["measure"]
    assert control.warnings == [f"measuring came to an early end: {ENDED}"]


@pytest.mark.usefixtures("lost")
def test_without_one_the_run_ends_with_the_reason() -> None:
    with pytest.raises(MeasureError, match="killed by SIGKILL"):
        measured(UNKNOWN, RunControl())


def test_control_closes_what_was_opened_however_the_job_ends() -> None:
    opened = threading.Lock()
    with pytest.raises(ValueError, match="stopped"), RunControl() as control:
        control.open(opened)
        assert opened.locked()
        raise ValueError("stopped")
    assert not opened.locked()
