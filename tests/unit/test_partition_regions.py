"""Regions, greedy partitions and blocks: their defining properties on many graphs."""

from __future__ import annotations

import random
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.blocks import blocks
from collage_engine.partition.fuse_ops import MAX_GROUP, fused_groups
from collage_engine.partition.greedy import greedy
from collage_engine.partition.patterns import anything, constant, op
from collage_engine.partition.regions import merge_regions
from collage_engine.partition.rules import CandidateSource, byoc_rules
from collage_engine.records.graph import members, operator_set
from tests.support.graphs import (
    GraphBuilder,
    chain,
    instance,
    random_graph,
    resnet,
)


def quotient_is_acyclic(graph: DataflowGraph, parts: list[int]) -> bool:
    """Whether the parts (covering everything) can run one after the other."""
    home = {o: p for p, part in enumerate(parts) for o in members(part)}
    needs = {
        p: {home[s] for o in members(part) for s in graph.inputs[o]} - {p}
        for p, part in enumerate(parts)
    }
    while needs:
        ready = [p for p, above in needs.items() if not above]
        if not ready:
            return False
        for p in ready:
            del needs[p]
        for above in needs.values():
            above.difference_update(ready)
    return True


def connected(graph: DataflowGraph, operators: int) -> bool:
    """Whether a set of operators is one piece, directions of edges ignored."""
    return len(graph.components(operators)) <= 1


def some_owner(rng: random.Random, graph: DataflowGraph, owners: int) -> list[int | None]:
    return [None if (r := rng.randrange(owners + 1)) == owners else r for _ in range(len(graph))]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 16))
def test_merged_regions_run_in_some_order(seed: int, operators: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(rng, operators)
    owner = some_owner(rng, graph, 2)
    merged = merge_regions(graph, owner)
    assert sum(bits for _, bits in merged) == graph.everything  # Disjoint, and all of them.
    for own, bits in merged:
        assert graph.convex(bits) and connected(graph, bits)
        if own is None:
            assert bits == graph.complete(bits & -bits)
            assert bits.bit_count() > 1 or owner[bits.bit_length() - 1] is None
        else:
            assert all(owner[o] == own for o in members(bits))
    assert quotient_is_acyclic(graph, [bits for _, bits in merged])


def source(
    graph, name: str, ops: set[str] | None, patterns=(), lowers_to_tir: bool = False
) -> CandidateSource:
    spec = byoc_rules(patterns)

    def supports(index: int) -> str | None:
        op_name = graph.nodes[index].op
        return None if ops is None or op_name in ops else f"{name} has no {op_name}"

    return CandidateSource(instance(name), spec, supports, lowers_to_tir=lowers_to_tir)


class TestGreedy:
    def test_first_toolchain_wins(self) -> None:
        graph = chain("abs", "exp", "tanh")
        a = source(graph, "a", {"abs", "exp"})
        b = source(graph, "b", {"exp", "tanh"})
        cover = greedy(graph, [a, b])
        assert [(p.source.instance.id, p.operators) for p in cover.partitions] == [
            ("a", (0, 1)),
            ("b", (2,)),
        ]
        cover = greedy(graph, [b, a])
        assert [(p.source.instance.id, p.operators) for p in cover.partitions] == [
            ("a", (0,)),
            ("b", (1, 2)),
        ]

    def test_what_nobody_takes_is_named(self) -> None:
        graph = chain("abs", "exp")
        assert greedy(graph, [source(graph, "a", {"abs"})]).uncovered == (1,)

    def test_a_composite_is_never_torn_apart(self) -> None:
        # The convolution could join the region above, but its addition then could not: it also
        # reads what another toolchain makes from that region.
        b = GraphBuilder((1, 64, 8, 8))
        first = b.call("nn.relu", b.parameter())
        odd = b.call("mean", first)
        conv = b.call("nn.conv2d", first, b.constant((3, 3)))
        graph = b.build(b.call("add", conv, odd))
        pattern = op("add", op("nn.conv2d", anything(), constant()), anything())
        taker = source(graph, "a", {"nn.conv2d", "nn.relu", "add"}, [("conv_sum", pattern)])
        cover = greedy(graph, [taker, source(graph, "tvm", None, lowers_to_tir=True)])
        assert [(p.source.instance.id, p.operators) for p in cover.partitions] == [
            ("a", (0,)),
            ("tvm", (1,)),
            ("a", (2, 3)),
        ]
        assert cover.partitions[2].composites == (("conv_sum", (2, 3)),)

    def test_is_an_acyclic_cover(self) -> None:
        for seed in range(100):
            rng = random.Random(seed)
            graph = random_graph(rng, 14)
            present = sorted({n.op for n in graph.nodes})
            mine = {o for o in present if rng.random() < 0.5}
            sources = [source(graph, "a", mine), source(graph, "tvm", None, lowers_to_tir=True)]
            parts = [operator_set(p.operators) for p in greedy(graph, sources).partitions]
            assert sum(parts) == graph.everything
            assert quotient_is_acyclic(graph, parts)


class TestBlocks:
    def test_residual_blocks_are_among_them(self) -> None:
        graph = resnet(8)
        found = blocks(graph, fused_groups(graph))
        adds = [
            o for o in graph.operators if graph.nodes[o].op == "add" and len(graph.inputs[o]) == 2
        ]
        for first, second in pairwise(adds):
            start, end = first + 1, second + 1  # From one block's relu to the next one's.
            wanted = graph.downstream[start] & graph.upstream[end] | 1 << end
            assert wanted in found

    def test_bounded(self) -> None:
        graph = resnet(16)
        groups = fused_groups(graph)
        found = blocks(graph, groups)
        assert len(found) == len(set(found)) < 6 * len(groups)
        assert all(2 <= block.bit_count() <= MAX_GROUP for block in found)

    def test_convex(self) -> None:
        for seed in range(100):
            graph = random_graph(random.Random(seed), 16)
            for block in blocks(graph, fused_groups(graph)):
                assert graph.convex(block), seed
