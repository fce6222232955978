"""What TVM v0.18 combines wrongly, and what upstream's own pass tests expect of candidates.

Upstream's pass tests (test_pass_collage_partition.py): its candidate sets, and its costs.

Our own candidates for the same specs, searched by our search, never make a worse cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.combiners import AllSimple
from collage_engine.partition.patterns import anything, op
from collage_engine.partition.rules import (
    CombineRule,
    CompositeRule,
    PatternRule,
    UnionRule,
)
from collage_engine.partition.spec import PartitionSpec
from collage_engine.search.api import solve
from collage_engine.search.problem import Problem, ProblemCandidate, ProblemNode
from tests.support import upstream_graphs as graphs
from tests.support.upstream_collage import (
    A_TO_A,
    HostRule,
    byoc_spec,
    prune_candidates,
    tvm_spec,
    upstream_candidates,
)


def relu() -> PatternRule:
    return PatternRule("relu_pattern", op("nn.relu", anything()))


class TestDefectsNotRepeated:
    def test_duplicate_patterns_are_one_candidate(self) -> None:
        pads = UnionRule("", (CompositeRule("a", relu()), CompositeRule("a", relu())))
        rule = CombineRule("combine", pads, (AllSimple((A_TO_A,)),), 3)
        found = PartitionSpec("s", rule).candidates(graphs.standard())
        assert [c.sub_graph.members for c in found] == [(4,), (5,), (4, 5)]


T, H = "tvm_llvm", "example_target_hook"

TABLE = [
    ("relu", op("nn.relu", anything())),
    ("add", op("add", anything(), anything())),
    ("concatenate", op("concatenate", anything())),
]


def specs(tvm_depth: int, byoc_depth: int) -> list[PartitionSpec]:
    return [tvm_spec(T, tvm_depth), byoc_spec(H, TABLE, "ArbitraryFusion", byoc_depth)]


@dataclass(frozen=True)
class Case:
    name: str
    graph: Callable[[], DataflowGraph]
    costs: tuple[float, float]
    """Cost of an operator on T and on H; each further one of a partition costs 10 % less."""
    depths: tuple[int, int]
    counts: tuple[int, int, int] | None
    """Candidates of T, of H, and of both after pruning."""
    cost: float
    """What upstream's test says that its cover costs."""


CASES = [
    Case("single_op_llvm", graphs.single_op, (1, 2), (8, 8), (1, 1, 2), 1),
    Case("single_op_byoc", graphs.single_op, (2, 1), (8, 8), (1, 1, 2), 1),
    Case("diamond_valid_topology_1", graphs.diamond_valid_topology, (2, 1), (1, 1), (4, 3, 7), 5),
    Case("diamond_valid_topology_3", graphs.diamond_valid_topology, (2, 1), (1, 3), None, 4.9),
    Case("tvm_max_depth_1", graphs.relu_chain, (100, 99), (1, 1), (3, 3, 6), 297),
    Case("tvm_max_depth_2", graphs.relu_chain, (100, 99), (2, 1), (5, 3, 8), 289),
    Case("tvm_max_depth_3", graphs.relu_chain, (100, 99), (3, 1), (6, 3, 9), 271),
    Case("byoc_max_depth_1", graphs.relu_chain, (99, 100), (1, 1), (3, 3, 6), 297),
    Case("byoc_max_depth_2", graphs.relu_chain, (99, 100), (1, 2), (3, 5, 8), 289),
    Case("byoc_max_depth_3", graphs.relu_chain, (99, 100), (1, 3), (3, 6, 9), 271),
    Case("output_tuple", graphs.output_tuple, (2, 1), (2, 2), None, 4),
    Case("intermediate_tuple", graphs.intermediate_tuple, (2, 1), (3, 5), None, 3),
    Case("fusion_benefit", graphs.fusion_benefit, (5, 6), (1, 5), None, 34.5706),
    Case("double_residual", graphs.double_residual, (2, 1), (4, 4), None, 4.9),
    Case("pruning_heuristic", graphs.pruning_heuristic, (2, 1), (4, 4), (7, 7, 2), 3.439),
]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.counts is not None], ids=lambda c: c.name
)
def test_candidate_sets_are_upstreams(case: Case) -> None:
    graph = case.graph()
    found = [upstream_candidates(spec, graph) for spec in specs(*case.depths)]
    host = upstream_candidates(PartitionSpec("host", HostRule("")), graph)
    pruned = prune_candidates([*found[0], *found[1], *host])
    left = sum(c.spec_name != "host" for c in pruned)
    assert (len(found[0]), len(found[1]), left) == case.counts


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_our_candidates_make_no_worse_cover(case: Case) -> None:
    graph = case.graph()
    calls = call_graph(graph)
    costs = dict(zip((T, H), case.costs, strict=True))
    offered = [
        (spec.name, members(calls.from_nodes(candidate.sub_graph.inside)))
        for spec in specs(*case.depths)
        for candidate in spec.candidates(graph)
    ]
    problem = Problem(
        nodes=tuple(
            ProblemNode(id=number, inputs=tuple(inputs))
            for number, inputs in enumerate(calls.inputs)
        ),
        candidates=tuple(
            ProblemCandidate(
                id=number,
                nodes=tuple(nodes),
                toolchain=name,
                cost_us=sum(costs[name] * 0.9**k for k in range(len(tuple(nodes)))),
            )
            for number, (name, nodes) in enumerate(offered)
        ),
    )
    answer = solve(problem)
    assert answer.cost_us is not None and answer.cost_us <= case.cost + 1e-6


def test_upstream_loses_candidates_of_one_spec_on_the_same_nodes() -> None:
    twice = byoc_spec(H, [TABLE[0], ("again", TABLE[0][1])], "NoFusion", 1)
    found = upstream_candidates(twice, graphs.single_op())
    assert len(found) == 2
    assert prune_candidates(found) == []
