"""The protocol of kernel rules: plans that are checked, and the registry that decides.

Attributing what a VM called to the partitions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pytest

from collage_engine.kernels.rule import (
    AtLeastOne,
    KernelRule,
    Plan,
    PlanError,
    Registry,
)
from collage_engine.lowering.built import Kernel, working_calls
from collage_engine.lowering.stopwatch import KernelTime


class Tiles(Plan, frozen=True):
    """A toy plan."""

    rows: Annotated[int, msgspec.Meta(ge=1, le=8)]
    order: Literal["row", "column"] = "row"
    group: AtLeastOne | None = None
    copied: bool = False


class Sum(msgspec.Struct, frozen=True, tag_field="family", tag="sum"):
    """A toy problem."""

    rows: int


class ByTiles(KernelRule[Sum, Tiles, int]):
    """Sums of a toy machine with so many registers, tile by tile."""

    name = "sum tiles"

    def matches(self, problem: Sum, machine: int) -> bool:
        return problem.rows > 1

    def default(self, problem: Sum, machine: int) -> Tiles:
        return Tiles(min(problem.rows, machine, 8))

    def neighbours(self, problem: Sum, plan: Tiles, machine: int) -> Iterator[Tiles]:
        for rows in (plan.rows - 1, plan.rows + 1):
            if 1 <= rows <= min(machine, problem.rows):
                yield Tiles(rows, plan.order)

    def reference(self, problem: Sum, plan: Tiles, *operands: Any) -> Any:
        return operands[0].sum()

    def write(self, problem: Sum, plan: Tiles, epilogue: Any) -> Any:
        return f"{plan.rows} rows, {epilogue}"


class Folded(ByTiles):
    """A method that reorders sums, and only pays where there are many rows."""

    name = "sum folded"

    def matches(self, problem: Sum, machine: int) -> bool:
        return problem.rows % 2 == 0

    def worthwhile(self, problem: Sum, machine: int) -> bool:
        return problem.rows >= 64


class OneByOne(ByTiles):
    """What is left."""

    name = "sum"

    def matches(self, problem: Sum, machine: int) -> bool:
        return True


RULES = Registry([Folded(), ByTiles(), OneByOne()])


def test_the_first_worthwhile_rule_decides():
    def name(rows: int) -> str:
        decision = RULES.default(Sum(rows), 4)
        assert decision is not None
        return decision.rule.name

    assert [name(n) for n in (1, 2, 63, 64)] == ["sum", "sum tiles", "sum tiles", "sum folded"]
    assert RULES.default("no sum", 4) is None


def test_a_decision_comes_back_from_its_record():
    for problem in (Sum(1), Sum(5), Sum(64)):
        decision = RULES.default(problem, 4)
        assert decision is not None
        assert RULES.decide(problem, 4, decision.to_record()) == decision
        assert RULES.problem(msgspec.to_builtins(problem)) == problem
    assert RULES.decide(Sum(5), 4, {}) == RULES.default(Sum(5), 4)
    decision = RULES.decide(Sum(64), 4, {"rule": "sum", "rows": 2})
    assert decision is not None and decision.rule.name == "sum"
    assert decision.write("stored") == "2 rows, stored"
    assert decision.pack(4, np.ones(3)).sum() == decision.reference(np.ones(3)) == 3


@pytest.mark.parametrize(
    "rows, record, reason",
    [
        (5, {"rule": "som", "rows": 2}, "no kernel rule 'som'"),
        (5, {"rows": 2}, "no kernel rule ''"),
        (5, {"rule": "sum folded", "rows": 2}, "does not match"),
        (5, {"rule": "sum", "rows": 2, "columns": 2}, "unknown field `columns`"),
        (5, {"rule": "sum"}, "missing required field `rows`"),
        (5, {"rule": "sum", "rows": 9}, "<= 8"),
    ],
)
def test_a_choice_that_cannot_be_followed_is_an_error(rows, record, reason):
    with pytest.raises(PlanError, match=reason):
        RULES.decide(Sum(rows), 4, record)


def test_the_tuner_walks_over_plans_and_rules():
    start = RULES.decide(Sum(6), 4, {"rule": "sum tiles", "rows": 2})
    assert start is not None
    names = [d.name for d in RULES.neighbours(start, 4)]
    assert names == [
        "sum tiles: rows=1",
        "sum tiles: rows=3",
        "sum folded: rows=4",
        "sum: rows=4",
    ]


def test_a_plan_is_told_by_its_parameters():
    assert "group" not in Tiles(3).to_record(), "what the rule estimates itself is left out"
    assert Tiles(3).name == "rows=3" != Tiles(4).name


def test_two_rules_of_one_name_are_refused():
    with pytest.raises(ValueError, match="one name"):
        Registry([OneByOne(), OneByOne()])


KERNELS = (
    Kernel(name="conv", part=0),
    Kernel(name="reshape", part=0),
    Kernel(name="p1_onednn", part=1),
    Kernel(name="conv", part=2),
)


def test_a_kernel_shared_by_two_partitions_is_told_apart_by_its_place():
    names = ("vm.builtin.alloc_tensor", "conv", "reshape", "p1_onednn", "to_nhwc", "conv")
    calls = [KernelTime(name, us=1.0, gap_us=0.5) for name in names]
    owned = [
        (call.kernel, None if kernel is None else kernel.part, call.gap_us)
        for call, kernel in working_calls(KERNELS, calls)
    ]
    assert owned == [
        ("conv", 0, 2.0),
        ("reshape", 0, 0.5),
        ("p1_onednn", 1, 0.5),
        ("to_nhwc", None, 0.5),
        ("conv", 2, 0.5),
    ]
