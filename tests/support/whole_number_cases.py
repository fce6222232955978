"""Models that multiply whole numbers of 8 bits over their whole range, as quantisers write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import ModelProto, helper

from collage_engine.model.importer import ImportedModel
from tests.zoo.net import Net

MICROSOFT = "com.microsoft"
ROWS, DEPTH, COLUMNS = 4, 32, 8


class WholeNet(Net):
    """A net with constants over the whole range of 8 bits."""

    def whole(self, dtype: str, *shape: int) -> str:
        ends = np.iinfo(dtype)
        return self.const(self.random.integers(ends.min, ends.max + 1, shape), dtype)

    def scalar(self, value: float, dtype: Any = np.float32) -> str:
        return self.const(np.array(value, dtype))

    def microsoft(self, op: str, *inputs: str, **attributes: Any) -> str:
        """One of the runtime's own operators."""
        name = self.op(op, *inputs, **attributes)
        self.nodes[-1].domain = MICROSOFT
        return name

    def made(self) -> ModelProto:
        """The model, which also imports the runtime's operators."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)

    def quantised_input(self, shape: list[int]) -> tuple[str, str, str]:
        """An input in 8 bits by its own range, with its scale and zero point."""
        x = self.input("x", shape)
        names = [self.fresh(what) for what in ("data", "scale", "zero")]
        self.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names, "quantise"))
        return names[0], names[1], names[2]

    def rescaled(self, sums: str, scale: str) -> str:
        """Sums as floats, with a bias."""
        floats = self.op("Cast", sums, to=1)
        factor = self.op("Mul", scale, self.scalar(0.01))
        return self.op("Mul", floats, factor)


def dynamic_linear(dtype: str = "int8") -> ModelProto:
    """A linear layer as ``quantize_dynamic`` writes it."""
    net = WholeNet("dynamic_linear")
    data, scale, zero = net.quantised_input([ROWS, DEPTH])
    weight = net.whole(dtype, DEPTH, COLUMNS)
    offset = net.scalar(0 if dtype == "int8" else 128, dtype)
    sums = net.op("MatMulInteger", data, weight, zero, offset)
    y = net.op("Add", net.rescaled(sums, scale), net.vector(COLUMNS))
    net.output(y)
    return net.made()


def integer_product(given: str = "uint8", dtype: str = "int8") -> ModelProto:
    net = WholeNet("integer_product")
    a = net.input("a", [ROWS, DEPTH], given)
    net.output(net.op("MatMulInteger", a, net.whole(dtype, DEPTH, COLUMNS)), "int32")
    return net.made()


def dynamic_convolution() -> ModelProto:
    net = WholeNet("dynamic_convolution")
    data, scale, zero = net.quantised_input([1, 12, 9, 9])
    sums = net.op(
        "ConvInteger", data, net.whole("uint8", 6, 12, 3, 3), zero, net.scalar(128, "uint8")
    )
    net.output(net.rescaled(sums, scale))
    return net.made()


def quantised_product(given: str = "uint8", dtype: str = "int8") -> ModelProto:
    net = WholeNet("quantised_product")
    a = net.input("a", [ROWS, DEPTH], given)
    zero = net.scalar(120 if given == "uint8" else 0, given)
    scales = net.const(np.linspace(0.01, 0.03, COLUMNS, dtype=np.float32))
    zeros = net.const(np.full(COLUMNS, 0 if dtype == "int8" else 128), dtype)
    weight = net.whole(dtype, DEPTH, COLUMNS)
    step = net.scalar(5)
    net.output(
        net.op("QLinearMatMul", a, net.scalar(0.1), zero, weight, scales, zeros, step, zero), given
    )
    return net.made()


def quantised_convolution(given: str = "uint8") -> ModelProto:
    net = WholeNet("quantised_convolution")
    a = net.input("a", [1, 12, 9, 9], given)
    zero = net.scalar(120 if given == "uint8" else 0, given)
    scales = net.const(np.linspace(0.01, 0.03, 6, dtype=np.float32))
    weight, zeros = net.whole("int8", 6, 12, 3, 3), net.const(np.zeros(6), np.int8)
    bias = net.const(net.random.integers(-(10**5), 10**5, 6), np.int32)
    data = [a, net.scalar(0.1), zero]
    net.output(
        net.op("QLinearConv", *data, weight, scales, zeros, net.scalar(8), zero, bias), given
    )
    return net.made()


def around(op: str, given: str = "uint8") -> ModelProto:
    """A product between DequantizeLinear and QuantizeLinear, which the standard makes in floats."""
    net = WholeNet(f"around_{op}")
    shape = [1, 12, 9, 9] if op == "Conv" else [ROWS, DEPTH]
    x, zero = net.input("x", shape), net.scalar(100 if given == "uint8" else 0, given)
    data = net.op("QuantizeLinear", x, net.scalar(0.02), zero)
    data = net.op("DequantizeLinear", data, net.scalar(0.02), zero)
    weight = net.whole("int8", 6, 12, 3, 3) if op == "Conv" else net.whole("int8", DEPTH, COLUMNS)
    weight = net.op("DequantizeLinear", weight, net.scalar(0.01), net.scalar(0, np.int8))
    y = net.op("QuantizeLinear", net.op(op, data, weight), net.scalar(0.3), zero)
    net.output(net.op("DequantizeLinear", y, net.scalar(0.3), zero))
    return net.made()


def around_values(second: str) -> ModelProto:
    """A product of two values that are quantised, as those of an attention."""
    net = WholeNet("around_values")
    step, zero = net.scalar(0.02), net.scalar(0, second)

    def held(name: str, shape: list[int]) -> str:
        data = net.op("QuantizeLinear", net.input(name, shape), step, zero)
        return net.op("DequantizeLinear", data, step, zero)

    turned = net.op("Transpose", held("b", [COLUMNS, DEPTH]), perm=[1, 0])
    y = net.op("MatMul", held("a", [ROWS, DEPTH]), turned)
    y = net.op("QuantizeLinear", y, net.scalar(0.3), zero)
    net.output(net.op("DequantizeLinear", y, net.scalar(0.3), zero))
    return net.made()


def ties(given: str = "uint8") -> ModelProto:
    """Quotients of which many are halves: the standard rounds them to even numbers."""
    net = WholeNet("ties")
    x = net.op("Mul", net.op("Round", net.input("x", [16, 64])), net.scalar(0.5))
    zero = net.scalar(100 if given == "uint8" else 0, given)
    net.output(net.op("QuantizeLinear", x, net.scalar(1), zero), given)
    return net.made()


def own_products() -> ModelProto:
    net = WholeNet("own_products")
    data, scale, zero = net.quantised_input([ROWS, DEPTH])
    weight, bias = net.whole("int8", DEPTH, COLUMNS), net.vector(COLUMNS)
    rest = (net.scalar(0.01), zero, net.scalar(0, np.int8), bias)
    net.output(net.microsoft("MatMulIntegerToFloat", data, weight, scale, *rest))
    return net.made()


def own_dynamic_product() -> ModelProto:
    net = WholeNet("own_dynamic_product")
    weight = net.whole("int8", DEPTH, COLUMNS)
    rest = (net.scalar(0.01), net.scalar(0, np.int8), net.vector(COLUMNS))
    net.output(net.microsoft("DynamicQuantizeMatMul", net.input("x", [ROWS, DEPTH]), weight, *rest))
    return net.made()


def own_gemm() -> ModelProto:
    net = WholeNet("own_gemm")
    a, zero = net.input("a", [ROWS, DEPTH], "uint8"), net.scalar(120, np.uint8)
    weight, bias = net.whole("int8", COLUMNS, DEPTH), net.const(np.arange(COLUMNS) * 1000, np.int32)
    rest = (net.scalar(0.01), net.scalar(0, np.int8), bias, net.scalar(5), zero)
    net.output(net.microsoft("QGemm", a, net.scalar(0.1), zero, weight, *rest, transB=1), "uint8")
    return net.made()


def own_sum() -> ModelProto:
    net = WholeNet("own_sum")
    a, b = (net.input(name, [ROWS, DEPTH], "uint8") for name in "ab")
    first, second = (
        (net.scalar(0.5), net.scalar(7, np.uint8)),
        (net.scalar(0.25), net.scalar(3, np.uint8)),
    )
    last = (net.scalar(1.3), net.scalar(1, np.uint8))
    net.output(net.microsoft("QLinearAdd", a, *first, b, *second, *last), "uint8")
    return net.made()


CASES: dict[str, Callable[[], ModelProto]] = {
    "dynamic linear": dynamic_linear,
    "dynamic linear uint8": lambda: dynamic_linear("uint8"),
    "integer product": integer_product,
    "integer product int8": lambda: integer_product("int8"),
    "dynamic convolution": dynamic_convolution,
    "quantised product": quantised_product,
    "quantised product int8": lambda: quantised_product("int8"),
    "quantised convolution": quantised_convolution,
    "quantised convolution int8": lambda: quantised_convolution("int8"),
    "around MatMul": lambda: around("MatMul"),
    "around MatMul int8": lambda: around("MatMul", "int8"),
    "around Conv": lambda: around("Conv"),
    "around Gemm": lambda: around("Gemm"),
    "around values": lambda: around_values("uint8"),
    "around values int8": lambda: around_values("int8"),
    "ties": ties,
    "ties int8": lambda: ties("int8"),
    "own products": own_products,
    "own dynamic product": own_dynamic_product,
    "own gemm": own_gemm,
    "own sum": own_sum,
}
"""By name what makes the model."""


def full_range_inputs(model: ImportedModel, seed: int = 1) -> dict[str, np.ndarray]:
    """Inputs over the whole range of 8 bits; floats are normal."""
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for name, kind in model.inputs:
        if kind.dtype == "float32":
            made[name] = (random.standard_normal(kind.shape) * 4).astype(np.float32)
        else:
            ends = np.iinfo(kind.dtype)
            made[name] = random.integers(ends.min, ends.max + 1, kind.shape).astype(kind.dtype)
    return made
