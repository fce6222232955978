"""The pattern language: what matches, and what is bound."""

from __future__ import annotations

from collage_engine.partition.patterns import (
    Match,
    Pattern,
    TupleOf,
    all_matches,
    anything,
    constant,
    op,
)
from collage_engine.records.graph import node_set
from tests.support.graphs import GraphBuilder, chain


def match(graph, pattern: Pattern, root: int) -> Match | None:
    """Return the first match at a root; None: there is none."""
    return next(all_matches(graph, pattern, root), None)


def conv_graph():
    """0 x, 1 weight, 2 conv, 3 bias, 4 add, 5 relu."""
    b = GraphBuilder((1, 8, 8, 8))
    x, w = b.parameter("x"), b.constant((8, 8, 3, 3), "w")
    conv = b.call("nn.conv2d", x, w, strides=[2, 2], groups=1, name="conv1")
    add = b.call("add", conv, b.constant((1, 8, 1, 1), "bias"), name="bias1")
    return b.build(b.call("nn.relu", add, name="relu1"))


def conv_pattern(**attributes):
    conv = op("nn.conv2d", anything("data"), constant("weight"), **attributes)
    biased = conv.optional(lambda c: op("add", c, constant("bias")))
    return biased.optional(lambda c: op("nn.relu", c))


def test_scalar_constants_stay_outside() -> None:
    b = GraphBuilder()
    graph = b.build(b.call("multiply", b.parameter(), b.constant()))
    found = match(graph, op("multiply", anything(), constant(scalar=True)), 2)
    assert found is not None and found.nodes == node_set([2])


def test_attributes() -> None:
    graph = conv_graph()
    assert match(graph, conv_pattern(strides=(2, 2)), 5) is not None
    assert match(graph, conv_pattern(groups=4), 5) is None
    assert match(graph, conv_pattern(groups=lambda g: g < 2), 5) is not None
    assert match(graph, conv_pattern(groups=lambda g: g > 2), 5) is None


def test_commutative_and_all_matches() -> None:
    b = GraphBuilder()
    x, w = b.parameter(), b.constant((3, 3))
    left, right = b.call("nn.conv2d", x, w), b.call("nn.conv2d", x, w)
    added = b.call("add", left, right)
    graph = b.build(added)
    pattern = op("add", op("nn.conv2d", anything(), constant()), anything())
    assert {m.nodes for m in all_matches(graph, pattern, added)} == {
        node_set([w, left, added]),
        node_set([w, right, added]),
    }
    swapped = op("add", constant(), op("nn.conv2d", anything(), constant()))
    assert match(conv_graph(), swapped, 4) is not None
    ordered = op("add", constant(), anything(), commutative=False)
    assert match(conv_graph(), ordered, 4) is None


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
    assert match(chain("abs"), op("abs", anything(), anything()), 1) is None
    assert match(chain("abs"), op("abs", anything(), dtypes=("int8",)), 1) is None


def test_tuples() -> None:
    b = GraphBuilder()
    x = b.parameter()
    first, second = b.call("exp", x), b.call("abs", x)
    joined = b.call("concat", b.tuple(first, second))
    graph = b.build(joined)
    source = anything("source")
    found = match(graph, op("concat", TupleOf((op("exp", source), op("abs", source)))), joined)
    assert found is not None and found.nodes == node_set([1, 2, 3, 4])
    part = op("exp", source, name="part")
    assert match(graph, op("concat", TupleOf((part, part))), joined) is None
    assert match(graph, op("concat", TupleOf((anything(),))), joined) is None
