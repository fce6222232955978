"""Calibration inside the model: which covers are tried, what is believed, when it ends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pytest

from collage_engine.machine.run_control import RunControl
from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.search_inputs import Cover, SearchInputs, SearchResult
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.pin import Pin
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.search.check import check_cover
from collage_engine.trials import calibration
from collage_engine.trials.calibration import calibrate_costs, corrected_costs
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.in_model_costs import InModelCosts
from tests.support.candidates import inputs_of, row
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


class Covers:
    """A race in which every candidate takes what it truly takes within the model."""

    def __init__(self, truth: Mapping[Work, float], between_us: float = 0.0) -> None:
        self.truth = truth
        self.between_us = between_us
        self.known: list[ContenderResult] = []
        self.refused: Callable[[set[Work]], bool] = lambda _: False
        self.for_step_s = 600.0
        self.clock = self.standings = self  # what calibration asks of either

    @property
    def seen(self) -> list[set[Work]]:
        """Return the covers that were run."""
        return [works(one.contender.cover) for one in self.known]

    def try_cover(self, contender: Contender, *, ends_at: float = 0.0) -> ContenderResult:
        parts = contender.cover
        if self.refused(works(parts)):
            return ContenderResult(contender=contender, reason="it crashed")
        times = {part.id: self.truth[part.instance.toolchain, part.nodes] for part in parts}
        trial = ContenderResult(
            contender=contender, partitions_us=times, between_us=self.between_us
        )
        self.known.append(trial)
        return trial

    def profiled(self) -> list[ContenderResult]:
        return [one for one in self.known if len(one.contender.cover) > 1]

    def is_over(self, ends_at: float) -> bool:
        return time.monotonic() >= ends_at


def works(cover: Cover) -> set[Work]:
    return {(part.instance.toolchain, part.nodes) for part in cover}


def calibrated(
    rows: list[CandidateRecord], race: Any, pins: tuple[Pin, ...] = ()
) -> tuple[SearchInputs, SearchResult, RunControl]:
    """Calibrate, every trial from the table of true times."""
    inputs, control = inputs_of(GRAPH, rows, pins), RunControl()
    return *calibrate_costs(GRAPH, inputs, inputs.search(), race, control), control


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


ALONE: dict[Work, float] = {("lib", one): 1.0 for one in SINGLES} | {
    ("tvm", two): 3.0 for two in PAIRS
}
SINGLE = {("lib", one) for one in SINGLES}
TWO = {("tvm", (0, 1)), ("tvm", (2, 3))}
DEAR = {key: 6.0 if key[0] == "lib" else 3.25 for key in ALONE}


def profiled(race: Covers, rows: list[CandidateRecord], parts: set[Work]) -> None:
    """Have a cover profiled before, as the step that tries mixes does."""
    cover = [
        c for c in inputs_of(GRAPH, rows).candidates if (c.instance.toolchain, c.nodes) in parts
    ]
    race.try_cover(Contender(name="collage", kind="collage", cover=tuple(cover)))


def test_what_was_seen_replaces_what_it_took_alone() -> None:
    race = Covers(DEAR, between_us=0.5)
    inputs, found, _ = calibrated(rows_of(ALONE), race)
    assert race.seen[0] == SINGLE and works(found.covers[0]) == TWO
    assert found.answer.cost_us == pytest.approx(6.5)
    for one in inputs.records():
        if one.nodes != (1, 2):
            assert one.cost.in_model == "seen"
            assert one.cost.us == pytest.approx(DEAR[one.instance.id, one.nodes])
            assert one.cost.median_us == pytest.approx(ALONE[one.instance.id, one.nodes])
        else:
            assert one.cost.in_model == "predicted"


@pytest.mark.parametrize("seed", range(12))
def test_what_is_predicted_too_low_is_tried_and_found_out(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is predicted to take more than alone, and all does: so the cover that truly takes
    least is reached, one disappointment after the other."""
    nothing = InModelCosts(toolchains={"": (0.0, 0.0)})
    monkeypatch.setattr(calibration, "fit", lambda _: nothing)
    monkeypatch.setattr(calibration, "TURNS", 500)
    draw = random.Random(seed)
    every = [*SINGLES, *PAIRS, (0, 1, 2), (1, 2, 3)]
    alone: dict[Work, float] = {
        (name, nodes): draw.uniform(1, 2) * len(nodes) for name in ("lib", "tvm") for nodes in every
    }
    truth = {key: us * draw.uniform(1, 3) for key, us in alone.items()}
    race = Covers(truth)
    _, found, _ = calibrated(rows_of(alone), race)
    best = min(sum(truth[one] for one in cover) for cover in every_cover(alone))
    assert found.answer.cost_us == pytest.approx(best)
    assert sum(truth[one] for one in works(found.covers[0])) == pytest.approx(best)
    assert len(race.seen) == len({frozenset(one) for one in race.seen})


