"""Settling on costs within the model: what is looked into, what is believed, when it ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.partition.candidate import make_candidate
from collage_engine.records.candidate import CandidateRecord, CoverPart
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable
from collage_engine.records.errors import Cancelled, InfeasibleError
from collage_engine.records.event import Log
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.problem_data import ProblemData, candidates_of
from collage_engine.run.stages import calibrate as stage
from collage_engine.run.stages.calibrate import CalibrateResult, Calibration
from collage_engine.run.stages.search import SearchResult, find_covers
from collage_engine.search.api import check
from collage_engine.trials.calibration import Looked
from collage_engine.trials.in_model_costs import InPlace
from tests.support.candidates import data_of, row
from tests.support.graphs import chain

Nodes = tuple[int, ...]
Work = tuple[str, Nodes]
GRAPH = chain(*["nn.relu"] * 4)
SINGLES: list[Nodes] = [(0,), (1,), (2,), (3,)]
PAIRS: list[Nodes] = [(0, 1), (1, 2), (2, 3)]


def record(name: str, nodes: Nodes, us: float) -> CandidateRecord:
    made = make_candidate(
        GRAPH, ToolchainInstance(toolchain=name), tuple(map(OperatorNumber, nodes)), rule="region"
    )
    repeats = tuple(us * share for share in (0.9, 0.95, 1.0, 1.1, 1.4))
    cost = Cost(
        state="measured",
        median_us=us,
        low_us=repeats[1],
        high_us=repeats[3],
        count=5,
        repeats_us=repeats,
    )
    return row(made, cost, key=made.id)


class Covers:
    """Covers that run: every candidate takes what it truly takes within the model."""

    def __init__(self, truth: Mapping[Work, float], between_us: float = 0.0) -> None:
        self.truth = truth
        self.between_us = between_us
        self.seen: list[frozenset[Work]] = []
        self.refused: Callable[[frozenset[Work]], bool] = lambda _: False

    def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
        parts = frozenset((part.instance.id, part.operators) for part in cover)
        self.seen.append(parts)
        if self.refused(parts):
            return "it crashed"
        return Looked(parts={p: self.truth[p] for p in parts}, between_us=self.between_us)


@dataclass(frozen=True)
class Outcome:
    """What the stage made of a run's data."""

    first: SearchResult
    result: CalibrateResult
    detail: str
    calibration: Calibration
    logged: list[str]

    @property
    def placements(self) -> tuple[Placement, ...]:
        return self.result.placements

    def costs(self) -> dict[Work, Cost]:
        data = self.result.data
        return {(c.instance.id, tuple(c.nodes)): data.costs.cost(c.id) for c in data.candidates}


def calibrate(
    data: ProblemData, covers: Covers, control: RunControl | None = None, **more: Any
) -> Outcome:
    logged: list[str] = []

    def emit(event: object) -> None:
        if isinstance(event, Log):
            logged.append(event.text)

    first = find_covers(data, {})
    control = control or RunControl(emit)
    calibration = Calibration(GRAPH, data, {}, covers, control, **more)
    report = StageReport("in-place", lambda _: None)
    result = calibration.run(first, report)
    return Outcome(first, result, report.detail, calibration, logged)


def data(
    alone: Mapping[Work, float],
    pins: tuple[Pin, ...] = (),
    settings: RunSettings | None = None,
) -> ProblemData:
    rows = [record(name, nodes, us) for (name, nodes), us in alone.items()]
    return data_of(GRAPH, rows, pins, settings)


def every_cover(names: Mapping[Work, float]) -> Iterator[list[Work]]:
    """Of the chain: intervals one after the other."""

    def after(at: int) -> Iterator[list[Work]]:
        if at == len(GRAPH.operators):
            yield []
        for one in names:
            if one[1][0] == at:
                for rest in after(at + len(one[1])):
                    yield [one, *rest]

    return after(0)


def cover_of(placement: Any) -> set[Work]:
    return {(part.toolchain, part.nodes) for part in placement.partitions}


ALONE: dict[Work, float] = {("lib", one): 1.0 for one in SINGLES} | {
    ("tvm", two): 3.0 for two in PAIRS
}


