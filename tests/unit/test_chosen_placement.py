"""A placement whose partitions were measured has an estimate, be it by the winner's own profile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage_engine.lowering.built import BuiltModule
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Cost, CostTable
from collage_engine.records.format import CALL
from collage_engine.records.placement import LayerTime
from collage_engine.records.settings import RunSettings
from collage_engine.run.run_document import chosen_placement, runners_up, timed_placement
from collage_engine.trials.contender import Contender, ContenderKind, ContenderResult
from collage_engine.trials.standings import RaceResult
from tests.support.covers import candidate_on
from tests.support.graphs import chain, instance

TVM = instance("tvm")
PARTS = tuple(candidate_on(TVM, (number,)) for number in range(3))
LAUNCH_US = 0.5


def inputs(*measured: float | None) -> SearchInputs:
    """A chain of three operators; the cost of each one's candidate, None where it has none."""
    costs = {
        part.id: Cost(state="measured", median_us=us)
        for part, us in zip(PARTS, measured, strict=True)
        if us is not None
    }
    return SearchInputs(
        graph=chain("a", "b", "c").record,
        candidates=PARTS,
        costs=CostTable(costs),
        constants={"launch": LAUNCH_US},
        pins=(),
        settings=RunSettings(),
    )


def confirmed(*profile_us: float, kind: ContenderKind = "fuseops") -> RaceResult:
    """A cover of all three partitions wins."""
    built = BuiltModule(
        parts=PARTS,
        kernels=(),
        libraries=(),
        environment={},
        threads=1,
        spin=False,
    )
    layers = (LayerTime(name=f"k{k}", us=us, partition=k) for k, us in enumerate(profile_us))
    winner = ContenderResult(
        contender=Contender(name="it", kind=kind, cover=PARTS),
        rounds_us=(70.0, 70.0, 70.0),
        built=built,
        layers=tuple(layers),
    )
    return RaceResult(results=(winner,), winner=winner)


@pytest.mark.parametrize("kind", ["fuseops", "collage"])
def test_a_partition_without_a_cost_is_estimated_by_the_winners_profile(
    kind: ContenderKind,
) -> None:
    given = inputs(10.0, None, 30.0)
    confirmation = confirmed(11.0, 22.0, 33.0, kind=kind)
    assert timed_placement(given, confirmation.winner).estimated_us is None
    placement = chosen_placement(given, confirmation)
    assert [part.estimated_us for part in placement.partitions] == [10.0, 22.0, 30.0]
    assert [part.in_place_us for part in placement.partitions] == [11.0, 22.0, 33.0]
    known = chosen_placement(inputs(10.0, 22.0, 30.0), confirmation)
    assert placement.estimated_us == known.estimated_us
    assert placement.additive_error_us == pytest.approx(70.0 - (placement.estimated_us or 0.0))


def result(name: str, *cover: int, us: float) -> ContenderResult:
    """A cover of several toolchains by the numbers of its partitions."""
    contender = Contender(name=name, kind="collage", cover=tuple(PARTS[number] for number in cover))
    return ContenderResult(contender=contender, rounds_us=(us,) * 3)


def test_runners_up_are_the_others_the_fastest_first() -> None:
    given = inputs(10.0, 20.0, 30.0)
    first, second, third = (
        result("collage", 0, us=80.0),
        result("collage", 1, us=90.0),
        result("collage", 2, us=70.0),
    )
    confirmation = replace(confirmed(), results=(first, second, third), winner=second)
    chosen = chosen_placement(given, confirmation)
    assert [part.candidate for part in chosen.partitions] == [PARTS[1].id]
    others = runners_up(given, confirmation)
    assert [one.measured_us for one in others] == [70.0, 80.0], "the fastest is the first"


def test_every_cover_has_the_copies_of_a_call_once() -> None:
    """Without them a sum of partitions would look faster than a whole model that was timed."""
    whole = candidate_on(TVM, (0, 1, 2))
    given = inputs(10.0, 20.0, 30.0)
    costs = given.costs.with_isolated({whole.id: Cost(state="measured", median_us=62.0)})
    given = given.with_candidates([*PARTS, whole], costs).with_constants({CALL: 4.0})
    parts_us, whole_us = 60.0 + 3 * LAUNCH_US, 62.0 + LAUNCH_US
    assert given.placement(PARTS).estimated_us == pytest.approx(parts_us + 4.0)
    assert given.placement([whole]).estimated_us == pytest.approx(whole_us)
    regrets = given.search().answer.regrets
    assert regrets[whole.id] == 0.0
    assert regrets[PARTS[0].id] == pytest.approx(parts_us + 4.0 - whole_us)
