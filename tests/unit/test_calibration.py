"""Calibration inside the model: which covers are tried, what is believed, when it ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from collage_engine.partition.candidate import candidate_id, make_candidate
from collage_engine.planning.search_problem import best_placements, make_problem
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.cost_table import CostTable, records_of, table_of
from collage_engine.records.errors import Cancelled
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.api import check, reuse, solve
from collage_engine.search.problem import Problem
from collage_engine.trials import calibration
from collage_engine.trials.calibration import (
    Calibrated,
    CalibrationInput,
    CalibrationSettings,
    Found,
    calibrate,
    ids,
)
from collage_engine.trials.contender import ProfiledCover, Trial
from collage_engine.trials.in_model_costs import InModelCosts
from tests.support.candidates import row
from tests.support.graphs import chain

Nodes = tuple[int, ...]
Work = tuple[str, Nodes]
GRAPH = chain(*["nn.relu"] * 4)
SINGLES: list[Nodes] = [(0,), (1,), (2,), (3,)]
PAIRS: list[Nodes] = [(0, 1), (1, 2), (2, 3)]


def record(name: str, nodes: Nodes, us: float) -> CandidateRecord:
    made = make_candidate(GRAPH, ToolchainInstance(toolchain=name), nodes, rule="region")
    cost = Cost(state="measured", median_us=us, low_us=0.95 * us, high_us=1.1 * us, count=5)
    return row(made, cost, key=made.id)


def identity(name: str, nodes: Nodes) -> str:
    return candidate_id(ToolchainInstance(toolchain=name), nodes)


@dataclass
class Case:
    """A model's candidates, and how covers of them are searched."""

    records: list[CandidateRecord]
    pins: tuple[Pin, ...] = ()
    settings: RunSettings = field(default_factory=RunSettings)
    logged: list[str] = field(default_factory=list)
    searches: int = 0

    @property
    def costs(self) -> CostTable:
        return table_of(self.records)

    def problem(self, costs: CostTable) -> Problem:
        return make_problem(GRAPH.record, self.records, costs, self.pins, {}, self.settings)

    def search(self, costs: CostTable) -> Found | None:
        self.searches += 1
        problem = self.problem(costs)
        searched = reuse(problem, None)
        answer = solve(problem, previous=searched)
        by_id = {record.id: record for record in self.records}
        found = best_placements(GRAPH.record, by_id, costs, problem, searched, self.settings)
        return answer, found


class Covers:
    """Covers that run: every candidate takes what it truly takes within the model."""

    def __init__(self, truth: Mapping[Work, float], between_us: float = 0.0) -> None:
        self.truth = truth
        self.between_us = between_us
        self.seen: list[frozenset[Work]] = []
        self.refused: Callable[[frozenset[Work]], bool] = lambda _: False

    def run(self, parts: frozenset[Work]) -> Trial:
        self.seen.append(parts)
        if self.refused(parts):
            return Trial(failures=("it crashed",))
        times = {identity(*part): self.truth[part] for part in parts}
        return Trial(partitions_us=times, between_us=self.between_us)


@dataclass
class Outcome:
    """A calibration's result, beside what it started from."""

    case: Case
    first: Found
    calibrated: Calibrated

    @property
    def records(self) -> list[CandidateRecord]:
        return records_of(self.case.records, self.calibrated.costs)

    @property
    def placements(self) -> list[Placement]:
        return self.calibrated.placements

    @property
    def detail(self) -> str:
        return self.calibrated.detail


def settle(
    case: Case,
    covers: Covers,
    settings: CalibrationSettings | None = None,
    seconds: float = 30.0,
    profiled: Sequence[ProfiledCover] = (),
) -> Outcome:
    """Calibrate, every trial from the table of true times."""
    found = case.search(case.costs)
    assert found is not None
    case.searches = 0
    by_id = {record.id: record for record in case.records}

    def run(cover: tuple[str, ...]) -> Trial:
        return covers.run(frozenset((by_id[c].instance.id, by_id[c].nodes) for c in cover))

    given = CalibrationInput(
        graph=GRAPH,
        candidates=case.records,
        costs=case.costs,
        found=found,
        search=case.search,
        problem=case.problem,
        run=run,
        seconds=seconds,
        profiled=profiled,
        log=case.logged.append,
    )

    return Outcome(case, found, calibrate(given, settings))