def test_what_was_seen_replaces_what_it_took_alone() -> None:
    truth = {key: 6.0 if key[0] == "lib" else 3.25 for key in ALONE}
    found = calibrate(data(ALONE), Covers(truth, between_us=0.5))
    assert cover_of(found.first.placements[0]) == {("lib", one) for one in SINGLES}
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert found.placements[0].estimated_us == pytest.approx(6.5)
    for work, cost in found.costs().items():
        if work[1] != (1, 2):
            assert cost.in_place == "seen" and cost.alone_us is not None
            assert cost.median_us == pytest.approx(truth[work])
            assert cost.isolated().median_us == pytest.approx(ALONE[work])
        else:
            assert cost.in_place == "predicted"
    # What is between partitions is part of what a cover takes, and of no partition's cost.
    assert found.calibration.best_us == pytest.approx(7.0)
    assert found.detail.startswith("2 covers run, 6 candidates seen there; the best took 7 µs")


@pytest.mark.parametrize("seed", range(12))
def test_what_is_predicted_too_low_is_looked_into_and_found_out(
    seed: int,
) -> None:
    """Nothing is predicted to take more than alone, and all does: so the cover that truly takes
    least is reached, one disappointment after the other."""
    draw = random.Random(seed)
    every = [*SINGLES, *PAIRS, (0, 1, 2), (1, 2, 3)]
    alone: dict[Work, float] = {
        (name, nodes): draw.uniform(1, 2) * len(nodes) for name in ("lib", "tvm") for nodes in every
    }
    truth = {key: us * draw.uniform(1, 3) for key, us in alone.items()}
    covers = Covers(truth)
    found = calibrate(data(alone), covers, fit_model=lambda _: InPlace(), turns=500)
    best = min(sum(truth[one] for one in cover) for cover in every_cover(alone))
    assert found.placements[0].estimated_us == pytest.approx(best)
    assert sum(truth[one] for one in cover_of(found.placements[0])) == pytest.approx(best)
    assert len(covers.seen) == len(set(covers.seen))


def test_a_cover_is_looked_into_once_and_a_proposal_that_was_ends_it() -> None:
    covers = Covers(ALONE)
    found = calibrate(data(ALONE), covers)
    assert len(covers.seen) == len(set(covers.seen)) == 2  # the best, and tvm's own
    assert cover_of(found.placements[0]) == {("lib", one) for one in SINGLES}


def test_nothing_changes_where_no_cover_can_be_looked_into() -> None:
    before = data(ALONE)
    covers = Covers(ALONE)
    covers.refused = lambda _: True
    found = calibrate(before, covers)
    assert found.result.answer == found.first.answer
    assert found.placements == found.first.placements
    assert found.result.data == before and "no cover could be run" in found.detail
    assert found.logged == ["a cover could not be run: it crashed"] * 2


def test_where_the_proposal_cannot_be_run_the_next_one_is_looked_into() -> None:
    one, other = ("lib", PAIRS[0]), ("lib", PAIRS[2])
    pairs = {one, other}
    alone = ALONE | {one: 2.4, other: 2.5}
    truth = {key: 4.0 if len(key[1]) == 1 else 9.0 for key in alone} | {one: 7.5, other: 2.5}
    covers = Covers(truth)
    covers.refused = pairs.issuperset
    found = calibrate(data(alone), covers, fit_model=lambda _: InPlace())
    assert frozenset(pairs) in covers.seen
    run = [parts for parts in covers.seen if not covers.refused(parts)]
    # The second best in its place; and when the same is proposed again, what is next then.
    single = [("lib", nodes) for nodes in SINGLES]
    assert {one, *single[2:]} in run and {*single[:2], other} in run
    assert len(found.calibration.failed) == 1
    assert found.detail.startswith(f"{len(run)} covers run")
    # The best of those that ran is confirmed beside the search's own.
    assert any(
        cover_of(p) == min(run, key=lambda c: sum(truth[k] for k in c)) for p in found.placements
    )


def test_after_the_last_look_the_search_knows_it() -> None:
    alone = ALONE | {("lib", (0, 1)): 4.0, ("lib", (2, 3)): 4.0}
    truth = {key: us * (9.0 if len(key[1]) == 1 else 1.0) for key, us in alone.items()}
    truth |= {("tvm", two): 20.0 for two in PAIRS}
    covers = Covers(truth)
    found = calibrate(data(alone), covers, turns=1)
    assert covers.seen[-1] == {("lib", (0, 1)), ("lib", (2, 3))}
    for work, cost in found.costs().items():
        if any(work in parts for parts in covers.seen):
            assert cost.median_us == pytest.approx(truth[work])


