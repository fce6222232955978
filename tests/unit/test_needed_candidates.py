"""What a run measures and leaves out, with stored costs in place of a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from collage_engine.planning.problem import make_problem
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stages import needed as lazily
from collage_engine.run.stages.needed import LOT, Needed
from collage_engine.search.api import solve
from collage_engine.search.lazy_measuring import LazyResult
from collage_engine.search.problem import Problem
from collage_engine.timing.measurer import CandidateGroup

FAST, SLOW = (ToolchainInstance(toolchain=name, threads=1) for name in ("fast", "slow"))
BLOCKS = 10


def graph() -> GraphRecord:
    """A chain of convolution, activation, convolution, activation …"""
    kind = (TensorType((4, 4), "float32"),)
    first = Node(index=0, form="parameter", types=kind)
    ops = ["nn.conv2d", "nn.relu"] * BLOCKS
    calls = [
        Node(index=k, form="call", op=op, inputs=(k - 1,), types=kind)
        for k, op in enumerate(ops, start=1)
    ]
    return GraphRecord(nodes=(first, *calls), inputs=(0,), outputs=(len(ops),))


def records() -> list[CandidateRecord]:
    found = []
    for instance in (FAST, SLOW):
        for block in range(BLOCKS):
            conv, relu = 2 * block, 2 * block + 1
            for nodes in ((conv,), (relu,), (conv, relu)):
                name = f"{instance.id}:{'+'.join(map(str, nodes))}"
                found.append(
                    CandidateRecord(id=name, instance=instance, nodes=nodes, label=name, key=name)
                )
    return found


def truth(slow_group_us: float) -> dict[str, Cost]:
    costs = {}
    for record in records():
        fast = record.instance is FAST
        if len(record.nodes) == 2:
            us = 105.0 if fast else slow_group_us
        elif record.nodes[0] % 2:
            us = 10.0
        else:
            us = 100.0 if fast else 300.0
        costs[record.key] = Cost(state="measured", median_us=us, low_us=us, high_us=us)
    return costs


class Stored:
    """Answers with costs that are known, and remembers what was asked."""

    def __init__(self, costs: dict[str, Cost]) -> None:
        self.costs = costs
        self.asked: set[str] = set()

    def wave(self, groups: Sequence[CandidateGroup], deadline: float, left: int) -> dict[str, Cost]:
        keys = {c.key for group in groups for c in group.candidates}
        assert not keys & self.asked, "measured once"
        self.asked |= keys
        return {key: self.costs[key] for key in keys}


def run(costs: dict[str, Cost], check: bool) -> tuple[Stored, Needed, Problem]:
    record = graph()

    def problem(known: Sequence[CandidateRecord]) -> Problem:
        return make_problem(record, known, (), {}, RunSettings(threads=1))

    stored = Stored(costs)
    whole: Any = SimpleNamespace(record=record, operators=range(2 * BLOCKS))
    needed = Needed(whole, records(), {}, problem, cast(Any, stored), math.inf)
    return stored, needed, problem(needed.measure(check=check))


def test_groups_of_a_slow_toolchain_are_left_out_and_a_lot_of_them_measured() -> None:
    costs = truth(slow_group_us=320.0)
    unchecked, needed, problem = run(costs, check=False)
    assert needed.certified
    assert not any("slow" in key and "+" in key for key in unchecked.asked)
    assert set(solve(problem).cover) == {f"fast:{2 * k}+{2 * k + 1}" for k in range(BLOCKS)}
    checked, needed, problem = run(costs, check=True)
    drawn = checked.asked - unchecked.asked
    assert needed.certified and len(drawn) == LOT
    assert all("slow" in key for key in drawn)
    left = [r for r in needed._told() if r.cost.state == "unknown"]
    assert left and all(r.cost.reason for r in left), "each says why"


@pytest.mark.parametrize("us", [50.0, 80.0])
def test_a_lot_that_breaks_the_assumption_is_not_the_last(us: float) -> None:
    costs = truth(slow_group_us=us)
    stored, needed, problem = run(costs, check=True)
    best = {f"slow:{2 * k}+{2 * k + 1}" for k in range(BLOCKS)}
    assert needed.certified and best <= stored.asked
    assert set(solve(problem).cover) == best


@pytest.mark.parametrize(
    ("ended", "late", "why"),
    [
        ("stopped", True, "the budget was spent"),
        ("search limit", True, "the budget was spent"),
        ("search limit", False, "too wide to prove"),
        ("unanswered", False, "could not be measured"),
    ],
)
def test_why_nothing_is_certain_is_told_as_it_was(
    monkeypatch: pytest.MonkeyPatch, ended: Any, late: bool, why: str
) -> None:
    _, needed, problem = run(truth(slow_group_us=320.0), check=False)
    result = LazyResult(
        problem=problem,
        measured=(),
        skipped=(),
        certified=False,
        ended=ended,
        rounds=1,
        cost_us=100.0,
        lower_bound_us=97.5,
    )
    monkeypatch.setattr(lazily, "measure_lazily", lambda *_, **__: result)
    needed._deadline = 0.0 if late else math.inf
    needed.certified = needed._settle()
    words = needed.words()
    assert words is not None and "are left unmeasured: " in words and why in words
    assert ("2.50%" in words) == ("wide" in why)
