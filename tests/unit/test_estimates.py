"""Counts of work, and the estimates of unmeasured candidates that rest on them."""

from __future__ import annotations

import pytest

from collage_engine.records.candidate import Candidate
from collage_engine.records.graph import GraphRecord
from collage_engine.records.operators import work_of_operators
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run.measurement_planner import FUSING_TAKES, Estimates, Timed
from tests.support.graphs import GraphBuilder, chain


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


FAST, SLOW, NEW = (ToolchainInstance(toolchain=name) for name in ("fast", "slow", "new"))
GRAPH = chain("nn.relu", "nn.relu", "nn.relu", "nn.relu").record


def candidate(instance: ToolchainInstance, *nodes: int) -> Candidate:
    return Candidate(id=f"{instance.id}{nodes}", instance=instance, nodes=nodes, label="")


def test_a_candidate_costs_what_its_parts_cost_there_less_what_fusing_saves() -> None:
    estimates = Estimates(GRAPH, [Timed("fast", (0, 1, 2, 3), 40.0), Timed("slow", (0, 1), 60.0)])
    assert estimates.us(candidate(FAST, 0, 1)) == pytest.approx(FUSING_TAKES * 20.0)
    assert estimates.us(candidate(SLOW, 0, 1)) == pytest.approx(FUSING_TAKES * 60.0)
    # Where nothing is known of an instance, the fastest of all counts.
    assert estimates.us(candidate(SLOW, 1, 2)) == pytest.approx(FUSING_TAKES * 40.0)
    assert estimates.us(candidate(NEW, 0)) == pytest.approx(FUSING_TAKES * 10.0)
    estimates.learn(Timed("new", (0,), 4.0))
    assert estimates.us(candidate(NEW, 0, 1)) == pytest.approx(FUSING_TAKES * 14.0)
    assert estimates.us(candidate(FAST, 0)) == pytest.approx(FUSING_TAKES * 10.0), "its own"
