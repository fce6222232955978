"""Sub-graphs: borders, validity, union, composites.

Depths, convexity and what touches are those of brute force (``test_partition_combine.py``).

FuseOps on the dataflow graph: limits, and what holds of any groups.

Which groups there are is compared with Relax's own pass (``engine/test_fuse_ops_against_relax``).

The pattern language: what matches, and what is bound.
"""

from __future__ import annotations

import random

import pytest

from collage_engine.partition.fuse_ops import MAX_GROUP, fuse_ops
from collage_engine.partition.patterns import (
    Match,
    Pattern,
    all_matches,
    anything,
    constant,
    op,
)
from collage_engine.partition.sub_graph import SubGraph
from collage_engine.records.graph import members, operator_set
from tests.support.graphs import GraphBuilder, chain, random_graph


def test_exits_depth_and_a_way_around_are_not_valid() -> None:
    graph = chain("abs", "exp", "tanh")
    whole = SubGraph(graph, graph.everything)
    assert whole.depth == 3 and whole.is_valid(3)
    assert not whole.is_valid(2)
    around = SubGraph(graph, operator_set([0, 2]))
    assert around.feeds_itself == 1 and not around.is_valid()
    b = GraphBuilder()
    x = b.parameter()
    both = SubGraph(b.build(b.call("exp", x), b.call("abs", x)), operator_set([0, 1]))
    assert len(both.exit) == 2 and not both.is_valid()


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
    assert not whole.is_valid()


def test_a_union_keeps_the_composites_of_both_and_refuses_overlap() -> None:
    graph = chain("abs", "exp", "tanh")
    one, two = (SubGraph(graph, 1 << i, (("c", 1 << i),)) for i in (0, 1))
    assert one.union(two).composites == (("c", 0b1), ("c", 0b10))
    with pytest.raises(ValueError, match="overlap"):
        SubGraph(graph, 0b11).union(one)


def test_groups_hold_no_more_than_the_limit() -> None:
    graph = chain(*["exp"] * 300)
    for most, sizes in ((MAX_GROUP, [256, 44]), (10, [10] * 30), (1, [1] * 300)):
        assert [group.bit_count() for group in fuse_ops(graph, most)] == sizes


def test_groups_are_a_partition_into_convex_sets() -> None:
    for seed in range(150):
        graph = random_graph(random.Random(seed), 14)
        seen = 0
        for group in fuse_ops(graph):
            assert not group & seen
            seen |= group
            assert graph.convex(group), (seed, tuple(members(group)))
            assert sum(graph.nodes[i].kind == "anchor" for i in members(group)) <= 1
        assert seen == graph.everything


def match(graph, pattern: Pattern, root: int) -> Match | None:
    """Return the first match at a root; None: there is none."""
    return next(all_matches(graph, pattern, root), None)


def conv_graph():
    """0 conv, 1 add, 2 relu."""
    b = GraphBuilder((1, 8, 8, 8))
    x, w = b.parameter("x"), b.constant((8, 8, 3, 3), "w")
    conv = b.call("nn.conv2d", x, w, strides=[2, 2], groups=1, name="conv1")
    add = b.call("add", conv, b.constant((1, 8, 1, 1), "bias"), name="bias1")
    return b.build(b.call("nn.relu", add, name="relu1"))


def conv_pattern(**attributes):
    conv = op("nn.conv2d", anything("data"), constant("weight"), **attributes)
    biased = conv.optional(lambda c: op("add", c, constant("bias")))
    return biased.optional(lambda c: op("nn.relu", c))


def test_constants_are_bound_and_stay_outside() -> None:
    b = GraphBuilder()
    scale = b.constant()
    graph = b.build(b.call("multiply", b.parameter(), scale))
    found = match(graph, op("multiply", anything(), constant("scale", scalar=True)), 0)
    assert found is not None and found.nodes == operator_set([0])
    assert found.bindings == {"scale": b.index(scale)}


def test_attributes() -> None:
    graph = conv_graph()
    assert match(graph, conv_pattern(strides=(2, 2)), 2) is not None
    assert match(graph, conv_pattern(groups=4), 2) is None
    assert match(graph, conv_pattern(groups=lambda g: g < 2), 2) is not None
    assert match(graph, conv_pattern(groups=lambda g: g > 2), 2) is None


def test_commutative_and_all_matches() -> None:
    b = GraphBuilder()
    x, w = b.parameter(), b.constant((3, 3))
    left, right = b.call("nn.conv2d", x, w), b.call("nn.conv2d", x, w)
    added = b.call("add", left, right)
    graph = b.build(added)
    pattern = op("add", op("nn.conv2d", anything(), constant()), anything())
    assert {m.nodes for m in all_matches(graph, pattern, added)} == {
        operator_set([left, added]),
        operator_set([right, added]),
    }
    swapped = op("add", constant(), op("nn.conv2d", anything(), constant()))
    assert match(conv_graph(), swapped, 1) is not None
    ordered = op("add", constant(), anything(), commutative=False)
    assert match(conv_graph(), ordered, 1) is None


def test_one_part_twice_is_one_node() -> None:
    b = GraphBuilder()
    x, y = b.parameter("x"), b.parameter("y")
    same, other = b.call("multiply", x, x), b.call("multiply", x, y)
    graph = b.build(same, other)
    value = anything("v")
    square = op("multiply", value, value)
    assert match(graph, square, same) is not None
    assert match(graph, square, other) is None


def test_wrong_number_of_inputs_and_type() -> None:
    assert match(chain("abs"), op("abs", anything(), anything()), 0) is None
    assert match(chain("abs"), op("abs", anything(), dtypes=("int8",)), 0) is None