def rows_of(alone: Mapping[Work, float]) -> list[CandidateRecord]:
    return [record(name, nodes, us) for (name, nodes), us in alone.items()]


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


def cover_of(placement: Placement) -> set[Work]:
    return {(part.toolchain, part.nodes) for part in placement.partitions}


ALONE: dict[Work, float] = {("lib", one): 1.0 for one in SINGLES} | {
    ("tvm", two): 3.0 for two in PAIRS
}


def test_what_was_seen_replaces_what_it_took_alone() -> None:
    truth = {key: 6.0 if key[0] == "lib" else 3.25 for key in ALONE}
    case = Case(rows_of(ALONE))
    found = settle(case, Covers(truth, between_us=0.5))
    assert cover_of(found.first[1][0]) == {("lib", one) for one in SINGLES}
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert found.placements[0].estimated_us == pytest.approx(6.5)
    for one in found.records:
        if one.nodes != (1, 2):
            assert one.cost.in_place == "seen" and one.cost.alone_us is not None
            assert one.cost.median_us == pytest.approx(truth[one.instance.id, one.nodes])
            assert one.cost.isolated().median_us == pytest.approx(ALONE[one.instance.id, one.nodes])
        else:
            assert one.cost.in_place == "predicted"
    # What is between partitions is part of what a cover takes, and of no partition's cost.
    assert found.calibrated.best_us == pytest.approx(7.0)
    assert found.detail.startswith("2 placements run, 6 candidates measured there; ")
    assert "7.00 µs" in found.detail


