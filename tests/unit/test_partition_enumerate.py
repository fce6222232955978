"""Enumeration: what is always there, what never is, provenance, reasons."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import candidate_id
from collage_engine.partition.enumerate import (
    CandidateSource,
    enumerate_candidates,
    why_not,
)
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.partition.rules import PartitionRule, byoc_rules, fusion_rules
from collage_engine.records.candidate import Candidate, Refusal
from collage_engine.records.graph import members, operator_set
from tests.support.graphs import (
    chain,
    instance,
    random_graph,
)

CONV = op("nn.conv2d", anything("data"), constant("weight"))
BIASED = op("add", CONV, constant("bias"))
PATTERNS = [
    ("conv2d_bias_sum_relu", op("nn.relu", op("add", BIASED, anything()))),
    ("conv2d_bias_relu", op("nn.relu", BIASED)),
    ("conv2d_bias", BIASED),
    ("conv2d", CONV),
    ("matmul", op("matmul", anything(), anything())),
]
NOT_IN_B = {"mean", "reshape", "concat", "nn.softmax", "split"}


def sources(graph) -> list[CandidateSource]:
    """Three toolchains: one native that takes all, one with patterns, one that takes all."""

    def everything(index: int) -> str | None:
        return None

    def some(index: int) -> str | None:
        name = graph.nodes[index].op
        return f"b has no {name}" if name in NOT_IN_B else None

    def make(
        name: str, rule: PartitionRule, supports, lowers_to_tir: bool = False
    ) -> CandidateSource:
        return CandidateSource(instance(name), rule, supports, lowers_to_tir=lowers_to_tir)

    return [
        make("a", fusion_rules("tvm"), everything, lowers_to_tir=True),
        make("b", byoc_rules(PATTERNS, True, name="b"), some),
        make("c", byoc_rules(PATTERNS, name="c"), everything),
    ]


def of(found: Sequence[Candidate], name: str) -> list[Candidate]:
    """Return the candidates of one instance."""
    return [candidate for candidate in found if candidate.instance.id == name]


def check_invariants(graph, found: Sequence[Candidate]) -> None:
    assert len({c.id for c in found}) == len(found)
    supports = {o.instance.id: o.supports for o in sources(graph)}
    for candidate in found:
        operators = operator_set(candidate.nodes)
        assert candidate.nodes == tuple(members(operators)) and candidate.nodes
        assert candidate.nodes == graph.record.whole_nodes(candidate.nodes)
        assert graph.convex(operators)
        for operator in candidate.nodes:
            assert supports[candidate.instance.id](operator) is None
        assert not any(graph.values[index].constant for index in graph.boundary(operators)[0])
        seen: set[int] = set()
        for _, nodes in candidate.composites:
            assert set(nodes) <= set(candidate.nodes) and not seen & set(nodes)
            seen |= set(nodes)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_invariants_on_random_graphs(seed: int, operators: int) -> None:
    graph = random_graph(random.Random(seed), operators)
    found = enumerate_candidates(graph, sources(graph))
    check_invariants(graph, found)
    for source in sources(graph):
        mine = {c.nodes: c for c in of(found, source.instance.id)}
        for operator in graph.operators:
            held = any(operator in nodes for nodes in mine)
            assert held == (source.supports(operator) is None)
    whole = tuple(range(len(graph)))
    for name in "ac":
        record = next(c for c in of(found, name) if c.nodes == whole)
        assert "whole-model" in record.rule


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 20))
def test_candidates_consist_of_whole_nodes(seed: int, operators: int) -> None:
    rng = random.Random(seed)
    graph = with_nodes(random_graph(rng, operators), rng)
    found = enumerate_candidates(graph, sources(graph))
    check_invariants(graph, found)
    for source in sources(graph):
        takes = graph.whole_part(
            operator_set(n for n in graph.operators if source.supports(n) is None)
        )
        held = {n for c in of(found, source.instance.id) for n in c.nodes}
        assert held == set(members(takes)), "each node that it takes as a whole is a candidate"
        for number in set(range(len(graph))) - held:
            assert why_not(graph, source, number).kind == "judged"


def with_nodes(graph: DataflowGraph, rng: random.Random) -> DataflowGraph:
    """Return the graph with ONNX nodes of several operators: neighbours, but not always convex."""
    record, owner = graph.record, dict[int, int]()
    for index in graph.operators:
        above = [owner[i] for i in graph.inputs[index]]
        owner[index] = rng.choice(above) if above and rng.random() < 0.4 else len(owner)
    nodes = [msgspec.structs.replace(node, onnx_node=owner[node.index]) for node in graph.nodes]
    return DataflowGraph(msgspec.structs.replace(record, nodes=tuple(nodes)))


class TestWhyNot:
    def test_unsupported(self) -> None:
        graph = chain("abs", "mean")
        b = next(source for source in sources(graph) if source.instance.id == "b")
        assert why_not(graph, b, 1) == Refusal("judged", "mean", "b has no mean")

    def test_what_no_partition_holds(self) -> None:
        graph = chain("nn.softmax")
        spec = fusion_rules("tvm")
        found = why_not(graph, CandidateSource(instance("a"), spec, lambda i: None), 0)
        assert found == Refusal("alone", "nn.softmax")


class TestRecords:
    def test_id_is_stable_and_of_the_set(self) -> None:
        name = instance("onnxruntime", level="basic")
        first = candidate_id(name, [3, 1, 2])
        assert first == candidate_id(name, (1, 2, 3)) != candidate_id(name, (1, 2))
        prefix, digits = first.rsplit(":", 1)
        assert prefix == "onnxruntime[level=basic]" and len(digits) == 10
