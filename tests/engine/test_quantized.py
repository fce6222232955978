"""Quantised composites on real toolchains, against ONNX's own meaning of the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.reference import run_onnx
from collage_engine.records.toolchain import Target
from collage_engine.support.errors import CollageError
from collage_engine.timing.bench import check
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.quantized_cases import composites, function_for, outcome, true_values
from tests.support.toolchain_cases import default_instance, imported
from tests.zoo import quantized as zoo_quantized
from tests.zoo.net import Net

TOOLCHAINS: dict[str, Any] = {
    "onnxruntime": OnnxRuntimeToolchain(),
    "tvm": TvmToolchain(),
}


@pytest.fixture(params=list(TOOLCHAINS))
def toolchain(request: pytest.FixtureRequest) -> Any:
    return TOOLCHAINS[request.param]


def right_to_one_step(model: ModelProto, toolchain: Any, folder: Path, *kinds: str) -> list[str]:
    """Every composite of a model on its true inputs; the operators that ran, of ONNX Runtime."""
    net = imported(model)
    random = np.random.default_rng(5)
    feeds = {n: random.standard_normal(k.shape).astype(np.float32) for n, k in net.inputs}
    truth = true_values(net, folder, feeds)
    found = composites(net)
    assert sorted(f.kind for f in found) == sorted(kinds)
    ran: list[str] = []
    for number, each in enumerate(found):
        result = outcome(net, truth, each, toolchain, number)
        bound = 1.0 if "quantize" in each else 1e-5
        assert result.steps <= bound, f"{result.name}: {result.steps}"
        # One step is for ties and for sums in another order, not for a wrong scale.
        assert "quantize" not in each or result.share < 1e-2, f"{result.name}: {result.share}"
        ran += [s["what"] for s in result.inside.get("steps", [])]
    return ran


def conv_net(
    shape: tuple[int, ...],
    given: int,
    kernel: int,
    *,
    bias: bool = True,
    relu: bool = True,
    **attributes: Any,
) -> ModelProto:
    net = Net("conv", opset=13, seed=given + kernel)
    y = net.conv(net.input("x", shape), shape[1], given, kernel, bias=bias, **attributes)
    net.output(net.op("Relu", y) if relu else y)
    return net.model()


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(
    ("shape", "given", "kernel", "more"),
    [
        ((1, 64, 14, 14), 64, 3, {}),
        ((1, 3, 33, 31), 20, 7, {"stride": 2}),
        ((2, 24, 9, 9), 48, 1, {}),
        ((1, 32, 15, 15), 40, 1, {"stride": 2, "bias": False}),
        ((1, 32, 12, 12), 32, 3, {"group": 32}),
        ((1, 48, 11, 13), 48, 3, {"group": 48, "stride": 2}),
        ((1, 12, 10, 10), 24, 3, {"group": 2, "relu": False}),
        ((1, 6, 10, 10), 18, 3, {"group": 3}),
        ((1, 5, 8, 8), 7, 3, {"pad": 0}),
    ],
)
def test_convolution(
    toolchain: Any,
    tmp_path: Path,
    signed: bool,
    shape: tuple[int, ...],
    given: int,
    kernel: int,
    more: dict[str, Any],
) -> None:
    model = zoo_quantized.quantize(conv_net(shape, given, kernel, **more), signed=signed)
    ran = right_to_one_step(model, toolchain, tmp_path, "conv")
    if toolchain.name == "onnxruntime" and not signed:
        assert "QLinearConv" in ran


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("rows", "depth", "columns"), [(7, 33, 20), (32, 64, 96), (1, 128, 10)])
def test_product(
    toolchain: Any, tmp_path: Path, signed: bool, rows: int, depth: int, columns: int
) -> None:
    net = Net("dense", opset=13, seed=rows)
    x = net.input("x", [rows, depth])
    weights = net.weight(columns, depth)
    net.output(net.op("Gemm", x, weights, net.vector(columns), transB=1))
    model = zoo_quantized.quantize(net.model(), signed=signed)
    right_to_one_step(model, toolchain, tmp_path, "matmul")


@pytest.mark.parametrize("signed", [False, True])
def test_residual_block(toolchain: Any, tmp_path: Path, signed: bool) -> None:
    model = zoo_quantized.float_resnet_block(10, 16)
    model = zoo_quantized.quantize(model, signed=signed)
    kinds = ["conv"] * 7 + ["binary"] * 2
    right_to_one_step(model, toolchain, tmp_path, *kinds)


def test_pools_and_concatenation(toolchain: Any, tmp_path: Path) -> None:
    net = Net("pools", opset=13, seed=4)
    x = net.input("x", [1, 16, 12, 12])
    a = net.op("Relu", net.conv(x, 16, 16))
    b = net.op("MaxPool", a, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
    c = net.op("Concat", a, b, axis=1)
    c = net.op("Reshape", c, net.const([1, 32, 144], np.int64))
    net.output(c)
    model = zoo_quantized.quantize(net.model())
    right_to_one_step(model, toolchain, tmp_path, "conv", "pool", "concat", "view")


def residual_in_the_convolution(scale: float = 0.05) -> ModelProto:
    """Convolution, sum with a dequantised residual, Relu, and only then QuantizeLinear."""
    net = Net("sum", opset=13, seed=6)

    def rounded(x: str, step: float, zero: int) -> tuple[str, str]:
        s, z = net.const(np.float32(step)), net.const(np.uint8(zero))
        q = net.op("QuantizeLinear", x, s, z)
        return net.op("DequantizeLinear", q, s, z), q

    x, _ = rounded(net.input("x", [1, 16, 9, 9]), 0.03, 120)
    r, _ = rounded(net.input("r", [1, 16, 9, 9]), 0.02, 131)
    values = net.random.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8)
    steps = net.random.uniform(0.001, 0.002, 16).astype(np.float32)
    w = net.op(
        "DequantizeLinear",
        net.const(values),
        net.const(steps),
        net.const(np.zeros(16, np.int8)),
        axis=0,
    )
    y = net.op("Conv", x, w, net.vector(16), kernel_shape=[3, 3], pads=[1] * 4)
    y, _ = rounded(net.op("Relu", net.op("Add", y, r)), scale, 0)
    net.output(y)
    return net.model()


def test_sum_with_a_residual_joins_the_convolution(toolchain: Any, tmp_path: Path) -> None:
    right_to_one_step(residual_in_the_convolution(), toolchain, tmp_path, "conv")


def test_tvm_multiplies_integers() -> None:
    net = imported(zoo_quantized.qdq_resnet_block(14, 16))
    everything = sum(1 << i for i in net.graph.operators)
    toolchain = TOOLCHAINS["tvm"]
    function = function_for(net, everything, default_instance(toolchain), "block")
    module = toolchain.lower(function)
    text = module.script()
    assert text.count("quantized_conv2d") >= 7
    kernels = [f for f in module.functions.values() if "collage.schedule" in (f.attrs or {})]
    written = [str(f.attrs["collage.schedule"]) for f in kernels]
    assert "int8 dots" in written and "plain" not in written
    assert not any(w.startswith(("conv", "matmul")) for w in written), written


def test_check_is_exact_where_nothing_is_rounded_and_one_step_where_something_is() -> None:
    net = imported(conv_block := zoo_quantized.quantize(conv_net((1, 4, 6, 6), 8, 3)))
    assert conv_block.graph.node
    (found,) = composites(net)
    instance = TOOLCHAINS["tvm"].instances(Target(), "float32")[0]
    function = function_for(net, found.nodes, instance, "checked")
    true = np.full((1, 8, 6, 6), 7, np.uint8)
    assert check(function, [true], [true]) == 0
    assert check(function, [true + 1], [true]) == pytest.approx(1 / 7)
    with pytest.raises(CollageError, match="off by 2 steps"):
        check(function, [true + 2], [true])
    dequantize = found["data_float"]
    alone = function_for(net, 1 << dequantize, instance, "alone")
    numbers = np.ones((1, 4, 6, 6), np.float32)
    assert check(alone, [numbers], [numbers]) == 0
    with pytest.raises(CollageError, match="relative error"):
        check(alone, [numbers * np.float32(1.001)], [numbers])


class Rounded(Net):
    """A model whose values are held in 8 bits between its operators."""

    def held(self, x: str, scale: float = 0.02, zero: int = 120) -> str:
        s, z = self.const(np.float32(scale)), self.const(np.uint8(zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, s, z), s, z)

    def small(self, *shape: int, zero: int = 0) -> str:
        kind = np.uint8 if zero else np.int8
        low = 0 if zero else -127
        values = self.random.integers(low, low + 255, shape).astype(kind)
        return self.op(
            "DequantizeLinear",
            self.const(values),
            self.const(np.float32(0.003)),
            self.const(np.array(zero, kind)),
        )


READERS = {
    "gate": lambda n, y: n.op("Mul", y, n.held(n.input("g", [1, 16, 1, 1]))),
    "shift": lambda n, y: n.op("Add", n.held(n.input("g", [1, 16, 1, 1])), y),
    "gelu": lambda n, y: n.op("Gelu", n.op("Conv", y, n.small(16, 16, 1, 1))),
    "asymmetric": lambda n, y: n.op("Conv", y, n.small(16, 16, 1, 1, zero=130)),
    "rows": lambda n, y: n.op(
        "Add", n.op("Conv", y, n.small(16, 16, 1, 1)), n.const(np.float32(np.arange(16) / 9))
    ),
}


@pytest.mark.parametrize("size", [16, 7])
@pytest.mark.parametrize("name", READERS)
def test_an_image_whose_reader_turns_out_not_to_take_it_is_turned_back(
    toolchain: Any, name: str, size: int
) -> None:
    """With as many rows as channels a wrong order would not even be noticed."""
    if name == "rows" and size != 16:
        pytest.skip("one number a column")
    net = Rounded("reader", opset=20, seed=size)
    x = net.held(net.input("x", [1, 16, size, size]))
    y = net.held(net.op("Conv", x, net.small(16, 16, 3, 3), pads=[1] * 4))
    net.output(net.held(READERS[name](net, y), 0.05))
    assert whole_error(net.model(), toolchain) <= 1.01 * 0.05


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ((1, 16, 9, 9), (1, 16, 1, 1)),
        ((1, 16, 9, 9), (1, 1, 9, 9)),
        ((1, 16, 1, 1), (1, 16, 8, 7)),  # the sum is larger than what the convolution gives
    ],
)
def test_a_convolution_and_what_is_added_to_it_may_be_broadcast(
    toolchain: Any, given: tuple[int, ...], added: tuple[int, ...]
) -> None:
    net = Rounded("broadcast", opset=13, seed=3)
    x, r = net.held(net.input("x", list(given))), net.held(net.input("r", list(added)))
    y = net.op("Conv", x, net.small(16, 16, 3, 3), pads=[1] * 4)
    net.output(net.held(net.op("Add", y, r), 0.05))
    assert whole_error(net.model(), toolchain) <= 1.01 * 0.05


def whole_error(model: ModelProto, toolchain: Any) -> float:
    """Largest error of the whole model as one function, twice in a row."""
    net = imported(model)
    everything = sum(1 << i for i in net.graph.operators)
    function = function_for(net, everything, default_instance(toolchain), "whole")
    feeds = net.random_inputs(1)
    (wanted,) = run_onnx(model, feeds)
    by_index = dict(zip(net.graph.record.inputs, (n for n, _ in net.inputs), strict=True))
    with Compiled(function) as compiled:
        inputs = [feeds[by_index[index]] for index in function.inputs]
        found = [compiled.run(inputs)[0].copy() for _ in range(2)]
    return max(float(np.abs(each - wanted).max()) for each in found)
