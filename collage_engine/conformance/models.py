"""Small ONNX models that the checks run: together they have every kind of border and operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, ValueInfoProto, helper, numpy_helper, shape_inference

OPSET = 17
"""Version of ONNX's operator set of the models: the last one in which a Split needs not say
how many outputs it has (ONNX's ``Changelog.md``)."""


class _Net:
    """A model under construction; every method returns a value's name."""

    def __init__(self, dtype: str = "float32") -> None:
        self._dtype = np.dtype(dtype)
        self._random = np.random.default_rng(0)
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._weights: list[Any] = []

    def input(self, *shape: int) -> str:
        name = f"x{len(self._inputs)}"
        kind = helper.np_dtype_to_tensor_dtype(self._dtype)
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self._weights)}"
        values = (self._random.standard_normal(shape) * 0.3).astype(self._dtype)
        self._weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> list[str]:
        names = [f"{op.lower()}{len(self._nodes)}_{k}" for k in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def model(self, *outputs: str) -> ModelProto:
        results = [ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self._nodes, "check", self._inputs, results, self._weights)
        opsets = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        return shape_inference.infer_shapes(made, strict_mode=True)


def _perceptron() -> ModelProto:
    """Return two products with bias and ReLU: weights, and a chain behind each."""
    net = _Net()
    x = net.input(4, 32)
    for given, taken in ((32, 24), (24, 10)):
        (x,) = net.node("MatMul", x, net.weight(given, taken))
        (x,) = net.node("Add", x, net.weight(taken))
        (x,) = net.node("Relu", x)
    return net.model(x)


def _convolutions(dtype: str = "float32") -> ModelProto:
    """Return two convolutions around a residual sum, then a pooled classifier."""
    net = _Net(dtype)
    x = net.input(1, 8, 12, 12)
    (y,) = net.node("Conv", x, net.weight(8, 8, 3, 3), net.weight(8), pads=[1] * 4)
    (y,) = net.node("Relu", y)
    (y,) = net.node("Conv", y, net.weight(8, 8, 1, 1), net.weight(8))
    (y,) = net.node("Relu", *net.node("Add", x, y))
    (y,) = net.node("Flatten", *net.node("GlobalAveragePool", y))
    (y,) = net.node("Gemm", y, net.weight(8, 5), net.weight(5))
    return net.model(*net.node("Softmax", y))


def _borders() -> ModelProto:
    """Returns a model with two inputs, an output that is read on, and an operand read twice."""
    net = _Net()
    a, b = net.input(2, 6), net.input(2, 6)
    (total,) = net.node("Add", a, b)
    (square,) = net.node("Mul", total, total)
    (shifted,) = net.node("Sub", square, net.weight(6))
    (bounded,) = net.node("Tanh", shifted)
    return net.model(total, bounded, *net.node("Sigmoid", shifted))


def _broadcasts() -> ModelProto:
    """Returns a model with operands of fewer axes and of extent 1, and a shared weight."""
    net = _Net()
    x, column = net.input(2, 3, 4), net.input(3, 1)
    shared = net.weight(4)
    (y,) = net.node("Add", *net.node("Mul", x, shared), shared)
    (y,) = net.node("Add", column, y)
    return net.model(*net.node("Abs", y))


def _shapes() -> ModelProto:
    """Return values that are moved and not computed, a split, and results that are no floats."""
    net = _Net()
    x = net.input(2, 8)
    left, right = net.node("Split", x, outputs=2, axis=1)
    (turned,) = net.node("Transpose", *net.node("Add", left, right), perm=[1, 0])
    (largest,) = net.node("ArgMax", x, axis=1, keepdims=0)
    return net.model(turned, largest)


MODELS: dict[str, Callable[[], ModelProto]] = {
    "perceptron": _perceptron,
    "convolutions": _convolutions,
    "borders": _borders,
    "broadcasts": _broadcasts,
    "shapes": _shapes,
}
"""Name, as the checks' sentences call it → the model."""
DEVICE_MODELS: dict[str, Callable[[], ModelProto]] = {
    **MODELS,
    "convolutions in float16": lambda: _convolutions("float16"),
}
"""The same for toolchains of NVIDIA devices, some of which compute in half precision only."""
