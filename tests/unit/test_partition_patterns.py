"""The pattern language: what matches, and what is bound."""

from __future__ import annotations

from collage_engine.partition.patterns import (
    Match,
    Pattern,
    all_matches,
    anything,
    constant,
    op,
)
from collage_engine.records.graph import operator_set
from tests.support.graphs import GraphBuilder, chain


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


def test_lists_and_further_results() -> None:
    b = GraphBuilder()
    x = b.parameter()
    first, second = b.call("exp", x), b.call("abs", x)
    joined = b.call("concat", first, second)
    split = b.call("split", joined, results=2)
    ends = [b.call("tanh", b.result(split, place)) for place in range(2)]
    graph = b.build(*ends)
    source = anything("source")
    found = match(graph, op("concat", op("exp", source), op("abs", source)), joined)
    assert found is not None and found.nodes == operator_set([first, second, joined])
    part = op("exp", source, name="part")
    assert match(graph, op("concat", part, part), joined) is None
    assert match(graph, op("concat", anything()), joined) is None
    # A pattern of an operator is one of its first result.
    matches = [match(graph, op("tanh", op("split", anything())), end) for end in ends]
    assert matches[0] is not None and matches[1] is None
