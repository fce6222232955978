"""Quantised composites on CUDA: int8 products on tensor cores, their source run on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto
from tvm import tirx

from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.lowering.cubin import compile_cubin
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.device_codegen.cuda_on_cpu.emulator import source_of
from tests.device_codegen.cuda_on_cpu.whole import Emulated
from tests.device_codegen.test_cuda_products import LONG, headers, needs_compiler, needs_headers
from tests.engine.test_quantized import conv_net
from tests.support.quantized_cases import composites, function_for, true_values
from tests.support.toolchain_cases import imported
from tests.zoo import quantized as zoo_quantized
from tests.zoo.net import Net

TVM = TvmToolchain()


def dense_net(shape: tuple[int, ...], columns: int) -> ModelProto:
    net = Net("dense", opset=13, seed=columns)
    net.output(net.op("MatMul", net.input("x", list(shape)), net.weight(shape[-1], columns)))
    return net.model()


CASES: dict[str, tuple[Any, str]] = {
    "3x3, a remainder": (lambda: conv_net((1, 20, 9, 7), 40, 3), "Product"),
    "1x1, a batch, vectors": (lambda: conv_net((2, 24, 8, 8), 48, 1), "Product"),
    "strided groups, no relu": (
        lambda: conv_net((1, 32, 12, 12), 32, 3, group=2, stride=2, relu=False),
        "Product",
    ),
    "depthwise": (lambda: conv_net((1, 24, 11, 13), 24, 3, group=24), "Direct"),
    "depthwise, strided, vectors": (
        lambda: conv_net((1, 16, 24, 24), 16, 3, group=16, stride=2),
        "Direct",
    ),
    "small groups": (lambda: conv_net((1, 24, 10, 10), 24, 3, group=6), "Direct"),
    "matmul": (lambda: dense_net((1, 35, 50), 40), "Product"),
    "matmul, vectors, batches": (lambda: dense_net((2, 17, 64), 96), "Product"),
}
DEFAULT = {
    ("3x3, a remainder", False),
    ("depthwise, strided, vectors", True),
    ("matmul", False),
}


def lowered(model: ModelProto, architecture: str = "sm_80") -> tuple[Any, Any, Any]:
    """The model, its composite as a function for the architecture, and the kernels."""
    net = imported(model)
    (found,) = composites(net)
    (instance,) = TVM.instances(Target.cuda(architecture), "float32")
    function = function_for(net, found.nodes, instance, "composite")
    return net, function, TVM.lower(function)


@needs_headers
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_composites_are_right_to_one_step(name: str, signed: bool, tmp_path: Path) -> None:
    if not LONG and (name, signed) not in DEFAULT:
        pytest.skip("COLLAGE_LONG_TESTS=1 runs every pair")
    make, rule = CASES[name]
    net, function, module = lowered(zoo_quantized.quantize(make(), signed=signed))
    random = np.random.default_rng(5)
    feeds = {n: random.standard_normal(k.shape).astype(np.float32) for n, k in net.inputs}
    truth = true_values(net, tmp_path / "truth", feeds)
    emulated = Emulated(module, tmp_path, headers() or "")
    assert emulated.rules == [rule]
    (true,) = truth.outputs_of(function)
    for downwards in (False, True):
        result = emulated.run([np.array(v) for v in truth.inputs_of(function)], downwards=downwards)
        apart = np.abs(result.astype(np.int32) - true.astype(np.int32))
        assert apart.max() <= 1 and (apart > 0).mean() < 1e-2


@needs_compiler
def test_integers_are_multiplied_on_tensor_cores() -> None:
    _, _, module = lowered(zoo_quantized.quantize(conv_net((1, 64, 14, 14), 64, 1)), "sm_90a")
    (kernel,) = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    source = source_of(kernel, "sm_90a")
    assert "matrix_a, 16, 16, 16, signed char, nvcuda::wmma::row_major>" in source
    assert compile_cubin(source, "sm_90a")[:4] == b"\x7fELF"


def test_an_architecture_without_them_computes_in_float() -> None:
    _, _, module = lowered(zoo_quantized.quantize(conv_net((1, 16, 8, 8), 16, 3)), "sm_70")
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert any(str(f.attrs[SCHEDULE]) == "Product" for f in kernels)
    assert not any("signed char, nvcuda" in f.script() for f in kernels)
    assert any("float32" in f.script() and "product_c" in f.script() for f in kernels)


def test_composites_are_candidates() -> None:
    net = imported(zoo_quantized.quantize(conv_net((1, 16, 8, 8), 16, 3)))
    (instance,) = TVM.instances(Target.cuda("sm_90a"), "float32")
    spec = TVM.partition_spec(instance, net.graph)
    (found,) = composites(net)
    offered = [net.graph.to_operators(c.sub_graph.inside) for c in spec.candidates(net.graph)]
    assert net.graph.to_operators(net.graph.close(found.nodes)) in offered


@needs_headers
@pytest.mark.skipif(not LONG, reason="COLLAGE_LONG_TESTS=1 runs a whole block")
@pytest.mark.parametrize("signed", [False, True])
def test_a_residual_block_stays_in_integers(signed: bool, tmp_path: Path) -> None:
    """Sums of two scales, residuals inside and outside of composites, channels first throughout."""
    net = imported(zoo_quantized.quantize(zoo_quantized.float_resnet_block(10, 16), signed=signed))
    (instance,) = TVM.instances(Target.cuda("sm_80"), "float32")
    everything = sum(1 << i for i in net.graph.operators)
    function = function_for(net, everything, instance, "block")
    random = np.random.default_rng(5)
    feeds = {n: random.standard_normal(k.shape).astype(np.float32) for n, k in net.inputs}
    truth = true_values(net, tmp_path / "truth", feeds)
    emulated = Emulated(TVM.lower(function), tmp_path, headers() or "")
    assert emulated.rules.count("Product") == 7
    result = emulated.run([np.array(v) for v in truth.inputs_of(function)])
    (true,) = truth.outputs_of(function)
    # Steps of one layer are carried on by the next.
    assert np.abs(result - true).max() <= 0.05 * np.abs(true).max()
