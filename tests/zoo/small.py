"""Small models of the zoo, each for one thing that can go wrong."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper

from tests.zoo.net import Net


def split_concat() -> ModelProto:
    """Split into three, work on two, concatenate in another order; uneven sizes."""
    net = Net("split_concat", opset=13, seed=21)
    parts = net.op(
        "Split", net.input("x", [2, 9, 4]), net.const([2, 3, 4], np.int64), outputs=3, axis=1
    )
    a, c = net.op("Relu", parts[0]), net.op("Sigmoid", parts[2])
    net.output(net.op("Concat", c, parts[1], a, axis=1))
    return net.model()


def several() -> ModelProto:
    """Two inputs used, one not, two outputs of different types."""
    net = Net("several", opset=13, seed=22)
    a, b = net.input("a", [2, 8]), net.input("b", [2, 8])
    net.input("unused", [3, 5], "int64")
    s = net.op("Add", a, b, name="sum")
    net.output(net.dense(net.op("Relu", s), 8, 4))
    net.output(net.op("ArgMax", s, axis=1, keepdims=0), "int64")
    return net.model()


def dynamic_batch() -> ModelProto:
    """Batch size unknown, its reshape computed from Shape: needs --shape image=N,3,8,8."""
    net = Net("dynamic_batch", opset=13, seed=23)
    x = net.op("Relu", net.conv(net.input("image", ["batch", 3, 8, 8]), 3, 4))
    size = net.op("Gather", net.op("Shape", x), net.const(0, np.int64), axis=0)
    size = net.op("Unsqueeze", size, net.const([0], np.int64))
    shape = net.op("Concat", size, net.const([-1], np.int64), axis=0)
    x = net.op("Reshape", x, shape)
    net.output(net.dense(x, 256, 5), shape=["batch", 5])
    return net.model()


def outputs() -> ModelProto:
    """Outputs that are an input, a constant, the same value twice, and an inner value."""
    net = Net("outputs", opset=13, seed=24)
    x = net.input("x", [2, 3])
    y = net.op("Relu", x, name="relu")
    net.op("Identity", x, outputs=["same_as_x"], name="pass")
    net.op("Identity", y, outputs=["y_again"], name="again")
    net.op("Identity", net.const(np.arange(3, dtype=np.float32)), outputs=["fixed"], name="fix")
    z = net.op("Sigmoid", y, name="sigmoid")
    for value in ("same_as_x", y, "y_again", "fixed", z):
        net.output(value)
    return net.model()


def tiny(size: int = 4) -> ModelProto:
    """Four operators in a diamond: relu, then exp and sigmoid, then add."""
    net = Net("tiny", opset=13, seed=25)
    x = net.op("Relu", net.input("x", [1, size]), name="relu")
    a, b = net.op("Exp", x, name="exp"), net.op("Sigmoid", x, name="sigmoid")
    net.output(net.op("Add", a, b, name="add"))
    return net.model()


def leftovers() -> ModelProto:
    """What exporters leave behind: constant sub-graphs, Dropout, Identity, unnamed nodes."""
    net = Net("leftovers", opset=13, seed=27)
    x = net.input("x", [2, 4, 6, 6])
    zero = net.op("ConstantOfShape", net.const([4], np.int64))
    ones = net.op("Add", zero, net.const(np.ones(1, np.float32)))
    ones = net.op("Unsqueeze", ones, net.const([1, 2], np.int64))
    x = net.op("Identity", x)
    x = net.op("Conv", x, net.weight(4, 4, 3, 3), kernel_shape=[3, 3], auto_pad="SAME_UPPER")
    x = net.op("Add", x, ones)
    x = net.op("Sum", x, x, x)
    x = net.op("Dropout", x)
    shape = net.op("Shape", x)
    first = net.op("Slice", shape, *(net.const([v], np.int64) for v in (0, 1, 0)))
    x = net.op("Reshape", x, net.op("Concat", first, net.const([-1], np.int64), axis=0))
    x = net.op("Cast", x, to=1)
    net.op("Exp", x, name="dead")
    net.output(net.op("Softmax", x, axis=1), shape=[2, 144])
    model = net.model()
    constant = helper.make_node("Constant", [], ["half"], value_float=0.5)
    model.graph.node.insert(0, constant)
    for node in model.graph.node:
        if node.op_type in ("Sum", "Reshape", "Shape"):
            node.name = ""
    return model


def amplifies_rounding() -> ModelProto:
    """Two outputs: coordinates up to 300, and scores that amplify rounding.

    The scores are the normalised differences of numbers near 4,000, of which float32 keeps a small
    part.
    """
    net = Net("amplifies_rounding", seed=41)
    x = net.input("x", [8, 64])
    hidden = net.op("Relu", net.dense(x, 64, 64))
    sides = net.op("Sigmoid", net.dense(hidden, 64, 32))
    net.output(net.op("Mul", sides, net.const(np.float32(300)), name="boxes"))
    far = net.op("Add", net.dense(hidden, 64, 64), net.const(np.full(64, 4000, np.float32)))
    mean = net.op("ReduceMean", far, axes=[1], keepdims=1)
    apart = net.op("Sub", far, mean)
    net.output(net.op("Mul", apart, net.const(np.float32(0.3)), name="scores"))
    return net.model()
