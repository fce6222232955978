"""The graphs of upstream's Collage tests, on records, with upstream's numbering.

Operators and the function itself take an index each, as nodes of form ``other``.
"""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from tests.support.graphs import GraphBuilder


def finish(b: GraphBuilder, *outputs: int) -> DataflowGraph:
    b.other("", *outputs)
    return b.build(*outputs)


def standard() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(3)
    y = b.call("abs", x)
    y = b.call("nn.relu", y)
    return finish(b, b.call("nn.relu", y))


def gpt2_ops() -> DataflowGraph:
    b = GraphBuilder((50, 32, 3072))
    x = b.parameter("x", (1600, 768))
    b.skip_to(5)
    w = b.constant((3072, 768))
    y = b.call("nn.dense", x, w, shape=(1600, 3072))
    bias = b.constant((3072,))
    y = b.call("add", y, bias, shape=(1600, 3072))
    v62 = b.call("reshape", y)  # 9
    v68 = b.call("multiply", v62, b.constant())  # 11
    b.skip_to(14)
    v63 = b.call("power", v62, b.constant())  # 15
    v64 = b.call("multiply", v63, b.constant())  # 17
    v65 = b.call("add", v62, v64)  # 18
    v66 = b.call("multiply", v65, b.constant())  # 20
    v67 = b.call("tanh", v66)  # 21
    v69 = b.call("add", v67, b.constant())  # 23
    return finish(b, b.call("multiply", v68, v69))  # 24


def single_op() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(2)
    return finish(b, b.call("nn.relu", x))


def relu_chain() -> DataflowGraph:
    b = GraphBuilder()
    y = b.parameter()
    b.skip_to(2)
    for _ in range(3):
        y = b.call("nn.relu", y)
    return finish(b, y)


def diamond_valid_topology() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(4)
    v0 = b.call("nn.relu", x)
    v1 = b.call("abs", v0)
    v2 = b.call("nn.relu", v1)
    return finish(b, b.call("add", v1, v2))


def pruning_heuristic() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(3)
    v0 = b.call("nn.relu", x)
    v1 = b.call("nn.relu", v0)
    v2 = b.call("add", v0, v1)
    return finish(b, b.call("add", v1, v2))


def output_tuple() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(2)
    v0 = b.call("nn.relu", x)
    v1 = b.call("nn.relu", v0)
    b.skip_to(5)
    v2 = b.call("abs", v1)
    return finish(b, b.tuple(v0, v1, v2))


def intermediate_tuple() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(3)
    v0 = b.call("nn.relu", x)
    v1 = b.call("nn.relu", v0)
    return finish(b, b.call("concatenate", b.tuple(v0, v1), shape=(20, 10)))


def fusion_benefit() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(4)
    v0 = b.call("nn.relu", x)
    v1 = b.call("nn.relu", v0)
    v2 = b.call("abs", x)
    v3 = b.call("nn.relu", v2)
    v4 = b.call("add", v1, v3)
    v5 = b.call("nn.relu", v4)
    return finish(b, b.call("abs", v5))


def double_residual() -> DataflowGraph:
    b = GraphBuilder()
    x = b.parameter()
    b.skip_to(4)
    v0 = b.call("nn.relu", x)
    v1 = b.call("abs", v0)
    v2 = b.call("add", v0, v1)
    return finish(b, b.call("add", v1, v2))


# Graphs of test_sub_graph.py


def two_adds() -> DataflowGraph:
    b = GraphBuilder((5, 7))
    p = [b.parameter(name) for name in "abcd"]
    b.skip_to(6)
    left = b.call("add", p[0], p[1])
    right = b.call("add", p[2], p[3])
    return finish(b, b.call("subtract", left, right))


def conv_diamond() -> DataflowGraph:
    b = GraphBuilder((5, 2, 28, 28))
    a, w = b.parameter("a", (5, 3, 32, 32)), b.parameter("b", (2, 3, 5, 5))
    b.skip_to(5)
    v0 = b.call("nn.conv2d", a, w)
    v2 = b.call("nn.relu", b.call("nn.relu", v0))
    b.skip_to(9)
    v3 = b.call("nn.leaky_relu", v0)
    return finish(b, b.call("add", v2, v3))


def three_adds() -> DataflowGraph:
    b = GraphBuilder((5, 7))
    x, y = b.parameter("a"), b.parameter("b")
    b.skip_to(3)
    v = x
    for _ in range(3):
        v = b.call("add", v, y)
    return finish(b, v)


def labelled(tap: bool = False) -> DataflowGraph:
    b = GraphBuilder((5, 7))
    a = b.parameter("a")
    b.skip_to(3)
    v0 = b.call("nn.relu", a)
    v1 = b.call("nn.relu", v0)
    v2, v3 = b.call("nn.relu", v1), b.call("nn.relu", v1)
    v4 = b.call("add", v2, v3)
    v5, v6 = b.call("nn.relu", v4), b.call("nn.relu", v4)
    v7 = b.call("add", v5, v6)
    return finish(b, b.call("add", v2, v7) if tap else b.call("nn.relu", v7))
