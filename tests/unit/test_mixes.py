"""Mixes follow from what groups take inside the model; each promises what its groups' times say."""

from __future__ import annotations

from collections.abc import Mapping

from collage_engine.records.candidate import Candidate
from collage_engine.trials.contender import Contender, ContenderResult
from collage_engine.trials.mixes import (
    Cover,
    OperatorGroup,
    groups_of,
    profile_groups,
    suggested_mixes,
)
from tests.support.covers import candidate_on
from tests.support.graphs import chain, instance

LENGTH = 5
GRAPH = chain(*("anchor" for _ in range(LENGTH)))
GROUPS: list[OperatorGroup] = [(number,) for number in range(LENGTH)]


def candidate(name: str, group: OperatorGroup) -> Candidate:
    return candidate_on(instance(name), group)


def times(**us: list[float | None]) -> dict[OperatorGroup, dict[str, float]]:
    """µs of every group by toolchain; None where it was not profiled there."""
    return {
        group: {name: taken for name, all_us in us.items() if (taken := all_us[k]) is not None}
        for k, group in enumerate(GROUPS)
    }


Parts = list[tuple[str, tuple[int, ...]]]


def mixes(found: dict[OperatorGroup, dict[str, float]], **alone_us: float) -> list[Parts]:
    covers = suggested_mixes(found, alone_us, GRAPH, candidate)
    return [
        sorted(((c.instance.toolchain, tuple(c.nodes)) for c in cover), key=lambda one: one[1])
        for cover in covers
    ]


class Truth:
    """What groups take on each toolchain; what runs a cover says so."""

    def __init__(self, us: Mapping[str, list[float]], failing: str = "") -> None:
        self.us = us
        self.failing = failing
        self.asked: list[tuple[str, list[tuple[str, tuple[int, ...]]]]] = []

    def run(self, name: str, cover: Cover) -> ContenderResult:
        self.asked.append((name, [(c.instance.toolchain, tuple(c.nodes)) for c in cover]))
        made = Contender(name="collage", kind="collage", cover=cover)
        if name == self.failing:
            return ContenderResult(contender=made, reason="it crashed")
        return ContenderResult(
            contender=made,
            partitions_us={
                c.id: self.us[c.instance.toolchain][GROUPS.index(c.nodes)] for c in cover
            },
        )


def taken(**numbers: range) -> dict[str, dict[OperatorGroup, Candidate]]:
    return {
        name: {GROUPS[k]: candidate(name, GROUPS[k]) for k in groups}
        for name, groups in numbers.items()
    }


def test_the_groups_of_a_chain_of_anchors_are_its_operators() -> None:
    assert groups_of(GRAPH) == GROUPS


def test_each_toolchain_is_profiled_with_the_groups_that_it_takes() -> None:
    truth = Truth({"a": [9.0] * 5, "b": [1.0, 2.0, 3.0, 4.0, 5.0]})
    found = profile_groups(GROUPS, taken(a=range(5), b=range(1, 3)), truth.run)
    assert [name for name, _ in truth.asked] == ["b", "a"], "first what is soonest ready"
    assert [where for where, _ in truth.asked[0][1]] == ["a", "b", "b", "a", "a"]
    assert found[GROUPS[1]] == {"a": 9.0, "b": 2.0}


def test_a_cover_that_fails_tells_nothing_and_the_next_one_is_tried() -> None:
    truth = Truth({"a": [9.0] * 5, "b": [5.0] * 5, "c": [1.0] * 5}, failing="b")
    found = profile_groups(GROUPS, taken(a=range(5), b=range(5), c=range(5)), truth.run)
    assert all(us == {"a": 9.0, "c": 1.0} for us in found.values())


def test_a_group_that_nothing_takes_leaves_nothing_to_propose() -> None:
    truth = Truth({"a": [1.0] * 5})
    assert not profile_groups(GROUPS, taken(a=range(4)), truth.run) and not truth.asked


def test_no_further_toolchain_is_profiled_once_the_time_is_over() -> None:
    asked: list[str] = []

    def run(name: str, cover: Cover) -> ContenderResult:
        asked.append(name)
        made = Contender(name="collage", kind="collage", cover=cover)
        return ContenderResult(contender=made, reason="no time", reached=False)

    profile_groups(GROUPS, taken(a=range(5), b=range(5)), run)
    assert asked == ["b"]
    truth = Truth({"a": [1.0] * 5, "b": [1.0] * 5})
    profile_groups(GROUPS, taken(a=range(5), b=range(5)), truth.run, lambda: bool(truth.asked))
    assert [name for name, _ in truth.asked] == ["b"], "none is begun"


def test_the_fastest_of_each_group_is_proposed_merged_and_apart() -> None:
    found = mixes(
        times(a=[10.0, 10.0, 90.0, 10.0, 10.0], b=[50.0, 50.0, 10.0, 50.0, 50.0]), a=130.0
    )
    assert found == [
        [("a", (0, 1)), ("b", (2,)), ("a", (3, 4))],
        [("a", (0,)), ("a", (1,)), ("b", (2,)), ("a", (3,)), ("a", (4,))],
    ]


def test_a_toolchain_alone_is_no_mix() -> None:
    found = mixes(times(a=[10.0] * 5, b=[50.0] * 5), a=70.0, b=300.0)
    assert [len(mix) for mix in found] == [5], "the groups of a, one by one"


def test_a_base_that_wins_across_its_groups_keeps_its_share_of_that() -> None:
    """Alone it takes half of its groups' sum, so each of its groups counts half."""
    found = mixes(times(a=[40.0, 10.0, 10.0, 10.0, 10.0], b=[10.0, 90.0, 90.0, 90.0, 90.0]), a=40.0)
    assert found == [[("b", (0,)), ("a", (1, 2, 3, 4))]]


def test_a_toolchain_that_does_not_take_every_group_is_no_base() -> None:
    assert not mixes(times(a=[40.0, None, 10.0, 10.0, 10.0], b=[10.0] * 5), a=40.0)
