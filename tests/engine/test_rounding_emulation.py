"""Emulated rounding of products: the errors that it says are those of rounded operands."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

pytest.importorskip("tvm")

from collage_engine.kernels.rounding import balanced
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.reference import run_onnx
from collage_engine.lowering.rounding_emulation import RoundingEmulation, emulated_products
from collage_engine.machine.device import processor
from collage_engine.model.importer import ImportedModel
from collage_engine.records.precision import BFLOAT16, FLOAT16, PRODUCTS, TF32
from collage_engine.records.toolchain import Target
from collage_engine.toolchains import registry
from tests.support.toolchain_cases import Net, imported, whole
from tests.support.tvm_cases import schedules


def nearest(values: np.ndarray, bits: int) -> np.ndarray:
    """Rounded to the nearest number with so many bits of significand."""
    exponent = np.floor(np.log2(np.abs(values)))
    step = 2.0 ** (exponent - bits + 1)
    return (np.round(values.astype(np.float64) / step) * step).astype(np.float32)


def relative(y: np.ndarray, r: np.ndarray) -> float:
    return float(np.abs(y - r).max() / np.abs(r).max())


def sample(model: ImportedModel, seed: int = 0) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    inputs = model.random_inputs(seed)
    return inputs, run_onnx(model.onnx, inputs)


@pytest.mark.parametrize("precision, bits", [(BFLOAT16, 8), (TF32, 11), (FLOAT16, 11)])
def test_the_error_is_that_of_rounded_operands(precision: str, bits: int) -> None:
    net = Net()
    x, w = net.input(4, 40), np.random.default_rng(5).standard_normal((40, 24), dtype=np.float32)
    model = imported(net.model(net.add("MatMul", x, net.const(w))))
    emulation = RoundingEmulation(model, precision, threads=1)
    inputs, truth = sample(model)
    (product,) = emulation.products
    weight = balanced(np.ascontiguousarray(w.T)).T if precision == BFLOAT16 else nearest(w, bits)
    rounded = nearest(inputs["x0"], bits).astype(np.float64) @ weight.astype(np.float64)
    (error,) = emulation.errors([product], inputs, truth)
    assert error == pytest.approx(relative(rounded, truth[0]), rel=1e-3)
    assert emulation.errors([], inputs, truth)[0] < 1e-6


def test_float16_overflows() -> None:
    net = Net()
    x = net.input(1, 6)
    model = imported(net.model(net.add("MatMul", x, net.const(np.eye(6, dtype=np.float32)))))
    emulation = RoundingEmulation(model, FLOAT16, threads=1)
    (product,) = emulation.products
    large = np.array([[65519.0, -65519.0, 65504.0, 1.0, 2.0, -3.0]], np.float32)
    truth = [large.astype(np.float16).astype(np.float32)]
    assert emulation.errors([product], {"x0": large}, truth) == [0.0]
    large[0, 1] = -65520.0
    assert emulation.errors([product], {"x0": large}, truth) == [np.inf]
    assert emulation.errors([], {"x0": large}, truth)[0] < 1e-3


def test_each_product_is_switched_by_itself() -> None:
    net = Net()
    x = net.input(1, 16, 10, 10)
    near = net.add("Conv", x, net.randn(16, 16, 3, 3), net.randn(16), pads=[1, 1, 1, 1])
    far = net.add("Conv", x, net.randn(16, 16, 1, 1))
    model = imported(net.model(near, far))
    emulation = RoundingEmulation(model, BFLOAT16, threads=1)
    inputs, truth = sample(model)
    first, second = emulation.products
    one, other = emulation.errors([first], inputs, truth)
    assert one > 1e-4 and other < 1e-6
    one, other = emulation.errors([second], inputs, truth)
    assert one < 1e-6 and other > 1e-4


def test_products_are_convolutions_and_matrix_products_but_no_depthwise_ones() -> None:
    net = Net()
    y = net.add("Conv", net.input(1, 8, 8, 8), net.randn(16, 8, 1, 1), net.randn(16))
    y = net.add("Conv", y, net.randn(16, 1, 3, 3), group=16, pads=[1, 1, 1, 1])
    y = net.add("Relu", net.add("ConvTranspose", y, net.randn(16, 8, 2, 2), strides=[2, 2]))
    y = net.add("Flatten", net.add("GlobalAveragePool", y))
    y = net.add("Gemm", y, net.randn(24, 8), net.randn(24), transB=1)
    model = imported(net.model(net.add("MatMul", y, net.randn(24, 8))))
    found = emulated_products(model)
    kinds = [model.onnx.graph.node[place].op_type for place in found.values()]
    assert Counter(kinds) == Counter(Conv=1, ConvTranspose=1, Gemm=1, MatMul=1)
    assert all(model.graph.nodes[product].op in PRODUCTS for product in found)


@pytest.mark.skipif("avx512_bf16" not in processor().flags, reason="no bfloat16 products here")
def test_tvm_rounds_the_products_that_it_says_and_as_emulated() -> None:
    """Of a 3x3 convolution that Winograd's method takes, a depthwise one, two others, a Gemm."""
    net = Net()
    y = net.add("Relu", net.add("Conv", net.input(1, 64, 28, 28), net.randn(64, 64, 1, 1)))
    y = net.add("Relu", net.add("Conv", y, net.randn(64, 64, 3, 3), pads=[1, 1, 1, 1]))
    y = net.add("Relu", net.add("Conv", y, net.randn(64, 1, 3, 3), group=64))
    y = net.add("Conv", y, net.randn(32, 64, 3, 3), strides=[2, 2])
    y = net.add("Flatten", net.add("GlobalAveragePool", y))
    model = imported(net.model(net.add("Gemm", y, net.randn(32, 24))))
    tvm = registry.get("tvm")
    tvm.probe()
    instance = tvm.instances(Target(), BFLOAT16)[1]
    graph = model.graph
    said = [i for i in graph.operators if graph.nodes[i].op in PRODUCTS]
    said = [i for i in said if tvm.rounds(graph, i, instance)]
    from collage_engine.toolchains.tvm.lowering import lower_function

    made = schedules(lower_function(whole(model, instance)))
    assert len([name for name in made.values() if "bfloat16" in name]) == len(said)
    emulation = RoundingEmulation(model, BFLOAT16, threads=1)
    inputs, truth = sample(model)
    numbers = emulation.products.keys() & set(said)
    (emulated,) = emulation.errors(numbers, inputs, truth)
    compiled = Compiled(whole(model, instance))
    (output,) = compiled.run([inputs["x0"]])
    assert relative(np.asarray(output), truth[0]) == pytest.approx(emulated, rel=0.5)
