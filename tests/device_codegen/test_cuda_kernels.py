"""TVM's kernels for CUDA: their own source, run thread by thread on the CPU, and compiled.

`tests/gpu` runs them on a device, with the sizes of known models.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import ModelProto
from tvm import relax, tirx

from collage_engine.kernels.cuda import legalize
from collage_engine.kernels.cuda.direct import (
    DirectPlan,
    DirectProblem,
    direct_chosen,
    direct_plans,
)
from collage_engine.kernels.cuda.lowering import lower_module
from collage_engine.kernels.cuda.product.plan import (
    F16,
    FRAGMENT,
    PLAIN,
    ProductPlan,
    ProductSizes,
    Tile,
    chosen,
    tiles_for,
)
from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.kernels.tuner import difference
from collage_engine.lowering.cubin import compile_cubin
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_onnx
from collage_engine.records.precision import FLOAT16, PRODUCTS, keep_float32
from collage_engine.records.toolchain import Target
from collage_engine.toolchains.runtime.cuda import nvrtc
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.device_codegen.cuda_on_cpu.emulator import Emulated, headers, source_of
from tests.device_codegen.cuda_plans import EXPORTED, model_of, normal
from tests.engine.test_quantized import conv_net
from tests.support.quantized_cases import composites, function_for
from tests.support.toolchain_cases import imported, whole
from tests.zoo import quantized as zoo_quantized
from tests.zoo.net import Net

TVM = TvmToolchain()
SMALL = Tile(32, 32, 32, (4, 4))
SMALL_F16 = Tile(32, 32, 64, (16, 16), "f16")
TOLERANCES = {"float32": 1e-5, "float16": 1e-3}
needs_headers = pytest.mark.skipif(headers() is None, reason="no CUDA headers here")
needs_compiler = pytest.mark.skipif(not nvrtc(), reason="no CUDA compiler here")


def weight(shape: tuple[int, ...], dtype: str) -> Any:
    value = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return relax.const(value / np.prod(shape[1:]) ** 0.5, dtype)


def conv(dtype: str, x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> tvm.IRModule:
    """A convolution of images, a bias and ReLU."""
    builder, data = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x, dtype))
    with builder.function("main", [data]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(data, weight(w, dtype), **how))
            y = builder.emit(relax.op.add(y, weight((1, w[0], 1, 1), dtype)))
            y = builder.emit_output(relax.op.nn.relu(y))
        builder.emit_func_output(y)
    return builder.get()


def lowered(
    monkeypatch: pytest.MonkeyPatch,
    module: tvm.IRModule,
    plan: ProductPlan | None,
    architecture: str = "sm_80",
) -> tvm.IRModule:
    """The module's kernels, products in tiles of this plan."""
    if plan is not None:
        monkeypatch.setattr(legalize, "chosen", lambda *_: plan)
    return lower_module(module, architecture)


def source_for(kernels: tvm.IRModule, rule: str, architecture: str) -> str:
    """The CUDA source of the only kernel that a rule wrote, which must compile."""
    (kernel,) = (
        f
        for f in kernels.functions.values()
        if isinstance(f, tirx.PrimFunc) and f.attrs[SCHEDULE] == rule
    )
    source = source_of(kernel, architecture)
    assert compile_cubin(source, architecture)[:4] == b"\x7fELF"
    return source


def test_plans_of_products_fill_the_device() -> None:
    """Few tiles and a long sum: it is split; many tiles: the largest that pays."""
    small = chosen(ProductSizes(1, 512, 49, 4608), "plain", 132)
    assert small.split > 1
    large = chosen(ProductSizes(1, 4096, 4096, 4096), "plain", 132)
    assert large.split == 1 and large.tile.m * large.tile.n >= 128 * 64
    assert chosen(ProductSizes(1, 4096, 4096, 4096), "f16", 132).split == 1


@pytest.mark.parametrize("math", ["plain", "f16"])
def test_tiles_fit_a_block(math: str) -> None:
    for tile in tiles_for(math):
        assert tile.threads <= 1024 and tile.shared_bytes <= 48 << 10
        assert tile.m % tile.thread[0] == tile.n % tile.thread[1] == 0
        assert tile.k % FRAGMENT == 0 or math == "plain"


def direct(**others: Any) -> DirectProblem:
    """A depthwise convolution, but for what is said."""
    usual: dict[str, Any] = {
        "batch": 1,
        "groups": 144,
        "rows": 1,
        "channels": 1,
        "image": (1, 56, 56),
        "out": (1, 56, 56),
        "taps": (1, 3, 3),
        "strides": (1, 1, 1),
        "dilation": (1, 1, 1),
        "before": (0, 1, 1),
        "dtype": "float32",
    }
    return DirectProblem(**(usual | others))


