"""Upstream's pass tests (test_pass_collage_partition.py) in compatibility mode.

And in normal mode: our candidates for the same specs never give a worse cover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members
from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.patterns import anything, op
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.numbering import NodeSet
from tests.support import upstream_graphs as graphs
from tests.support.graphs import GraphBuilder
from tests.support.upstream_collage import (
    HostRule,
    UpstreamCandidate,
    prune_candidates,
    upstream_candidates,
)
from tests.support.upstream_search import (
    MockEstimator,
    byoc_spec,
    collage_partition,
    max_coalesce,
    tvm_spec,
)

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
    depths: tuple[int, int]
    counts: tuple[int, int, int] | None
    """Candidates of T, of H, and of both after pruning."""
    path: list[tuple[tuple[int, ...], str, float]]
    placed: list[tuple[tuple[int, ...], str]]


CASES = [
    Case(
        "single_op_llvm", graphs.single_op, (1, 2), (8, 8), (1, 1, 2), [((2,), T, 1)], [((2,), T)]
    ),
    Case(
        "single_op_byoc", graphs.single_op, (2, 1), (8, 8), (1, 1, 2), [((2,), H, 1)], [((2,), H)]
    ),
    Case(
        "diamond_valid_topology_1",
        graphs.diamond_valid_topology,
        (2, 1),
        (1, 1),
        (4, 3, 7),
        [((4,), H, 1), ((5,), T, 2), ((6,), H, 1), ((7,), H, 1)],
        [((4,), H), ((5,), T), ((6, 7), H)],
    ),
    Case(
        "diamond_valid_topology_3",
        graphs.diamond_valid_topology,
        (2, 1),
        (1, 3),
        None,
        [((4,), H, 1), ((5,), T, 2), ((6, 7), H, 1.9)],
        [((4,), H), ((5,), T), ((6, 7), H)],
    ),
    Case(
        "tvm_max_depth_1",
        graphs.relu_chain,
        (100, 99),
        (1, 1),
        (3, 3, 6),
        [((2,), H, 99), ((3,), H, 99), ((4,), H, 99)],
        [((2, 3, 4), H)],
    ),
    Case(
        "tvm_max_depth_2",
        graphs.relu_chain,
        (100, 99),
        (2, 1),
        (5, 3, 8),
        [((2,), H, 99), ((3, 4), T, 190)],
        [((2,), H), ((3, 4), T)],
    ),
    Case(
        "tvm_max_depth_3",
        graphs.relu_chain,
        (100, 99),
        (3, 1),
        (6, 3, 9),
        [((2, 3, 4), T, 271)],
        [((2, 3, 4), T)],
    ),
    Case(
        "byoc_max_depth_1",
        graphs.relu_chain,
        (99, 100),
        (1, 1),
        (3, 3, 6),
        [((2,), T, 99), ((3,), T, 99), ((4,), T, 99)],
        [((2, 3, 4), T)],
    ),
    Case(
        "byoc_max_depth_2",
        graphs.relu_chain,
        (99, 100),
        (1, 2),
        (3, 5, 8),
        [((2,), T, 99), ((3, 4), H, 190)],
        [((2,), T), ((3, 4), H)],
    ),
    Case(
        "byoc_max_depth_3",
        graphs.relu_chain,
        (99, 100),
        (1, 3),
        (3, 6, 9),
        [((2, 3, 4), H, 271)],
        [((2, 3, 4), H)],
    ),
    Case(
        "output_tuple",
        graphs.output_tuple,
        (2, 1),
        (2, 2),
        None,
        [((2,), H, 1), ((3,), H, 1), ((5,), T, 2)],
        [((2, 3), H), ((5,), T)],
    ),
    Case(
        "intermediate_tuple",
        graphs.intermediate_tuple,
        (2, 1),
        (3, 5),
        None,
        [((3,), H, 1), ((4,), H, 1), ((6,), H, 1)],
        [((3, 4), H), ((6,), H)],
    ),
    Case(
        "fusion_benefit",
        graphs.fusion_benefit,
        (5, 6),
        (1, 5),
        None,
        [((4, 5, 7, 8, 9), H, 24.5706), ((6,), T, 5), ((10,), T, 5)],
        [((4, 5, 7, 8, 9), H), ((6,), T), ((10,), T)],
    ),
    Case(
        "double_residual",
        graphs.double_residual,
        (2, 1),
        (4, 4),
        None,
        [((4,), H, 1), ((5,), T, 2), ((6, 7), H, 1.9)],
        [((4,), H), ((5,), T), ((6, 7), H)],
    ),
    Case(
        "pruning_heuristic",
        graphs.pruning_heuristic,
        (2, 1),
        (4, 4),
        (7, 7, 2),
        [((3, 4, 5, 6), H, 3.439)],
        [((3, 4, 5, 6), H)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
class TestPass:
    def test_as_upstream(self, case: Case) -> None:
        limit = 2 if case.name == "pruning_heuristic" else 0
        estimator = MockEstimator({T: case.costs[0], H: case.costs[1]}, limit)
        result = collage_partition(case.graph(), specs(*case.depths), estimator)
        assert [(m, s, pytest.approx(c)) for m, s, c in result.chosen()] == case.path
        assert result.placed() == case.placed
        assert result.cost == pytest.approx(sum(c for _, _, c in case.path))
        if case.counts is not None:
            by_spec = [c.spec_name for c in result.candidates]
            pruned = sum(c.spec_name != "host" for c in result.pruned)
            assert (by_spec.count(T), by_spec.count(H), pruned) == case.counts

    def test_normal_is_never_worse(self, case: Case) -> None:
        graph = case.graph()
        costs = {T: case.costs[0], H: case.costs[1]}
        upstream = collage_partition(graph, specs(*case.depths), MockEstimator(costs))
        estimator = MockEstimator(costs)
        calls = call_graph(graph)
        offered: dict[NodeSet, float] = {}
        for spec in specs(*case.depths):
            for candidate in spec.candidates(graph):
                operators = calls.from_nodes(candidate.sub_graph.inside)
                cost = estimator(UpstreamCandidate(candidate.sub_graph, candidate.rule, spec))
                offered[operators] = min(cost, offered.get(operators, cost))
        assert least_cover(graph, offered) <= upstream.cost + 1e-9


def least_cover(graph: DataflowGraph, offered: dict[NodeSet, float]) -> float:
    """Cost of the cheapest acyclic disjoint cover, by dynamic programming over what is done."""
    calls = call_graph(graph)
    needs = {o: sum(1 << s for s in sources) for o, sources in enumerate(calls.inputs)}
    best = {0: 0.0}
    todo = [0]
    while todo:
        done = min(todo, key=int.bit_count)
        todo.remove(done)
        for operators, cost in offered.items():
            if operators & done or any(needs[o] & ~done & ~operators for o in members(operators)):
                continue
            after = done | operators
            if after not in best:
                todo.append(after)
            best[after] = min(best.get(after, float("inf")), best[done] + cost)
    return best[calls.everything]


class TestEstimate:
    """candidate_partition_test.cc."""

    def graph(self) -> tuple[DataflowGraph, SubGraph]:
        graph = graphs.standard()
        wrapped = SubGraph(graph, 0b11000).with_attributes({"Primitive": 1, "Compiler": "llvm"})
        return graph, wrapped

    def candidate(self, sub_graph: SubGraph, validate=None, cost: float | None = None):
        spec = PartitionSpec("llvm", HostRule(), validate)
        return UpstreamCandidate(sub_graph, "test", spec, cost)

    def test_simple(self) -> None:
        assert MockEstimator({"llvm": 3})(self.candidate(self.graph()[1])) == pytest.approx(5.7)

    def test_already_cached(self) -> None:
        estimator = MockEstimator({"llvm": 3})
        assert estimator(self.candidate(self.graph()[1], cost=42.0)) == 42.0
        assert estimator.estimates == 0

    def test_invalid(self) -> None:
        candidate = self.candidate(self.graph()[1], validate=lambda _: "unsupported")
        assert MockEstimator({"llvm": 3})(candidate) == float("inf")

    def test_equal_functions_are_estimated_once(self) -> None:
        b = GraphBuilder()
        x = b.parameter()
        b.skip_to(4)
        a1 = b.call("abs", x)
        r1 = b.call("nn.relu", a1)
        a2 = b.call("abs", r1)
        r2 = b.call("nn.relu", a2)
        graph = graphs.finish(b, b.call("add", r1, r2))
        estimator = MockEstimator({"llvm": 3})
        first = estimator(self.candidate(SubGraph(graph, 0b110000)))
        second = estimator(self.candidate(SubGraph(graph, 0b11000000)))
        assert first == second == pytest.approx(5.7)
        assert estimator.estimates == 1


class TestUpstreamDefects:
    def test_d5_duplicates_vanish(self) -> None:
        twice = byoc_spec(H, [TABLE[0], ("again", TABLE[0][1])], "NoFusion", 1)
        found = upstream_candidates(twice, graphs.single_op())
        assert len(found) == 2
        assert prune_candidates(found) == []

    def test_d3_coalesce_uses_a_removed_partition_again(self) -> None:
        b = GraphBuilder()
        x = b.parameter()
        b.skip_to(3)
        r = b.call("nn.relu", x)
        left = b.call("nn.relu", r)
        b.skip_to(6)
        right = b.call("nn.relu", r)
        graph = graphs.finish(b, left, right)
        spec = tvm_spec(T, 1)
        merged = max_coalesce(upstream_candidates(spec, graph))
        assert [c.sub_graph.members for c in merged] == [(3, 4), (3, 6)]

    def test_d4_coalesce_makes_a_cycle(self) -> None:
        b = GraphBuilder()
        x = b.parameter()
        a, c = b.call("abs", x), b.call("tanh", x)
        first = b.call("add", a, c, name="b")
        second = b.call("multiply", a, c, name="d")
        graph = b.build(first, second)
        wanted = {"s1": {a, first}, "s2": {c, second}}
        chosen = []
        for name, nodes in wanted.items():
            found = upstream_candidates(tvm_spec(name, 1), graph)
            chosen += [c for c in found if set(c.sub_graph.members) <= nodes]
        merged = max_coalesce(chosen)
        assert [set(m.sub_graph.members) for m in merged] == [{a, first}, {c, second}]
        downstream = graph.downstream
        assert downstream[a] >> second & 1 and downstream[c] >> first & 1
