"""The combine fix-point against a brute-force one, and its limits."""

from __future__ import annotations

import cProfile
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition import combiners
from collage_engine.partition.rules import fusion_rules
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.graph import KIND_ORDER
from tests.support.graphs import GraphBuilder, chain, random_graph, resnet

FUSION = (("anchor", "broadcast"), ("broadcast", "reduction"), ("injective", "injective"))
UNLIMITED = {"MOST_EXITS": 10**6, "MOST_AT_OPERATOR": 10**6, "STEPS": 10**6}


def combined(graph: DataflowGraph, **limits: int) -> set[int]:
    """Return what calls by themselves are joined to, by other limits where some are given."""
    seeds = [
        SubGraph(graph, 1 << node.index, kind=node.kind)
        for node in graph.nodes
        if KIND_ORDER[node.kind] <= KIND_ORDER["anchor"]
    ]
    with pytest.MonkeyPatch.context() as patch:
        for name, limit in limits.items():
            patch.setattr(combiners, name, limit)
        found = [sub_graph.inside for sub_graph in combiners.combine(graph, seeds)]
    assert len({*found}) == len(found)
    return {*found}


class Naive:
    """Rules on plain sets of nodes, with path searches, tried on all pairs until nothing is new."""

    def __init__(self, graph: DataflowGraph, simple, depth: int) -> None:
        self.graph = graph
        self.simple = simple
        self.max_depth = depth

    def kind(self, nodes: frozenset[int]) -> int:
        return max(KIND_ORDER[self.graph.nodes[i].kind] for i in nodes)

    def depth(self, nodes: frozenset[int]) -> int:
        """Longest path from an entry to an exit, by enumerating paths."""
        graph, deepest = self.graph, 0

        def enters(i: int) -> bool:
            read = [graph.values[s] for s in graph.nodes[i].inputs]
            weights = (value.constant and value.type.shape != () for value in read)
            made = (not value.constant and value.producer not in nodes for value in read)
            return any(weights) or any(made)

        def leaves(i: int) -> bool:
            return bool(graph.leaving >> i & 1) or any(u not in nodes for u in graph.users[i])

        def walk(i: int, length: int) -> None:
            nonlocal deepest
            if leaves(i):
                deepest = max(deepest, length)
            for user in graph.users[i]:
                if user in nodes:
                    walk(user, length + 1)

        for i in nodes:
            if enters(i):
                walk(i, 1)
        return deepest

    def convex(self, nodes: frozenset[int]) -> bool:
        seen: set[int] = set()
        work = [u for i in nodes for u in self.graph.users[i] if u not in nodes]
        while work:
            index = work.pop()
            if index in nodes:
                return False
            if index not in seen:
                seen.add(index)
                work.extend(self.graph.users[index])
        return True

    def join(self, up: frozenset[int], down: frozenset[int]) -> frozenset[int] | None:
        graph = self.graph
        readers = {u for i in up for u in graph.users[i] if graph.nodes[u].op != "concat"}
        if up & down or not readers & down:
            return None
        if self.depth(up) + self.depth(down) > self.max_depth:
            return None
        kinds = self.kind(up), self.kind(down)
        if not any(kinds[0] <= KIND_ORDER[u] and kinds[1] <= KIND_ORDER[d] for u, d in self.simple):
            return None
        return up | down if self.convex(up | down) else None

    def run(self) -> set[int]:
        found = {
            frozenset({n.index})
            for n in self.graph.nodes
            if KIND_ORDER[n.kind] <= KIND_ORDER["anchor"]
        }
        while True:
            new = {j for a in found for b in found if (j := self.join(a, b))}
            if new <= found:
                return {sum(1 << i for i in c) for c in found}
            found |= new


@pytest.mark.parametrize("lists", [False, True])
@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 4))
def test_equals_brute_force(lists: bool, seed: int, operators: int, depth: int) -> None:
    graph = random_graph(random.Random(seed), operators, lists=lists)
    found = combined(graph, **UNLIMITED, MOST_DEPTH=depth)
    assert found == Naive(graph, FUSION, depth).run()


def star(width: int) -> DataflowGraph:
    b = GraphBuilder()
    x = b.call("exp", b.parameter())
    return b.build(*[b.call("abs", x) for _ in range(width)])


def test_limits_bound_wide_graphs() -> None:
    unlimited = combined(star(8), **UNLIMITED)
    assert len(unlimited) == 2**8 - 1 + 1 + 8  # Every subset of readers with their source.
    graph = star(8)
    found = combined(graph, **UNLIMITED | {"MOST_EXITS": 3})
    # With its source a reader set has one exit more, the source, until all readers are inside.
    assert max(len(SubGraph(graph, inside).exit) for inside in found) <= 3
    assert len(found) < 60
    assert len(combined(star(8), **UNLIMITED | {"MOST_AT_OPERATOR": 5})) == 8 + 5


def test_a_budget_of_steps_leaves_the_largest_out() -> None:
    graph = chain(*["exp"] * 50)
    few = combined(graph, STEPS=100)
    everything = combined(graph, **UNLIMITED)
    assert few < everything
    assert {bits for bits in everything if bits.bit_count() == 2} <= few
    assert combined(graph, STEPS=1000) == everything


def lattice(width: int, height: int) -> DataflowGraph:
    """Return rows of additions, each of two neighbours in the row above."""
    b = GraphBuilder()
    row = [b.parameter() for _ in range(width)]
    for _ in range(height):
        row = [b.call("add", row[i], row[(i + 1) % width]) for i in range(width)]
    return b.build(*row)


def branching(blocks: int, branches: int, ops: Sequence[str]) -> DataflowGraph:
    """Return blocks of equal branches, concatenated, one block after the other."""
    b = GraphBuilder()
    value = b.parameter()
    for _ in range(blocks):
        ends = [value] * branches
        for op in ops:
            ends = [b.call(op, end) for end in ends]
        value = b.call("concat", *ends)
    return b.build(value)


INTRICATE = {
    "lattice": lambda: lattice(25, 20),
    "long lattice": lambda: lattice(5, 100),
    "chain": lambda: chain(*["exp"] * 500),
    "inception": lambda: branching(30, 4, ("exp",) * 4),
    "harmonics": lambda: branching(6, 8, ("strided_slice", "nn.pad", "multiply") * 3),
    "wide": lambda: branching(10, 24, ("reshape", "exp")),
    "random": lambda: random_graph(random.Random(0), 500),
    "random without lists": lambda: random_graph(random.Random(1), 500, lists=False),
}


@pytest.mark.parametrize("name", INTRICATE)
def test_work_is_bounded_for_any_structure(name: str) -> None:
    graph = INTRICATE[name]()
    profile = cProfile.Profile(builtins=False)
    found = profile.runcall(fusion_rules("tvm").candidates, graph)
    calls = sum(row.callcount for row in profile.getstats())
    operators = len(graph.operators)
    # 10,000 calls of functions an operator are less than 2 s for 500 operators.
    assert calls < 10_000 * operators
    assert operators / 2 < len(found) < 16 * operators


def test_limits_leave_nothing_out_of_a_usual_model() -> None:
    for graph in (resnet(16), branching(3, 4, ("nn.conv2d", "nn.relu"))):
        assert combined(graph) == combined(graph, **UNLIMITED)
