"""Sets of nodes and of operators are plain integers, and a graph converts between the two."""

from __future__ import annotations

import pytest

from collage_engine.model.index_set import (
    NO_NODES,
    first,
    members,
    node_set,
    one_node,
    operator_set,
)
from tests.support.graphs import GraphBuilder


def test_sets_are_plain_integers():
    assert node_set([]) == NO_NODES == 0
    assert node_set([3, 5, 3]) == operator_set([5, 3]) == 0b101000
    assert one_node(70) == 1 << 70
    assert list(members(node_set([0, 64, 200]))) == [0, 64, 200]
    assert first(node_set([9, 4])) == 4


@pytest.mark.parametrize("glue", [False, True])
def test_the_graph_converts_both_ways(glue):
    b = GraphBuilder()
    x = b.parameter()
    if glue:
        split = b.call("split", x, fields=2)
        last = b.call("concat", b.tuple(b.projection(split, 0), b.projection(split, 1)))
    else:
        last = b.call("exp", b.call("abs", x))
    graph = b.build(last)
    assert graph.to_operators(graph.to_indices((0, 1))) == (0, 1)
    assert [graph.operator_number[i] for i in graph.operators] == [0, 1]
    assert graph.nodes[graph.operators[1]].index == last
