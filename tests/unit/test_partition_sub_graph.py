"""Sub-graphs: borders, validity with its reasons, union, wrapping, substitution.

The cases of upstream's test_sub_graph.py, with what ``PartitionForTesting`` would extract.
"""

from __future__ import annotations

import pytest

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import node_set
from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig
from tests.support import upstream_graphs as graphs
from tests.support.graphs import GraphBuilder, chain


def make(graph: DataflowGraph, parts: dict[str, list[int]]) -> SubGraph:
    """A function of all nodes with a nested composite for each labelled part."""
    nested = [
        SubGraph(graph, node_set(nodes)).with_attributes({"Composite": label}).nested[0]
        for label, nodes in parts.items()
        if label
    ]
    inside = node_set(i for nodes in parts.values() for i in nodes)
    return SubGraph(graph, inside, nested).with_attributes({"Compiler": "foo"})


def check(
    graph: DataflowGraph, max_exits: int, taps: bool, parts: dict[str, list[int]]
) -> str | None:
    return make(graph, parts).is_valid(SubGraphConfig(max_exits=max_exits, allow_taps=taps))


class TestBorder:
    def test_too_many_exits_and_a_way_around_are_reasons(self) -> None:
        graph = graphs.two_adds()
        assert check(graph, 1, False, {"": [6, 7]}) == "2 exits, at most 1 allowed"
        assert check(graph, 2, False, {"": [6, 7]}) is None
        reason = check(graphs.three_adds(), 2, False, {"": [3, 5]})
        assert reason is not None and reason.startswith("not convex") and "node 4" in reason

    def test_taps_within_a_composite_are_looked_at_too(self) -> None:
        graph = graphs.labelled(tap=True)
        parts = {"a": [4, 5, 6, 7], "b": [8, 9, 10]}
        assert check(graph, 2, False, parts) is not None
        assert check(graph, 2, True, parts) is None

    def test_scalars_and_operators_are_no_inputs(self) -> None:
        graph = graphs.gpt2_ops()
        assert SubGraph(graph, 1 << 15).input == (9,)
        assert SubGraph(graph, 1 << 15).entry == (15,)
        assert SubGraph(graph, 1 << 6).input == (0, 5)

    def test_nothing_enters_has_no_depth(self) -> None:
        b = GraphBuilder()
        value = b.call("exp", b.constant())
        graph = b.build(b.call("add", value, b.parameter()))
        assert SubGraph(graph, 1 << value).entry == ()
        assert SubGraph(graph, 1 << value).depth == 0

    def test_a_value_that_leaves_the_function_is_an_exit(self) -> None:
        b = GraphBuilder()
        first = b.call("exp", b.parameter())
        second = b.call("abs", first)
        graph = b.build(first, second)
        whole = SubGraph(graph, 1 << first | 1 << second)
        assert whole.exit == (first, second)
        assert "tapped" in (whole.is_valid(SubGraphConfig()) or "")
        assert whole.is_valid(SubGraphConfig(allow_taps=True)) is None

    def test_depth_is_the_longest_path(self) -> None:
        graph = graphs.labelled()
        assert SubGraph(graph, node_set(range(3, 12))).depth == 7
        reason = SubGraph(graph, node_set(range(3, 12))).is_valid(SubGraphConfig(max_depth=6))
        assert reason == "depth 7, at most 6 allowed"

    def test_empty_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            SubGraph(graphs.standard(), 0)


class TestOperations:
    def test_union_merges_equal_wrappings_but_no_composites(self) -> None:
        graph = chain("abs", "exp", "tanh")
        parts = [SubGraph(graph, 1 << i).with_attributes({"Primitive": 1}) for i in (1, 2)]
        joined = parts[0].union(parts[1])
        assert len(joined.nested) == 1 and joined.nested[0].sub_graph.members == (1, 2)
        parts = [SubGraph(graph, 1 << i).with_attributes({"Composite": "c"}) for i in (1, 2)]
        assert len(parts[0].union(parts[1]).nested) == 2

    def test_union_refuses_overlap(self) -> None:
        graph = chain("abs", "exp")
        with pytest.raises(ValueError, match="overlap"):
            SubGraph(graph, 0b110).union(SubGraph(graph, 0b100))

    def test_touching(self) -> None:
        graph = graphs.three_adds()
        first, second, third = (SubGraph(graph, 1 << i) for i in (3, 4, 5))
        assert first.touches(second) and second.touches(third)
        assert not second.touches(first)
        assert not first.touches(third)
        diamond = graphs.conv_diamond()
        top, bottom = SubGraph(diamond, 1 << 5), SubGraph(diamond, 1 << 10)
        branch = SubGraph(diamond, 1 << 9)
        assert top.touches(branch)
        assert not top.union(branch).touches(bottom)  # Also reached through the other branch.

    def test_equality_looks_at_nested_attributes(self) -> None:
        graph = chain("abs")
        plain = SubGraph(graph, 0b10)
        a, b = (plain.with_attributes({"Composite": c}) for c in "ab")
        assert a != b and a == plain.with_attributes({"Composite": "a"})
        assert plain != a and hash(a) == hash(plain.with_attributes({"Composite": "a"}))

    def test_substitute(self) -> None:
        small, large = chain("abs", "exp"), chain("tanh", "abs", "exp")
        moved = SubGraph(small, 0b110).with_attributes({"Composite": "c"})
        moved = moved.substitute(large, {1: 2, 2: 3})
        assert moved.members == (2, 3) and moved.label == "abs+exp"
        assert moved.composites == (("c", 0b1100),)
