"""Settling on costs within the model: what is looked into, what is believed, when it ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.control.progress import StageReport
from collage_engine.control.run_control import RunControl
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.problem import make_problem
from collage_engine.records.candidate import CandidateRecord, CoverPart
from collage_engine.records.cost import Cost
from collage_engine.records.errors import Cancelled, InfeasibleError
from collage_engine.records.event import Log
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stages import calibrate as stage_in_place
from collage_engine.run.stages.calibrate import _Settling, ids
from collage_engine.run.stages.search import find_covers
from collage_engine.search.api import check
from collage_engine.search.problem import Problem
from collage_engine.trials.calibration import Looked
from collage_engine.trials.in_model_costs import InPlace
from tests.support.graphs import chain

Nodes = tuple[int, ...]
Work = tuple[str, Nodes]
GRAPH = chain(*["nn.relu"] * 4)
SINGLES: list[Nodes] = [(0,), (1,), (2,), (3,)]
PAIRS: list[Nodes] = [(0, 1), (1, 2), (2, 3)]


def record(name: str, nodes: Nodes, us: float) -> CandidateRecord:
    made = make_candidate(GRAPH, ToolchainInstance(toolchain=name), nodes, rule="region")
    repeats = tuple(us * share for share in (0.9, 0.95, 1.0, 1.1, 1.4))
    cost = Cost(
        state="measured",
        median_us=us,
        low_us=repeats[1],
        high_us=repeats[3],
        count=5,
        repeats_us=repeats,
    )
    return CandidateRecord(
        **{f: getattr(made, f) for f in made.__struct_fields__ if f not in ("cost", "key")},
        cost=cost,
        key=made.id,
    )


@dataclass
class State:
    """What ``_Settling`` and the search read of a run, without a model's file."""

    records: list[CandidateRecord]
    pins: tuple[Pin, ...] = ()
    settings: RunSettings = field(default_factory=RunSettings)
    said: list[str] = field(default_factory=list)
    control: RunControl = field(init=False)

    graph = GRAPH.record
    model = SimpleNamespace(graph=GRAPH)

    def __post_init__(self) -> None:
        def emit(event: Any) -> None:
            if isinstance(event, Log):
                self.said.append(event.text)

        self.control = RunControl(emit)

    def by_id(self) -> dict[str, CandidateRecord]:
        return {one.id: one for one in self.records}

    def problem(self) -> Problem:
        return make_problem(GRAPH.record, self.records, self.pins, {}, self.settings)

    def doubt(self, *_: object) -> Any:
        return SimpleNamespace(probability={})


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


def settle(state: State, covers: Covers) -> Any:
    run: Any = state
    told: Any = covers
    found = find_covers(run, None)  # type: ignore[arg-type]
    settling = _Settling(run, None, told)  # type: ignore[arg-type]
    report = StageReport("in-place", lambda _: None)
    answer, placements = settling.go(found, report)
    return SimpleNamespace(
        first=found, answer=answer, placements=placements, detail=report.detail, settling=settling
    )


def offers(alone: Mapping[Work, float]) -> list[CandidateRecord]:
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


def cover_of(placement: Any) -> set[Work]:
    return {(part.toolchain, part.nodes) for part in placement.partitions}


ALONE: dict[Work, float] = {("lib", one): 1.0 for one in SINGLES} | {
    ("tvm", two): 3.0 for two in PAIRS
}


