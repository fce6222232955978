"""Sub-graphs: borders, validity, union, composites.

Depths, convexity and what touches are those of brute force (``test_partition_combine.py``).
"""

from __future__ import annotations

import pytest

from collage_engine.partition.sub_graph import SubGraph, SubGraphConfig
from collage_engine.records.graph import operator_set
from tests.support.graphs import GraphBuilder, chain


def test_exits_depth_and_a_way_around_are_not_valid() -> None:
    graph = chain("abs", "exp", "tanh")
    whole = SubGraph(graph, graph.everything)
    assert whole.depth == 3 and whole.is_valid(SubGraphConfig(max_exits=1, max_depth=3))
    assert not whole.is_valid(SubGraphConfig(max_depth=2))
    around = SubGraph(graph, operator_set([0, 2]))
    assert around.feeds_itself == 1 and not around.is_valid(SubGraphConfig())
    b = GraphBuilder()
    x = b.parameter()
    both = SubGraph(b.build(b.call("exp", x), b.call("abs", x)), operator_set([0, 1]))
    assert both.is_valid(SubGraphConfig(max_exits=2))
    assert not both.is_valid(SubGraphConfig(max_exits=1))


def test_parameters_and_weights_enter_and_scalars_do_not() -> None:
    b = GraphBuilder()
    scaled = b.call("multiply", b.constant(), b.constant())
    added = b.call("add", scaled, b.constant((10, 10)))
    graph = b.build(b.call("subtract", added, b.parameter()))
    whole = SubGraph(graph, graph.everything)
    assert whole.entry == (1, 2) and whole.input == ()
    last = SubGraph(graph, 1 << 2)
    assert last.entry == (2,) and last.input == (added,)


def test_a_value_that_leaves_the_function_and_is_read_inside_is_not_valid() -> None:
    b = GraphBuilder()
    first = b.call("exp", b.parameter())
    second = b.call("abs", first)
    graph = b.build(first, second)
    whole = SubGraph(graph, 1 << first | 1 << second)
    assert whole.exit == (first, second)
    assert not whole.is_valid(SubGraphConfig())


def test_a_union_keeps_the_composites_of_both_and_refuses_overlap() -> None:
    graph = chain("abs", "exp", "tanh")
    one, two = (SubGraph(graph, 1 << i).as_composite("c") for i in (0, 1))
    assert one.union(two).composites == (("c", 0b1), ("c", 0b10))
    with pytest.raises(ValueError, match="overlap"):
        SubGraph(graph, 0b11).union(one)
