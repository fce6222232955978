"""Sub-graphs: borders, validity, union, composites.

The cases of upstream's test_sub_graph.py, with what ``PartitionForTesting`` would extract.
"""

from __future__ import annotations

import pytest

from collage_engine.model.index_set import node_set
from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig
from tests.support import upstream_graphs as graphs
from tests.support.graphs import GraphBuilder, chain


class TestBorder:
    def test_too_many_exits_and_a_way_around_are_not_valid(self) -> None:
        pair = SubGraph(graphs.two_adds(), node_set([6, 7]))
        assert not pair.is_valid(SubGraphConfig(max_exits=1))
        assert pair.is_valid(SubGraphConfig(max_exits=2))
        around = SubGraph(graphs.three_adds(), node_set([3, 5]))
        assert around.feeds_itself == 4 and not around.is_valid(SubGraphConfig(max_exits=2))

    def test_what_leaves_is_read_by_nothing_inside(self) -> None:
        tapped = SubGraph(graphs.labelled(tap=True), node_set(range(4, 11)))
        assert not tapped.is_valid(SubGraphConfig(max_exits=2))

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
        assert not whole.is_valid(SubGraphConfig())

    def test_depth_is_the_longest_path(self) -> None:
        graph = graphs.labelled()
        deep = SubGraph(graph, node_set(range(3, 12)))
        assert deep.depth == 7 and not deep.is_valid(SubGraphConfig(max_depth=6))

    def test_empty_is_refused(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            SubGraph(graphs.standard(), 0)


class TestOperations:
    def test_a_union_keeps_the_composites_of_both(self) -> None:
        graph = chain("abs", "exp", "tanh")
        one, two = (SubGraph(graph, 1 << i).as_composite("c") for i in (1, 2))
        assert one.union(two).composites == (("c", 0b10), ("c", 0b100))

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