def test_what_was_profiled_before_corrects_costs_where_no_time_is_left() -> None:
    race, rows = Covers(DEAR), rows_of(ALONE)
    profiled(race, rows, SINGLE)
    race.clock.for_step_s = 0.0
    inputs, found, control = calibrated(rows, race)
    assert race.seen == [SINGLE], "nothing was run but what had been before"
    assert works(found.covers[0]) == TWO and control.cut_short == ["calibrate"]
    sources = {one.instance.id: one.cost.in_model for one in inputs.records()}
    assert sources == {"lib": "seen", "tvm": "predicted"}


def test_times_of_unmeasured_candidates_correct_nothing() -> None:
    rows = [
        msgspec.structs.replace(one, cost=Cost()) if one.instance.id == "lib" else one
        for one in rows_of(ALONE)
    ]
    inputs = inputs_of(GRAPH, rows)
    times = {c.id: 9.0 for c in inputs.candidates if c.instance.id == "lib"}
    tried = ContenderResult(
        contender=Contender(name="collage", kind="collage"), partitions_us=times
    )
    assert corrected_costs(GRAPH, inputs, [tried]) is None
    assert corrected_costs(GRAPH, inputs, []) is None


def test_a_whole_model_that_is_proposed_is_tried_once() -> None:
    """It is never profiled, since it is one partition; what it takes is known all the same."""
    whole = ("lib", (0, 1, 2, 3))
    race = Covers(DEAR | {whole: 5.0})
    _, found, _ = calibrated(rows_of(ALONE | {whole: 5.0}), race)
    assert works(found.covers[0]) == {whole} and race.seen == [SINGLE, {whole}]


def test_nothing_changes_where_no_cover_can_be_tried() -> None:
    race, rows = Covers(ALONE), rows_of(ALONE)
    race.refused = lambda _: True
    inputs, found, _ = calibrated(rows, race)
    assert found.covers == inputs_of(GRAPH, rows).search().covers and inputs.records() == rows


def test_where_the_proposal_cannot_be_run_the_next_one_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nothing = InModelCosts(toolchains={"": (0.0, 0.0)})
    monkeypatch.setattr(calibration, "fit", lambda _: nothing)
    one, other = ("lib", PAIRS[0]), ("lib", PAIRS[2])
    alone = ALONE | {one: 2.4, other: 2.5}
    truth = {key: 4.0 if len(key[1]) == 1 else 9.0 for key in alone} | {one: 7.5, other: 2.5}
    race = Covers(truth)
    race.refused = {one, other}.issuperset
    calibrated(rows_of(alone), race)
    # The second best in its place; and when the same is proposed again, what is next then.
    single = [("lib", nodes) for nodes in SINGLES]
    assert {*single[:2], other} in race.seen


def test_a_search_that_finds_nothing_later_leaves_what_was_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The graph may be too wide to find a cover on the costs within the model."""
    race, rows = Covers(DEAR), rows_of(ALONE)
    first = inputs_of(GRAPH, rows).search()
    search = SearchInputs.search

    def too_wide(inputs: SearchInputs) -> SearchResult:
        calibrated = any(cost.in_model for cost in inputs.costs.costs.values())
        return SearchResult(first.answer, ()) if calibrated else search(inputs)

    monkeypatch.setattr(SearchInputs, "search", too_wide)
    inputs, found, _ = calibrated(rows, race)
    assert found.covers == first.covers and inputs.records() == rows and race.seen == [SINGLE]


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
    race = Covers({key: us * 1.5 for key, us in alone.items()})
    inputs, found, _ = calibrated(rows_of(alone), race, (pin,))
    covers: Sequence[Cover] = [*(one.contender.cover for one in race.known), *found.covers]
    assert race.known and all(one.contender.eligible for one in race.known)
    for cover in covers:
        assert isinstance(check_cover(inputs.problem(), [part.id for part in cover]), float)