@pytest.mark.parametrize("seed", range(12))
def test_what_is_predicted_too_low_is_tried_and_found_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is predicted to take more than alone, and all does: so the cover that truly takes
    least is reached, one disappointment after the other."""
    monkeypatch.setattr(calibration, "fit", lambda _: InModelCosts())
    draw = random.Random(seed)
    every = [*SINGLES, *PAIRS, (0, 1, 2), (1, 2, 3)]
    alone: dict[Work, float] = {
        (name, nodes): draw.uniform(1, 2) * len(nodes) for name in ("lib", "tvm") for nodes in every
    }
    truth = {key: us * draw.uniform(1, 3) for key, us in alone.items()}
    covers = Covers(truth)
    found = settle(Case(rows_of(alone)), covers, CalibrationSettings(turns=500))
    best = min(sum(truth[one] for one in cover) for cover in every_cover(alone))
    assert found.placements[0].estimated_us == pytest.approx(best)
    assert sum(truth[one] for one in cover_of(found.placements[0])) == pytest.approx(best)
    assert len(covers.seen) == len(set(covers.seen))


def profiled_before(case: Case, covers: Covers, parts: Iterable[Work]) -> ProfiledCover:
    """What is known of a cover that was profiled when mixes were tried."""
    works = frozenset(parts)
    candidates = [one for one in case.records if (one.instance.id, one.nodes) in works]
    return ProfiledCover(tuple(candidates), covers.run(works))


def test_what_was_profiled_before_corrects_costs_where_no_time_is_left() -> None:
    truth = {key: 6.0 if key[0] == "lib" else 3.25 for key in ALONE}
    case, covers = Case(rows_of(ALONE)), Covers(truth)
    known = profiled_before(case, covers, [("lib", one) for one in SINGLES])
    found = settle(case, covers, seconds=0.0, profiled=[known])
    assert len(covers.seen) == 1  # nothing was run but what had been before
    assert cover_of(found.first[1][0]) == {("lib", one) for one in SINGLES}
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    sources = {one.instance.id: one.cost.in_place for one in found.records}
    assert sources == {"lib": "seen", "tvm": "predicted"}


def test_times_of_unmeasured_candidates_correct_nothing() -> None:
    rows = rows_of(ALONE)
    case, covers = Case(rows), Covers({key: 9.0 for key in ALONE})
    known = profiled_before(case, covers, [("lib", one) for one in SINGLES])
    unmeasured = [
        msgspec.structs.replace(one, cost=Cost()) if one.instance.id == "lib" else one
        for one in rows
    ]
    found = settle(Case(unmeasured), covers, seconds=0.0, profiled=[known])
    assert (found.calibrated.answer, found.placements) == found.first
    assert not any(one.cost.in_place for one in found.records)


def test_nothing_changes_where_no_cover_can_be_tried() -> None:
    case = Case(rows_of(ALONE))
    before = list(case.records)
    covers = Covers(ALONE)
    covers.refused = lambda _: True
    found = settle(case, covers)
    assert (found.calibrated.answer, found.placements) == found.first
    assert found.records == before and "no placement could be run" in found.detail
    assert case.logged == ["a placement could not be run: it crashed"] * 2


def test_where_the_proposal_cannot_be_run_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration, "fit", lambda _: InModelCosts())
    one, other = ("lib", PAIRS[0]), ("lib", PAIRS[2])
    pairs = {one, other}
    alone = ALONE | {one: 2.4, other: 2.5}
    truth = {key: 4.0 if len(key[1]) == 1 else 9.0 for key in alone} | {one: 7.5, other: 2.5}
    covers = Covers(truth)
    covers.refused = pairs.issuperset
    case = Case(rows_of(alone))
    found = settle(case, covers)
    assert frozenset(pairs) in covers.seen
    run = [parts for parts in covers.seen if not covers.refused(parts)]
    # The second best in its place; and when the same is proposed again, what is next then.
    single = [("lib", nodes) for nodes in SINGLES]
    assert {one, *single[2:]} in run and {*single[:2], other} in run
    assert len(case.logged) == 1
    assert found.detail.startswith(f"{len(run)} placements run")
    # The best of those that ran is confirmed beside the search's own.
    assert any(
        cover_of(p) == min(run, key=lambda c: sum(truth[k] for k in c)) for p in found.placements
    )


class TooWide(Case):
    """Only the first search finds a cover."""

    def search(self, costs: CostTable) -> Found | None:
        found = super().search(costs)
        return None if costs.in_model else found


def test_a_search_that_finds_nothing_later_leaves_what_was_found() -> None:
    case = TooWide(rows_of(ALONE))
    before = list(case.records)
    truth = {key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()}
    found = settle(case, Covers(truth))
    assert case.searches == 1 and found.records == before
    assert found.placements[0] == found.first[1][0]
    # The cover that ran fastest is known all the same.
    assert cover_of(found.placements[-1]) == {("tvm", (0, 1)), ("tvm", (2, 3))}


def test_cancelling_ends_it_before_the_next_cover() -> None:
    class Stopped(Covers):
        def run(self, parts: frozenset[Work]) -> Trial:
            super().run(parts)
            raise Cancelled("stopped by the user")

    case = Case(rows_of(ALONE))
    covers = Stopped(ALONE)
    with pytest.raises(Cancelled):
        settle(case, covers)
    assert len(covers.seen) == 1


def checked(case: Case, covers: Covers) -> Sequence[set[str]]:
    """Candidates of every cover that was tried, each a cover under the pins."""
    by_work = {(one.instance.id, one.nodes): one.id for one in case.records}
    found = []
    for parts in covers.seen:
        cover = [by_work[part] for part in sorted(parts, key=lambda p: p[1])]
        assert isinstance(check(case.problem(case.costs), cover), float)
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
def test_only_covers_under_the_pins_are_tried(pin: Pin) -> None:
    alone = ALONE | {("tvm", one): 2.0 for one in SINGLES} | {("lib", (0, 1, 2, 3)): 30.0}
    case = Case(rows_of(alone), pins=(pin,))
    covers = Covers({key: us * 1.5 for key, us in alone.items()})
    found = settle(case, covers)
    assert checked(case, covers)
    for placement in found.placements:
        assert isinstance(check(case.problem(case.costs), ids(placement)), float)


def test_no_trial_begins_after_the_time_is_up() -> None:
    class Slow(Covers):
        def run(self, parts: frozenset[Work]) -> Trial:
            time.sleep(0.6)
            return super().run(parts)

    covers = Slow({key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()})
    found = settle(Case(rows_of(ALONE)), covers, seconds=0.5)
    assert covers.seen == [frozenset(("lib", one) for one in SINGLES)]
    # One trial is always had, and the search knows it.
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert all(one.cost.in_place for one in found.records)