@pytest.mark.parametrize(
    "problem",
    [
        direct(),
        direct(image=(1, 7, 7), out=(1, 7, 7), groups=960),
        direct(dtype="float16"),
        direct(groups=32, rows=4, channels=4),
        direct(groups=1, rows=3, channels=512),
        direct(image=(1, 112, 112), taps=(1, 7, 7), strides=(1, 2, 2), before=(0, 3, 3)),
    ],
)
def test_plans_of_direct_convolutions_suit_their_shapes(problem: DirectProblem) -> None:
    """Whole images of small planes, vectors where rows allow them, no more than a block has."""
    plans = list(direct_plans(problem))
    assert plans and direct_chosen(problem, 132) in plans
    for plan in plans:
        assert problem.groups % plan.groups == problem.channels % plan.deep == 0
        assert problem.rows % plan.row == 0
        assert plan.threads(problem) <= 512 and plan.shared_bytes(problem) <= 48 << 10


def test_direct_convolutions_read_vectors_where_rows_are_whole_ones() -> None:
    tall = DirectPlan(1, 1, 8, 14, 2, 4, 1)
    assert tall.vector(direct()) == 4 and tall.shift(direct()) == 3
    assert tall.vector(direct(image=(1, 7, 7), out=(1, 7, 7))) == 1


CASES: dict[str, tuple[Any, str, ProductPlan | None]] = {
    "strided, groups, a batch, split": (
        lambda d: conv(d, (2, 16, 9, 9), (32, 8, 3, 3), strides=2, padding=1, groups=2),
        "float32",
        ProductPlan(SMALL, 2),
    ),
    "depthwise, strided, dilated, uneven pads": (
        lambda d: conv(
            d,
            (1, 8, 23, 18),
            (8, 1, 5, 3),
            strides=(2, 3),
            dilation=(1, 2),
            padding=(2, 0, 1, 3),
            groups=8,
        ),
        "float16",
        None,
    ),
}
"""Makes the module for a type; the type; the plan of its products, where it has any."""


