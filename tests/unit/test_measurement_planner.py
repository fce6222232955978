"""What a run measures and leaves out, with stored costs in place of a machine.

Counts of work, and the estimates of unmeasured candidates that rest on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from collage_engine.records.candidate import Candidate, CandidateRecord, Cost, invalid
from collage_engine.records.graph import GraphRecord
from collage_engine.records.operators import work_of_operators
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.measurement_planner import (
    FUSING_TAKES,
    Estimates,
    MeasurementPlanner,
)
from collage_engine.search.api import solve
from collage_engine.timing.measurer import CandidateGroup
from tests.support.candidates import inputs_of
from tests.support.graphs import GraphBuilder, chain

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

    def measure_batch(self, groups: Sequence[CandidateGroup], deadline: float) -> dict[str, Cost]:
        keys = {c.key for group in groups for c in group}
        assert not keys & self.asked, "measured once"
        self.asked |= keys
        return {key: self.costs[key] for key in keys}


GRAPH = chain(*["nn.conv2d", "nn.relu"] * BLOCKS)
"""Convolution, activation, convolution, activation …"""


WHOLE = tuple(range(2 * BLOCKS))


def with_whole_models(fast_us: float, slow_us: float) -> list[CandidateRecord]:
    """The candidates, and what both toolchains took alone on the whole model."""
    alone = [
        CandidateRecord(
            id=f"{i.id}:whole",
            instance=i,
            nodes=WHOLE,
            label=i.id,
            key=f"{i.id}:whole",
            cost=Cost(state="measured", median_us=us, low_us=us, high_us=us),
        )
        for i, us in ((FAST, fast_us), (SLOW, slow_us))
    ]
    return [*alone, *records()]


def plan(
    rows: list[CandidateRecord],
    costs: dict[str, Cost],
    *known: Any,
    pins: tuple[Pin, ...] = (),
    deadline: float = math.inf,
    store: type[Stored] = Stored,
) -> tuple[Stored, MeasurementPlanner, bool]:
    stored: Any = store(costs)
    inputs = inputs_of(GRAPH, rows, pins, RunSettings(threads=1))
    planner = MeasurementPlanner(inputs, stored, *known)
    return stored, planner, planner.measure(deadline)


def cover_of(planner: MeasurementPlanner) -> set[str]:
    return {str(name) for name in solve(planner.inputs.problem()).cover}


PAIRS = {(2 * k, 2 * k + 1) for k in range(BLOCKS)}
"""The operators of the blocks."""


def test_what_a_slow_toolchain_could_not_win_is_left_out() -> None:
    stored, planner, is_measured = plan(
        with_whole_models(1040.0, 3200.0), truth(slow_group_us=320.0)
    )
    assert is_measured and cover_of(planner) == {"fast:whole"}
    assert not any(key.startswith("slow:") for key in stored.asked)
    assert all(not planner.inputs.costs.known(r.id) for r in records() if r.instance is SLOW)


@pytest.mark.parametrize("fast_us", [1000.0, 2000.0])
def test_the_best_cover_is_found_and_measured_throughout(fast_us: float) -> None:
    """Whatever the whole models say, a cover of pieces that is better is found."""
    stored, planner, is_measured = plan(
        with_whole_models(fast_us, 1.2 * fast_us), truth(slow_group_us=80.0)
    )
    assert is_measured
    assert cover_of(planner) == {f"slow:{a}+{b}" for a, b in PAIRS}
    everything = solve(
        planner.inputs.with_costs(
            planner.inputs.costs.with_measured(planner.inputs.candidates, stored.costs)
        ).problem()
    )
    assert set(everything.cover) == cover_of(planner)


def test_groups_come_first_on_toolchains_that_are_fast_alone() -> None:
    waves: list[set[tuple[str, tuple[int, ...]]]] = []

    class Noting(Stored):
        def measure_batch(
            self, groups: Sequence[CandidateGroup], deadline: float
        ) -> dict[str, Cost]:
            waves.append({(c.instance.id, c.nodes) for group in groups for c in group})
            return super().measure_batch(groups, deadline)

    plan(with_whole_models(1000.0, 1400.0), truth(slow_group_us=320.0), PAIRS, store=Noting)
    assert waves[0] == {(FAST.id, nodes) for nodes in PAIRS}


def test_profiles_within_the_model_price_what_was_not_measured() -> None:
    """A toolchain whose partitions were seen to be slow in the model is not measured there."""
    seen = {FAST: 110.0, SLOW: 500.0}
    profiled = [(candidate(one, *nodes), us) for one, us in seen.items() for nodes in PAIRS]
    stored, planner, is_measured = plan(records(), truth(slow_group_us=320.0), PAIRS, profiled)
    assert is_measured
    assert cover_of(planner) == {f"fast:{a}+{b}" for a, b in PAIRS}
    assert not any(key.startswith("slow:") and "+" in key for key in stored.asked)


def test_an_invalid_candidate_is_replaced_and_the_search_goes_on() -> None:
    costs = truth(slow_group_us=320.0)
    costs["fast:0+1"] = invalid("crashed")
    _, planner, is_measured = plan(records(), costs)
    assert is_measured
    assert cover_of(planner) == {"fast:0", "fast:1"} | {
        f"fast:{a}+{b}" for a, b in PAIRS - {(0, 1)}
    }


def test_without_time_nothing_is_measured_and_the_best_cover_is_not() -> None:
    stored, _, is_measured = plan(records(), truth(slow_group_us=320.0), deadline=0.0)
    assert not is_measured and not stored.asked


def test_pins_have_a_price_since_the_best_cover_without_them_is_measured_too() -> None:
    pin = Pin(kind="on", nodes=(0, 1), toolchain="slow", text="all=slow")
    _, planner, is_measured = plan(records(), truth(slow_group_us=320.0), pins=(pin,))
    assert is_measured
    assert all(planner.inputs.costs.known(name) for name in ("slow:0+1", "fast:0+1"))


def graph_of(op: str, weight: tuple[int, ...], out: tuple[int, ...], layout: str) -> GraphRecord:
    b = GraphBuilder()
    data = b.parameter("x", (1, 6, 8, 8))
    return b.build(b.call(op, data, b.constant(weight), shape=out, kernel_layout=layout)).record


@pytest.mark.parametrize(
    ("op", "weight", "out", "layout", "operations"),
    [
        ("nn.conv2d", (4, 6, 3, 3), (1, 4, 8, 8), "OIHW", 2 * 4 * 64 * 6 * 9),
        ("nn.conv2d", (3, 3, 6, 4), (1, 4, 8, 8), "HWIO", 2 * 4 * 64 * 6 * 9),
        ("nn.conv2d", (6, 1, 3, 3), (1, 6, 8, 8), "OIHW", 2 * 6 * 64 * 9),  # one group a channel
        ("nn.conv2d", (1, 6, 3, 3, 4), (1, 4, 8, 8), "OIHW", 0),  # packed: not known
        ("nn.conv2d_transpose", (6, 4, 2, 2), (1, 4, 16, 16), "IOHW", 2 * 6 * 64 * 4 * 4),
        ("add", (4, 6, 3, 3), (1, 4, 8, 8), "", 0),
    ],
)
def test_operations_are_those_of_direct_convolutions(op, weight, out, layout, operations) -> None:
    graph = graph_of(op, weight, out, layout)
    (work,) = work_of_operators(graph)
    assert work.operations == operations
    assert work.moved_bytes == sum(value.type.bytes for value in graph.values)


QUICK, LATE, NEW = (ToolchainInstance(toolchain=name) for name in ("fast", "slow", "new"))
RELUS = chain("nn.relu", "nn.relu", "nn.relu", "nn.relu").record


def candidate(instance: ToolchainInstance, *nodes: int) -> Candidate:
    return Candidate(id=f"{instance.id}{nodes}", instance=instance, nodes=nodes, label="")


def test_a_candidate_costs_what_its_parts_cost_there_less_what_fusing_saves() -> None:
    estimates = Estimates(RELUS)
    estimates.learn(candidate(QUICK, 0, 1, 2, 3), 40.0)
    estimates.learn(candidate(LATE, 0, 1), 60.0)
    assert estimates.us(candidate(QUICK, 0, 1)) == pytest.approx(FUSING_TAKES * 20.0)
    assert estimates.us(candidate(LATE, 0, 1)) == pytest.approx(FUSING_TAKES * 60.0)
    # Where nothing is known of an instance, the fastest of all counts.
    assert estimates.us(candidate(LATE, 1, 2)) == pytest.approx(FUSING_TAKES * 40.0)
    assert estimates.us(candidate(NEW, 0)) == pytest.approx(FUSING_TAKES * 10.0)
    estimates.learn(candidate(NEW, 0), 4.0)
    assert estimates.us(candidate(NEW, 0, 1)) == pytest.approx(FUSING_TAKES * 14.0)
    assert estimates.us(candidate(QUICK, 0)) == pytest.approx(FUSING_TAKES * 10.0), "its own"