def test_a_search_that_finds_nothing_later_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = data(ALONE)
    asked: list[CostTable] = []
    first = find_covers(before, {})

    def find(corrected: ProblemData, not_offered: object) -> SearchResult:
        if corrected is before:
            return first
        asked.append(corrected.costs)
        raise InfeasibleError("no placement was found: too wide", {})

    monkeypatch.setattr(stage, "find_covers", find)
    truth = {key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()}
    found = calibrate(before, Covers(truth))
    assert len(asked) == 1 and found.result.data == before
    assert found.placements[0] == first.placements[0]
    # The cover that ran fastest is known all the same.
    assert cover_of(found.placements[-1]) == {("tvm", (0, 1)), ("tvm", (2, 3))}


def test_cancelling_ends_it_before_the_next_cover() -> None:
    control = RunControl()

    class Stopped(Covers):
        def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
            control.cancelled.set()
            return super().look(cover)

    covers = Stopped(ALONE)
    with pytest.raises(Cancelled):
        calibrate(data(ALONE), covers, control)
    assert len(covers.seen) == 1


def checked(given: ProblemData, covers: Covers) -> Sequence[set[str]]:
    """Candidates of every cover that was looked into, each a cover under the pins."""
    by_work = {(c.instance.id, tuple(c.nodes)): c.id for c in given.candidates}
    found = []
    for parts in covers.seen:
        cover = [by_work[part] for part in sorted(parts, key=lambda p: p[1])]
        assert isinstance(check(given.problem(), cover), float)
        found.append(set(cover))
    return found


@pytest.mark.parametrize(
    "pin",
    [
        Pin(kind="never", nodes=(0,), toolchain="lib"),
        Pin(kind="on", nodes=(1, 2), toolchain="lib"),
        Pin(kind="together", nodes=(1, 2)),
        Pin(kind="exactly", nodes=(0, 1, 2, 3)),
    ],
    ids=lambda pin: pin.kind,
)
def test_only_covers_under_the_pins_are_looked_into(pin: Pin) -> None:
    alone = ALONE | {("tvm", one): 2.0 for one in SINGLES} | {("lib", (0, 1, 2, 3)): 30.0}
    given = data(alone, pins=(pin,))
    covers = Covers({key: us * 1.5 for key, us in alone.items()})
    found = calibrate(given, covers)
    assert checked(given, covers)
    for placement in found.placements:
        cover = candidates_of(placement)
        assert isinstance(check(found.result.data.problem(), cover), float)


def test_limits_on_runtimes_are_kept() -> None:
    alone = ALONE | {("tvm", one): 2.5 for one in SINGLES}
    settings = RunSettings(allow_runtimes=("tvm",))
    given = data(alone, settings=settings)
    covers = Covers({key: us * 1.5 for key, us in alone.items()})
    found = calibrate(given, covers)
    assert checked(given, covers)
    assert {name for p in found.placements for name, _ in cover_of(p)} == {"tvm"}


def test_a_percentile_is_of_the_costs_within_the_model() -> None:
    given = data(ALONE, settings=RunSettings(percentile=80))
    truth = {key: 6.0 if key[0] == "lib" else 3.5 for key in ALONE}
    found = calibrate(given, Covers(truth))
    seen = found.costs()["tvm", (0, 1)]
    assert seen.at(80) == pytest.approx(3.5 * record("tvm", (0, 1), 1.0).cost.at(80))
    assert found.placements[0].estimated_us == pytest.approx(2 * seen.at(80))


def test_no_look_begins_after_the_time_is_up() -> None:
    later = [0.0]

    class Slow(Covers):
        def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
            later[0] += 1e4
            return super().look(cover)

    covers = Slow({key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()})
    found = calibrate(data(ALONE), covers, clock=lambda: time.monotonic() + later[0])
    assert covers.seen == [frozenset(("lib", one) for one in SINGLES)]
    # One look is always had, and the search knows it.
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert all(cost.in_place for cost in found.costs().values())