@needs_headers
@pytest.mark.parametrize("name", CASES)
def test_the_kernels_source_computes_what_the_operators_say(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Threads in either order, against TVM's own kernels for the processor, in float32."""
    case, dtype, plan = CASES[name]
    plain = case("float32")
    random = np.random.default_rng(3)
    inputs = [
        random.standard_normal([int(e) for e in p.ty.shape.values]).astype(np.float32)
        for p in plain["main"].params
    ]
    machine = relax.VirtualMachine(tvm.compile(plain, "llvm"), tvm.cpu())
    truth = machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
    kernels = lowered(monkeypatch, case(dtype), plan)
    emulated = Emulated(kernels, tmp_path, str(headers()))
    assert ("Direct" if plan is None else "Product") in emulated.rules
    for downwards in (False, True):
        result = emulated.run([a.astype(dtype) for a in inputs], downwards=downwards)
        assert difference(truth, result.astype(np.float32)) < TOLERANCES[dtype]


def pointwise(dtype: str) -> tvm.IRModule:
    """A 1x1 convolution whose rows are whole vectors."""
    return conv(dtype, (1, 64, 8, 8), (32, 64, 1, 1))


@needs_compiler
def test_tensor_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ProductPlan(SMALL_F16)
    kernels = lowered(monkeypatch, pointwise("float16"), plan, architecture="sm_90a")
    assert "matrix_a, 16, 16, 16, half" in source_for(kernels, "Product", "sm_90a")


@needs_compiler
def test_a_depthwise_kernel_reads_vectors_and_compiles() -> None:
    module = conv("float32", (1, 32, 56, 56), (32, 1, 3, 3), padding=1, groups=32)
    source = source_for(lower_module(module, "sm_90a"), "Direct", "sm_90a")
    assert "*(float4*)(direct_a_shared_ptr" in source and "max(" in source


def test_products_left_in_float32_are_computed_so(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net("three products")
    y = net.conv(net.input("x", (1, 64, 16, 16)), 64, 64, 3, bias=False)
    y = net.conv(net.op("Relu", y), 64, 64, 1, bias=False)
    net.output(net.op("MatMul", net.reshape(y, 64, 256), net.weight(256, 64)))
    model = imported(net.model())
    graph = model.graph
    products = [k for k, i in enumerate(graph.operators) if graph.nodes[i].op in PRODUCTS]
    assert len(products) == 3
    asked: list[str] = []

    def noted(sizes: ProductSizes, math: str, count: int) -> ProductPlan:
        asked.append(math)
        return chosen(sizes, math, count)

    monkeypatch.setattr(legalize, "chosen", noted)
    _, reduced = TVM.instances(Target.cuda("sm_90a"), FLOAT16)
    TVM.lower(whole(model, keep_float32(reduced, [products[1]])))
    assert asked == [F16, PLAIN, F16]
    asked.clear()
    TVM.lower(whole(model, reduced))
    assert asked == [F16] * 3


def lowered_composite(model: ModelProto, architecture: str = "sm_80") -> tuple[Any, Any, Any]:
    """The model, its composite as a function for the architecture, and the kernels."""
    net = imported(model)
    (found,) = composites(net)
    (instance,) = TVM.instances(Target.cuda(architecture), "float32")
    function = function_for(net, found.nodes, instance, "composite")
    return net, function, TVM.lower(function)


@needs_compiler
def test_integers_are_multiplied_on_tensor_cores() -> None:
    model = zoo_quantized.quantize(conv_net((1, 64, 14, 14), 64, 1))
    _, _, kernels = lowered_composite(model, "sm_90a")
    source = source_for(kernels, "Product", "sm_90a")
    assert "matrix_a, 16, 16, 16, signed char, nvcuda::wmma::row_major>" in source


def test_an_architecture_without_them_computes_in_float() -> None:
    model = zoo_quantized.quantize(conv_net((1, 16, 8, 8), 16, 3))
    _, _, module = lowered_composite(model, "sm_70")
    kernels = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert any(str(f.attrs[SCHEDULE]) == "Product" for f in kernels)
    assert not any("signed char, nvcuda" in f.script() for f in kernels)
    assert any("float32" in f.script() and "product_c" in f.script() for f in kernels)


def test_composites_are_candidates() -> None:
    net = imported(zoo_quantized.quantize(conv_net((1, 16, 8, 8), 16, 3)))
    (instance,) = TVM.instances(Target.cuda("sm_90a"), "float32")
    spec = TVM.partition_spec(instance, net.graph)
    (found,) = composites(net)
    offered = [c.sub_graph.inside for c in spec.candidates(net.graph)]
    assert found.nodes in offered


ROWS = {
    "two sums and a layer norm": (
        "float16[1,3,40] x, float16[1,3,40] r",
        "a = Add(x, b) s = Add(a, r) y = LayerNormalization<axis=-1>(s, g, b)",
        ["GeneralReduction"],
    ),
    "RMS norm, written out in single precision": (
        "float16[1,3,40] x",
        "c = Cast<to=1>(x) q = Mul(c, c) m = ReduceMean<keepdims=1>(q, last) e = Add(m, eps) "
        "r = Sqrt(e) i = Div(one, r) n = Mul(c, i) h = Cast<to=10>(n) y = Mul(g, h)",
        ["Reduction"],
    ),
    "embeddings of words and positions, and a layer norm": (
        "int64[1,3] i, int64[1,3] j",
        "e = Gather(w, i) p = Gather(w, j) s = Add(e, p) y = LayerNormalization<axis=-1>(s, g, b)",
        ["GeneralReduction"],
    ),
    "embeddings and RMS norm": (
        "int64[1,3] i",
        "x = Gather(w, i) c = Cast<to=1>(x) q = Mul(c, c) m = ReduceMean<keepdims=1>(q, last) "
        "r = Sqrt(m) n = Div(c, r) h = Cast<to=10>(n) y = Mul(g, h)",
        ["GeneralReduction"],
    ),
}


@needs_headers
@pytest.mark.parametrize("name", ROWS)
def test_what_surrounds_a_reduction_of_rows_is_one_kernel(name: str, tmp_path: Path) -> None:
    inputs, nodes, rules = ROWS[name]
    half = {
        n: normal(*s, dtype="float16") for n, s in {"g": (40,), "b": (40,), "w": (5, 40)}.items()
    }
    numbers = {"eps": np.float32(1e-6), "one": np.float32(1), "last": np.array([-1])}
    given = {n: v for n, v in (half | numbers).items() if re.search(rf"\b{n}\b", nodes)}
    model = model_of(inputs, nodes, **given)
    (instance,) = TVM.instances(Target.cuda("sm_90a"), "float32")
    function = function_of(model, instance, tuple(range(len(model.graph.operators))), "rows")
    lowered = TVM.lower(function)
    kernels = Emulated(lowered, tmp_path, str(headers()))
    assert kernels.rules == rules
    values = model.random_inputs(0)
    values |= {n: np.array([[0, -1, -5]]) for n in "ij" if n in values}  # -1: the last of 5 rows
    names = dict(zip(model.graph.record.inputs, (name for name, _ in model.inputs), strict=True))
    result = kernels.run([values[names[index]] for index in function.inputs])
    truth = original_outputs(model, values)["y"]
    np.testing.assert_allclose(result, truth, rtol=1e-2, atol=2e-3)
    for architecture in ("sm_80", "sm_90a", "sm_100") if nvrtc() else ():
        for kernel in lowered.functions.values():
            if isinstance(kernel, tirx.PrimFunc):
                assert compile_cubin(source_of(kernel, architecture), architecture)


@pytest.mark.parametrize("name", EXPORTED.namelist())
def test_norms_of_exported_models_are_one_kernel_each(name: str) -> None:
    """Whatever an exporter makes of a normalisation or a softmax, its row is one kernel."""
    model = import_onnx(onnx.load_model_from_string(EXPORTED.read(name)))
    (instance,) = TVM.instances(Target.cuda("sm_90a"), "float32")
    left = tuple(range(len(model.graph.operators)))
    if any(TVM.supports(model.graph, index, instance) for index in model.graph.operators):
        pytest.skip("TVM does not take all of it")
    lowered = TVM.lower(function_of(model, instance, left, "model"))
    kernels = {
        str(v.name_hint): f for v, f in lowered.functions.items() if isinstance(f, tirx.PrimFunc)
    }
    assert "softmax_rows" in kernels and kernels.keys() & {"layer_norm_rows", "mean_rows"}
    assert not [each for each in kernels if "softmax" in each and "rows" not in each]
