"""A run whose measuring child is lost for good goes on with what it knows, if that is a cover."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from collage_engine.control.budget import RunBudget
from collage_engine.control.run_control import RunControl
from collage_engine.drawing.figures import measured_share
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import Cancelled, MeasureError
from collage_engine.records.placement import CandidateCounts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.problem_data import ProblemData
from collage_engine.run.stages import measure
from collage_engine.run.stages.measure import measure_candidates
from collage_engine.run.task import RunTask
from collage_engine.store.store import Store
from collage_engine.timing.candidate_timing import Measuring
from tests.support.candidates import data_of, row
from tests.support.graphs import chain

ENDED = "the model could not be opened for measuring: killed by SIGKILL"
IN_TRIAL = Cost(state="measured", median_us=100.0)
ARRIVED = Cost(state="measured", median_us=7.0)


class LostMeasuring(Measuring):
    """Measures nothing: its child was killed whenever it was started."""

    def add(self, *_: object) -> CostTable:
        raise MeasureError(ENDED)


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the measuring of candidates is replaced by what it would find in an instant."""
    monkeypatch.setattr(measure, "busy", lambda: None)
    monkeypatch.setattr(measure, "transition_constants", lambda *_: {})
    monkeypatch.setattr(measure, "make_ready", lambda *_: None)


def measured(
    store: Path, whole: Cost, control: RunControl
) -> tuple[ProblemData, ProblemData, CandidateCounts]:
    """What is known before and after of a model that nothing can be measured of.

    Two operators; what both take in one partition is as given, and of the parts one arrives.
    """
    graph = chain("nn.relu", "nn.relu")
    costs = {(0, 1): whole, (0,): UNKNOWN, (1,): UNKNOWN}
    rows = [
        row(made, cost, key=made.id)
        for nodes, cost in costs.items()
        for made in [make_candidate(graph, ToolchainInstance(toolchain="a"), nodes, rule="region")]
    ]
    settings = RunSettings(threads=1, measure="all", budget_s=600.0)
    data = data_of(graph, rows, settings=settings)
    arrived = {c.id: ARRIVED for c in data.candidates if c.nodes == (0,)}
    opened = SimpleNamespace(
        store=Store(store), with_stored_costs=lambda _, costs: costs.with_isolated(arrived)
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
    measuring = LostMeasuring(cast("Any", opened), nowhere, settings, {}, control)
    budget = RunBudget.of(settings)
    after = measure_candidates(task, nowhere, data, measuring, (), budget, control)
    return data, after, measuring.counts


@pytest.mark.usefixtures("lost")
def test_with_a_cover_the_run_goes_on_and_says_so(tmp_path: Path) -> None:
    control = RunControl()
    data, after, counts = measured(tmp_path / "store.sqlite", IN_TRIAL, control)
    assert (counts.distinct, counts.skipped, counts.from_trials) == (3, 1, 2)
    assert [after.costs.cost(c.id).median_us for c in data.candidates] == [100.0, 7.0, None]
    assert control.cut_short == ["measure"]
    assert control.warnings == [f"measuring came to an early end: {ENDED}"]


@pytest.mark.usefixtures("lost")
def test_without_one_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(MeasureError, match="killed by SIGKILL"):
        measured(tmp_path / "store.sqlite", UNKNOWN, RunControl())


@pytest.mark.usefixtures("lost")
def test_all_are_counted_where_the_time_ends_before_the_turn_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_: object) -> None:
        raise Cancelled("the time is over")

    monkeypatch.setattr(measure, "make_ready", end)
    _, _, counts = measured(tmp_path / "store.sqlite", IN_TRIAL, RunControl())
    assert (counts.distinct, counts.skipped, counts.from_trials) == (3, 1, 2)


def test_a_lone_whole_model_that_a_trial_timed_is_not_counted_as_stored() -> None:
    """With one candidate nothing is measured; its cost is the trial's, or that of the store."""
    graph = chain("nn.relu", "nn.relu")
    nowhere = cast("Any", None)
    for stored in (False, True):
        cost = msgspec.structs.replace(IN_TRIAL, from_store=stored)
        made = make_candidate(graph, ToolchainInstance(toolchain="a"), (0, 1), rule="region")
        data = data_of(graph, [row(made, cost, key=made.id)])
        measuring = Measuring(nowhere, nowhere, RunSettings(), {}, RunControl())
        measuring.add(data.candidates, data.costs, None)
        counts = measuring.counts
        assert (counts.distinct, counts.from_trials, counts.from_store) == (
            1,
            0 if stored else 1,
            1 if stored else 0,
        )
        assert measured_share(counts) == 1.0