def test_what_was_seen_replaces_what_it_took_alone() -> None:
    truth = {key: 6.0 if key[0] == "lib" else 3.25 for key in ALONE}
    state = State(offers(ALONE))
    found = settle(state, Covers(truth, between_us=0.5))
    assert cover_of(found.first[1][0]) == {("lib", one) for one in SINGLES}
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert found.placements[0].estimated_us == pytest.approx(6.5)
    for one in state.records:
        if one.nodes != (1, 2):
            assert one.cost.in_place == "seen" and one.cost.alone_us is not None
            assert one.cost.median_us == pytest.approx(truth[one.instance.id, one.nodes])
            assert one.cost.isolated().median_us == pytest.approx(ALONE[one.instance.id, one.nodes])
        else:
            assert one.cost.in_place == "predicted"
    # What is between partitions is part of what a cover takes, and of no partition's cost.
    assert found.settling.whole_us == pytest.approx(7.0)
    assert found.detail.startswith("2 covers run, 6 candidates seen there; the best took 7 µs")


@pytest.mark.parametrize("seed", range(12))
def test_what_is_predicted_too_low_is_looked_into_and_found_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is predicted to take more than alone, and all does: so the cover that truly takes
    least is reached, one disappointment after the other."""
    monkeypatch.setattr(stage_in_place, "fit", lambda _: InPlace())
    monkeypatch.setattr(stage_in_place, "TURNS", 500)
    draw = random.Random(seed)
    every = [*SINGLES, *PAIRS, (0, 1, 2), (1, 2, 3)]
    alone: dict[Work, float] = {
        (name, nodes): draw.uniform(1, 2) * len(nodes) for name in ("lib", "tvm") for nodes in every
    }
    truth = {key: us * draw.uniform(1, 3) for key, us in alone.items()}
    covers = Covers(truth)
    found = settle(State(offers(alone)), covers)
    best = min(sum(truth[one] for one in cover) for cover in every_cover(alone))
    assert found.placements[0].estimated_us == pytest.approx(best)
    assert sum(truth[one] for one in cover_of(found.placements[0])) == pytest.approx(best)
    assert len(covers.seen) == len(set(covers.seen))


def test_a_cover_is_looked_into_once_and_a_proposal_that_was_ends_it() -> None:
    covers = Covers(ALONE)
    found = settle(State(offers(ALONE)), covers)
    assert len(covers.seen) == len(set(covers.seen)) == 2  # the best, and tvm's own
    assert cover_of(found.placements[0]) == {("lib", one) for one in SINGLES}


def test_nothing_changes_where_no_cover_can_be_looked_into() -> None:
    state = State(offers(ALONE))
    before = list(state.records)
    covers = Covers(ALONE)
    covers.refused = lambda _: True
    found = settle(state, covers)
    assert (found.answer, found.placements) == found.first
    assert state.records == before and "no cover could be looked into" in found.detail
    assert state.said == ["a cover could not be looked into: it crashed"] * 2


def test_where_the_proposal_cannot_be_run_the_next_one_is_looked_into(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stage_in_place, "fit", lambda _: InPlace())
    one, other = ("lib", PAIRS[0]), ("lib", PAIRS[2])
    pairs = {one, other}
    alone = ALONE | {one: 2.4, other: 2.5}
    truth = {key: 4.0 if len(key[1]) == 1 else 9.0 for key in alone} | {one: 7.5, other: 2.5}
    covers = Covers(truth)
    covers.refused = pairs.issuperset
    found = settle(State(offers(alone)), covers)
    assert frozenset(pairs) in covers.seen
    run = [parts for parts in covers.seen if not covers.refused(parts)]
    # The second best in its place; and when the same is proposed again, what is next then.
    single = [("lib", nodes) for nodes in SINGLES]
    assert {one, *single[2:]} in run and {*single[:2], other} in run
    assert len(found.settling.failed) == 1
    assert found.detail.startswith(f"{len(run)} covers run")
    # The best of those that ran is confirmed beside the search's own.
    assert any(
        cover_of(p) == min(run, key=lambda c: sum(truth[k] for k in c)) for p in found.placements
    )


def test_after_the_last_look_the_search_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_in_place, "TURNS", 1)
    alone = ALONE | {("lib", (0, 1)): 4.0, ("lib", (2, 3)): 4.0}
    truth = {key: us * (9.0 if len(key[1]) == 1 else 1.0) for key, us in alone.items()}
    truth |= {("tvm", two): 20.0 for two in PAIRS}
    state = State(offers(alone))
    covers = Covers(truth)
    settle(state, covers)
    assert covers.seen[-1] == {("lib", (0, 1)), ("lib", (2, 3))}
    for one in state.records:
        if any((one.instance.id, one.nodes) in parts for parts in covers.seen):
            assert one.cost.median_us == pytest.approx(truth[one.instance.id, one.nodes])


def test_a_search_that_finds_nothing_later_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = State(offers(ALONE))
    before = list(state.records)
    asked = [0]

    def find(*_: object) -> Any:
        asked[0] += 1
        raise InfeasibleError("no placement was found: too wide", {})

    monkeypatch.setattr(stage_in_place, "find_covers", find)
    truth = {key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()}
    found = settle(state, Covers(truth))
    assert asked == [1] and state.records == before
    assert found.placements[0] == found.first[1][0]
    # The cover that ran fastest is known all the same.
    assert cover_of(found.placements[-1]) == {("tvm", (0, 1)), ("tvm", (2, 3))}


def test_cancelling_ends_it_before_the_next_cover() -> None:
    class Stopped(Covers):
        def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
            state.control.cancelled.set()
            return super().look(cover)

    state = State(offers(ALONE))
    covers = Stopped(ALONE)
    with pytest.raises(Cancelled):
        settle(state, covers)
    assert len(covers.seen) == 1


def checked(state: State, covers: Covers) -> Sequence[set[str]]:
    """Candidates of every cover that was looked into, each a cover under the pins."""
    by_work = {(one.instance.id, one.nodes): one.id for one in state.records}
    found = []
    for parts in covers.seen:
        cover = [by_work[part] for part in sorted(parts, key=lambda p: p[1])]
        assert isinstance(check(state.problem(), cover), float)
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
    state = State(offers(alone), pins=(pin,))
    covers = Covers({key: us * 1.5 for key, us in alone.items()})
    found = settle(state, covers)
    assert checked(state, covers)
    for placement in found.placements:
        assert isinstance(check(state.problem(), ids(placement)), float)


def test_limits_on_runtimes_are_kept() -> None:
    alone = ALONE | {("tvm", one): 2.5 for one in SINGLES}
    settings = RunSettings(allow_runtimes=("tvm",))
    state = State(offers(alone), settings=settings)
    covers = Covers({key: us * 1.5 for key, us in alone.items()})
    found = settle(state, covers)
    assert checked(state, covers)
    assert {name for p in found.placements for name, _ in cover_of(p)} == {"tvm"}


def test_a_percentile_is_of_the_costs_within_the_model() -> None:
    state = State(offers(ALONE), settings=RunSettings(percentile=80))
    truth = {key: 6.0 if key[0] == "lib" else 3.5 for key in ALONE}
    found = settle(state, Covers(truth))
    seen = next(one.cost for one in state.records if one.nodes == (0, 1))
    assert seen.at(80) == pytest.approx(3.5 * record("tvm", (0, 1), 1.0).cost.at(80))
    assert found.placements[0].estimated_us == pytest.approx(2 * seen.at(80))


def test_no_look_begins_after_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0])
    monkeypatch.setattr(stage_in_place, "time", clock)

    class Slow(Covers):
        def look(self, cover: tuple[CoverPart, ...]) -> Looked | str:
            later[0] += 1e4
            return super().look(cover)

    covers = Slow({key: us * (9.0 if key[0] == "lib" else 1.0) for key, us in ALONE.items()})
    state = State(offers(ALONE))
    found = settle(state, covers)
    assert covers.seen == [frozenset(("lib", one) for one in SINGLES)]
    # One look is always had, and the search knows it.
    assert cover_of(found.placements[0]) == {("tvm", (0, 1)), ("tvm", (2, 3))}
    assert all(one.cost.in_place for one in state.records)
