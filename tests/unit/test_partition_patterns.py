"""The pattern language: what matches, what is bound, and why something does not match."""

from __future__ import annotations

from collage_engine.model.index_set import node_set
from collage_engine.partition.matching import Failure, Match
from collage_engine.partition.patterns import TupleOf, all_matches, anything, constant, match, op
from tests.support.graphs import GraphBuilder, chain


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
    assert isinstance(found, Match) and found.nodes == node_set([2])


def test_attributes() -> None:
    graph = conv_graph()
    assert isinstance(match(graph, conv_pattern(strides=(2, 2)), 5), Match)
    failed = match(graph, conv_pattern(groups=4), 5)
    assert isinstance(failed, Failure)
    assert "Conv[groups=4]" in failed.part
    assert "has groups=1, not 4" in failed.found
    assert failed.node == 2
    assert isinstance(match(graph, conv_pattern(groups=lambda g: g < 2), 5), Match)
    assert isinstance(match(graph, conv_pattern(groups=lambda g: g > 2), 5), Failure)


def test_failure_names_the_part_that_got_furthest() -> None:
    b = GraphBuilder()
    x, y = b.parameter("x"), b.parameter("y")
    conv = b.call("nn.conv2d", x, y, name="c")
    graph = b.build(b.call("nn.relu", conv))
    failed = match(graph, conv_pattern(), 3)
    assert isinstance(failed, Failure)
    assert failed.node == 1 and failed.part == "constant 'weight'"
    assert failed.found == "parameter 'y'"
    assert str(failed) == "expected constant 'weight', found parameter 'y'"


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
    assert isinstance(match(conv_graph(), swapped, 4), Match)
    ordered = op("add", constant(), anything(), commutative=False)
    assert isinstance(match(conv_graph(), ordered, 4), Failure)


def test_one_part_twice_is_one_node() -> None:
    b = GraphBuilder()
    x, y = b.parameter("x"), b.parameter("y")
    same, other = b.call("multiply", x, x), b.call("multiply", x, y)
    graph = b.build(same, other)
    value = anything("v")
    square = op("multiply", value, value)
    assert isinstance(match(graph, square, same), Match)
    failed = match(graph, square, other)
    assert isinstance(failed, Failure) and "another node than" in failed.found


def test_wrong_number_of_inputs_and_type() -> None:
    failed = match(chain("abs"), op("abs", anything(), anything()), 1)
    assert isinstance(failed, Failure) and failed.found.endswith("with 1 inputs")
    failed = match(chain("abs"), op("abs", anything(), dtypes=("int8",)), 1)
    assert isinstance(failed, Failure) and failed.found.endswith("is float32, not int8")


def test_tuples() -> None:
    b = GraphBuilder()
    x = b.parameter()
    first, second = b.call("exp", x), b.call("abs", x)
    joined = b.call("concat", b.tuple(first, second))
    graph = b.build(joined)
    source = anything("source")
    found = match(graph, op("concat", TupleOf((op("exp", source), op("abs", source)))), joined)
    assert isinstance(found, Match) and found.nodes == node_set([1, 2, 3, 4])
    part = op("exp", source, name="part")
    failed = match(graph, op("concat", TupleOf((part, part))), joined)
    assert isinstance(failed, Failure) and failed.node == second
    assert "another node than Exp" in failed.found
    failed = match(graph, op("concat", TupleOf((anything(),))), joined)
    assert isinstance(failed, Failure) and failed.found == "a tuple of 2"
