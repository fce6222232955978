"""Upstream's rule tests (partition_rule_test.cc), in compatibility and in normal mode.

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
from collage_engine.partition.combiners import (
    A_TO_A,
    A_TO_B,
    B_TO_R,
    I_TO_I,
    AllSimple,
    TupleArgument,
    TupleProjection,
)
from collage_engine.partition.patterns import anything, op
from collage_engine.partition.rules import (
    CombineRule,
    CompositeRule,
    OnlyValidRule,
    OpCallByKindRule,
    PartitionRule,
    PatternRule,
    PrimitiveRule,
    UnionRule,
)
from collage_engine.partition.spec import PartitionSpec
from collage_engine.partition.sub_graph import SubGraphConfig
from collage_engine.search.api import solve
from collage_engine.search.problem import Problem, ProblemCandidate, ProblemNode
from tests.support import upstream_graphs as graphs
from tests.support.graphs import GraphBuilder
from tests.support.upstream_collage import (
    ConstantArgument,
    HostRule,
    UpstreamAbort,
    as_upstream,
    byoc_spec,
    prune_candidates,
    tvm_spec,
    upstream_candidates,
)
from tests.support.upstream_graphs import gpt2_ops, gpt2_tuples, standard, variant

MODES = ("upstream", "normal")

SINGLES = {(i,) for i in (6, 8, 9, 11, 15, 17, 18, 20, 21, 23, 24)}
A_B_PAIRS = {(11, 24), (15, 17), (17, 18), (18, 20), (20, 21), (21, 23), (23, 24)}
A_B = (
    SINGLES
    | A_B_PAIRS
    | {(6, 8), (9, 11), (9, 15), (9, 11, 15), (9, 15, 17), (9, 11, 15, 17)}
    | {(15, 17, 18), (17, 18, 20), (18, 20, 21), (20, 21, 23), (21, 23, 24)}
)
MISSED_BY_THE_SKIP_TEST = {(11, 23, 24), (11, 21, 23, 24)}
TUPLE_SINGLES = {(i,) for i in (6, 8, 9, 10, 12, 13, 14, 16)}


def found(graph: DataflowGraph, rule: PartitionRule, mode: str, *, external: bool = False):
    rule = as_upstream(rule) if mode == "upstream" else rule
    spec = PartitionSpec("test_spec", rule, external=external)
    return spec.candidates(graph)


def sets(graph: DataflowGraph, rule: PartitionRule, mode: str) -> set[tuple[int, ...]]:
    candidates = found(graph, rule, mode)
    result = {c.sub_graph.members for c in candidates}
    assert len(result) == len(candidates), "a set was found twice"
    return result


def by_kind(*combiners, depth: int = 3) -> PartitionRule:
    return CombineRule("combine", OpCallByKindRule(), combiners, depth)


def relu() -> PatternRule:
    return PatternRule("relu_pattern", op("nn.relu", anything()))


@pytest.mark.parametrize("mode", MODES)
class TestBaseRules:
    def test_single_op_pattern(self, mode: str) -> None:
        assert sets(standard(), relu(), mode) == {(4,), (5,)}

    def test_overlapping_patterns(self, mode: str) -> None:
        below = op("nn.relu", anything()) | op("abs", anything())
        assert sets(standard(), PatternRule("p", op("nn.relu", below)), mode) == {(3, 4), (4, 5)}

    def test_composite(self, mode: str) -> None:
        candidates = found(standard(), CompositeRule("composite", relu()), mode)
        assert [c.composites for c in candidates] == [
            (("composite", 1 << 4),),
            (("composite", 1 << 5),),
        ]

    @pytest.mark.parametrize("external", [False, True])
    def test_primitive(self, mode: str, external: bool) -> None:
        candidates = found(standard(), PrimitiveRule("p", relu()), mode, external=external)
        assert [c.sub_graph.members for c in candidates] == [(4,), (5,)]
        wanted = {"Primitive": 1} | ({"Compiler": "test_spec"} if external else {})
        for candidate in candidates:
            (nested,) = candidate.sub_graph.nested
            assert dict(nested.attributes) == wanted
            assert nested.sub_graph.inside == candidate.sub_graph.inside

    def test_union(self, mode: str) -> None:
        absolute = PatternRule("abs_pattern", op("abs", anything()))
        assert sets(standard(), UnionRule("union", (absolute, relu())), mode) == {(3,), (4,), (5,)}

    def test_op_call_by_kind_leaves_opaque_out(self, mode: str) -> None:
        assert sets(variant(), OpCallByKindRule(), mode) == {(4,), (5,)}

    def test_host(self, mode: str) -> None:
        candidates = found(gpt2_tuples(), HostRule(), mode)
        indices = (0, 1, 2, 3, 4, 5, 7, 11, 15, 17)
        assert [c.sub_graph.members for c in candidates] == [(i,) for i in indices]
        assert {c.cost for c in candidates} == {0.0}


class TestCombine:
    def test_by_kind_upstream(self) -> None:
        expected = sets(gpt2_ops(), by_kind(AllSimple((A_TO_B,))), "upstream")
        assert expected == A_B and len(expected) == 29

    def test_by_kind_corrected(self) -> None:
        expected = sets(gpt2_ops(), by_kind(AllSimple((A_TO_B,))), "normal")
        assert expected == A_B | MISSED_BY_THE_SKIP_TEST and len(expected) == 31

    @pytest.mark.parametrize("mode", MODES)
    def test_tuple_argument(self, mode: str) -> None:
        rule = by_kind(TupleArgument())
        assert sets(gpt2_tuples(), rule, mode) == TUPLE_SINGLES | {(10, 14, 15, 16)}

    @pytest.mark.parametrize("mode", MODES)
    def test_tuple_projection(self, mode: str) -> None:
        rule = by_kind(TupleProjection())
        wanted = TUPLE_SINGLES | {(6, 7), (6, 11), (6, 7, 11)}
        assert sets(gpt2_tuples(), rule, mode) == wanted

    @pytest.mark.parametrize("mode", MODES)
    def test_constant(self, mode: str) -> None:
        rule = by_kind(ConstantArgument())
        assert sets(gpt2_ops(), rule, mode) == SINGLES | {(5, 6), (7, 8)}

    @pytest.mark.parametrize("mode", MODES)
    def test_mixed(self, mode: str) -> None:
        rule = by_kind(AllSimple((A_TO_B, B_TO_R, I_TO_I)), ConstantArgument())
        wanted = A_B | {(5, 6), (7, 8), (8, 9), (8, 9, 11), (8, 9, 15), (5, 6, 8), (5, 6, 7, 8)}
        wanted |= {(7, 8, 9), (7, 8, 9, 11), (7, 8, 9, 15)}
        if mode == "normal":
            wanted |= MISSED_BY_THE_SKIP_TEST | {(6, 7, 8), (8, 9, 11, 15), (7, 8, 9, 11, 15)}
        assert sets(gpt2_ops(), rule, mode) == wanted

    @pytest.mark.parametrize("mode", MODES)
    def test_only_valid(self, mode: str) -> None:
        config = SubGraphConfig(max_exits=1, max_depth=2)
        rule = OnlyValidRule("only_valid", by_kind(AllSimple((A_TO_B,))), config)
        # {11,23,24} has depth 2 and one exit: upstream would keep it, had it found it.
        wanted = SINGLES | A_B_PAIRS | {(6, 8)}
        wanted |= {(11, 23, 24)} if mode == "normal" else set()
        assert sets(gpt2_ops(), rule, mode) == wanted


class TestDefectsNotRepeated:
    def two_branches(self) -> DataflowGraph:
        b = GraphBuilder()
        x, y = b.parameter("x"), b.parameter("y")
        left, right = b.call("abs", x), b.call("nn.relu", y)
        return b.build(b.call("add", left, right))

    def test_d1_both_branches_and_their_addition(self) -> None:
        rule = by_kind(AllSimple((A_TO_B,)))
        assert (2, 3, 4) not in sets(self.two_branches(), rule, "upstream")
        assert (2, 3, 4) in sets(self.two_branches(), rule, "normal")

    def same_field_twice(self) -> DataflowGraph:
        b = GraphBuilder()
        r = b.call("nn.relu", b.parameter())
        return b.build(b.call("concatenate", b.tuple(r, r)))

    def field_made_of_field(self) -> DataflowGraph:
        b = GraphBuilder()
        r = b.call("nn.relu", b.parameter())
        joined = b.call("concatenate", b.tuple(r, b.call("nn.relu", r)))
        return b.build(b.call("nn.relu", joined))

    def test_d2_aborts_upstream(self) -> None:
        with pytest.raises(UpstreamAbort, match="overlap"):
            sets(self.same_field_twice(), by_kind(TupleArgument()), "upstream")
        rule = by_kind(AllSimple((A_TO_B, I_TO_I)), TupleArgument(), depth=8)
        with pytest.raises(UpstreamAbort, match="overlap"):
            sets(self.field_made_of_field(), rule, "upstream")

    def test_d2_one_producer_serves_both_fields(self) -> None:
        assert sets(self.same_field_twice(), by_kind(TupleArgument()), "normal") == {
            (1,),
            (3,),
            (1, 2, 3),
        }

    def test_d2_overlapping_producers_are_not_joined(self) -> None:
        rule = by_kind(AllSimple((A_TO_B, I_TO_I)), TupleArgument(), depth=8)
        result = sets(self.field_made_of_field(), rule, "normal")
        assert {(1, 2, 3, 4), (1, 2, 3, 4, 5)} <= result
        assert len(result) == len({frozenset(s) for s in result})

    def test_d5_overlapping_composites_are_invalid(self) -> None:
        graph = standard()
        spec = PartitionSpec("s", relu())
        (first, second) = spec.candidates(graph)
        whole = first.sub_graph.union(second.sub_graph)
        overlapping = whole.with_attributes({"Composite": "a"}).nested + (
            second.sub_graph.with_attributes({"Composite": "b"}).nested
        )
        broken = type(whole)(graph, whole.inside, overlapping)
        assert "overlap" in (broken.is_valid(SubGraphConfig()) or "")

    def test_duplicate_patterns_are_one_candidate(self) -> None:
        pads = UnionRule("", (CompositeRule("a", relu()), CompositeRule("a", relu())))
        rule = CombineRule("combine", pads, (AllSimple((A_TO_A,)),), 3)
        assert sets(standard(), rule, "normal") == {(4,), (5,), (4, 5)}


def test_fewest_composites_win_for_equal_nodes() -> None:
    single = CompositeRule("relu", relu())
    pair = CompositeRule("pair", PatternRule("p", op("nn.relu", op("nn.relu", anything()))))
    rule = CombineRule("combine", UnionRule("", (single, pair)), (AllSimple((A_TO_A,)),), 4)
    graph = standard()
    whole = [c for c in found(graph, rule, "normal") if c.sub_graph.members == (4, 5)]
    assert [c.composites for c in whole] == [(("pair", 0b110000),)]


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
