"""What a run measures and leaves out, with stored costs in place of a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.run_parts import RunParts
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.stages import needed as lazily
from collage_engine.run.stages.needed import AUDIT_SIZE, Needed
from collage_engine.search.api import solve
from collage_engine.search.lazy_measuring import LazyResult
from collage_engine.search.problem import Problem
from collage_engine.timing.measurer import CandidateGroup
from tests.support.candidates import data_of
from tests.support.graphs import chain

FAST, SLOW = (ToolchainInstance(toolchain=name, threads=1) for name in ("fast", "slow"))
BLOCKS = 10


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


GRAPH = chain(*["nn.conv2d", "nn.relu"] * BLOCKS)
"""Convolution, activation, convolution, activation …"""


def run(costs: dict[str, Cost], check: bool) -> tuple[Stored, Needed, Problem]:
    stored = Stored(costs)
    data = data_of(GRAPH, records(), settings=RunSettings(threads=1))
    needed = Needed(GRAPH, data, stored, math.inf)
    return stored, needed, data.with_costs(needed.measure(audit=check)).problem()


def test_groups_of_a_slow_toolchain_are_left_out_and_a_lot_of_them_measured() -> None:
    costs = truth(slow_group_us=320.0)
    unchecked, needed, problem = run(costs, check=False)
    assert needed.certified
    assert not any("slow" in key and "+" in key for key in unchecked.asked)
    assert set(solve(problem).cover) == {f"fast:{2 * k}+{2 * k + 1}" for k in range(BLOCKS)}
    checked, needed, problem = run(costs, check=True)
    drawn = checked.asked - unchecked.asked
    assert needed.certified and len(drawn) == AUDIT_SIZE
    assert all("slow" in key for key in drawn)
    table = needed.costs()
    left = [r.id for r in records() if not table.known(r.id)]
    assert left and all(table.cost(name).reason for name in left), "each says why"


def test_without_heuristic_bounds_only_certified_ones_leave_candidates_out() -> None:
    stored = Stored(truth(slow_group_us=320.0))
    settings = RunSettings(threads=1, parts=RunParts(heuristic_bounds=False))
    needed = Needed(GRAPH, data_of(GRAPH, records(), settings=settings), stored, math.inf)
    needed.measure(audit=False)
    assert needed.certified and not needed.assumed
    assert {f"slow:{2 * k}+{2 * k + 1}" for k in range(BLOCKS)} <= stored.asked


def test_a_time_below_its_certified_bound_lowers_all_of_them() -> None:
    """Peaks that were measured at a low clock would leave out the best candidates."""
    stored = Stored(truth(slow_group_us=90.0))
    settings = RunSettings(threads=1, parts=RunParts(heuristic_bounds=False))
    data = data_of(GRAPH, records(), settings=settings)
    best = {f"slow:{2 * k}+{2 * k + 1}" for k in range(BLOCKS)}
    # The group's bound lies above the fast one's 105 µs; a single operator's, 100 µs, refutes it.
    bounds = dict.fromkeys(best, 120.0) | {"fast:0": 130.0}
    needed = Needed(
        GRAPH, data.with_costs(data.costs.with_certified_bounds(bounds)), stored, math.inf
    )
    costs = needed.measure(audit=False)
    assert needed.certified and best <= stored.asked
    assert needed.refuted == pytest.approx(90.0 / 120.0)
    assert set(solve(data.with_costs(costs).problem()).cover) == best
    assert all(costs.certified_bound_us[name] <= 90.0 * (1 + 1e-9) for name in best)


def test_operators_are_measured_first_on_toolchains_that_are_fast_alone() -> None:
    whole = tuple(range(2 * BLOCKS))
    all_records = [
        *records(),
        *(
            CandidateRecord(id=i.id, instance=i, nodes=whole, label=i.id, key=f"{i.id}:whole")
            for i in (FAST, SLOW)
        ),
    ]
    data = data_of(GRAPH, all_records, settings=RunSettings(threads=1))
    known = {
        name: Cost(state="measured", median_us=us, low_us=us, high_us=us)
        for name, us in ((FAST.id, 1000.0), (SLOW.id, 3000.0))
    }
    waves: list[set[str]] = []

    class Noting(Stored):
        def wave(
            self, groups: Sequence[CandidateGroup], deadline: float, left: int
        ) -> dict[str, Cost]:
            waves.append({c.instance.id for group in groups for c in group.candidates})
            return super().wave(groups, deadline, left)

    stored = Noting(truth(slow_group_us=320.0))
    needed = Needed(GRAPH, data.with_costs(data.costs.with_isolated(known)), stored, math.inf)
    needed.measure(audit=False)
    assert waves[:2] == [{FAST.id}, {SLOW.id}]


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
    needed.certified = needed._measure_until_certain()
    words = needed.words()
    assert words is not None and "are left unmeasured: " in words and why in words
    assert ("2.50%" in words) == ("wide" in why)
