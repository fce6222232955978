"""Small models that the tests of every toolchain for whole models run: their borders differ."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto

from tests.support.toolchain_cases import Net, one_operator

X = (1, 8, 10, 12)
"""Shape of the models' input."""


def small_net() -> ModelProto:
    net = Net()
    x = net.input(*X)
    y = net.add("Conv", x, net.randn(16, 8, 3, 3, scale=0.1), net.randn(16), pads=[1] * 4)
    y = net.add("GlobalAveragePool", net.add("Relu", y))
    y = net.add("Gemm", net.add("Flatten", y), net.randn(16, 10), net.randn(10))
    return net.model(net.add("Softmax", y))


def convolutions() -> ModelProto:
    """Return two convolutions with a ReLU between them: `first`, `relu` and `last`.

    Its runs are short, and a toolchain for element-wise operators alone needs another beside it.
    """
    net = Net()
    y = net.add("Conv", net.input(*X), net.randn(8, 8, 3, 3, scale=0.1), name="first")
    y = net.add("Relu", y, name="relu")
    return net.model(net.add("Conv", y, net.randn(4, 8, 3, 3, scale=0.1), name="last"))


def several_borders() -> ModelProto:
    net = Net()
    a, b = net.input(2, 6), net.input(2, 6)
    left, right = net.add("Split", net.add("Add", a, b), outputs=2, axis=1)
    return net.model(net.add("Mul", left, right), net.add("Sub", left, right), left)


def integers() -> ModelProto:
    net = Net()
    x = net.input(5, 7)
    index = net.add("ArgMax", x, axis=1, keepdims=0)
    return net.model(index, net.add("Greater", x, net.scalar(0.0)))


MODELS = {
    "net": small_net(),
    "several borders": several_borders(),
    "integers and booleans": integers(),
    "scalar": one_operator("ReduceSum", X, keepdims=0),
    "half": one_operator("Cast", X, to=10),
    "gather": one_operator("Gather", X, np.array([0, 2]), axis=1),
}
