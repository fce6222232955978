"""Products on CUDA: the kernels' own source, run thread by thread on the CPU, and compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from collage_engine.kernels.cuda.epilogue import note_on
from collage_engine.kernels.cuda.legalize import Products
from collage_engine.kernels.cuda.lowering import OWN, lower_module, schedule_of
from collage_engine.kernels.cuda.product.plan import (
    FRAGMENT,
    ProductPlan,
    ProductSizes,
    Tile,
    chosen,
    tiles_for,
)
from collage_engine.kernels.cuda.product.reference import AnnotatedProduct
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.kernels.tuner import build, difference
from collage_engine.lowering.cubin import compile_cubin
from collage_engine.machine.cuda import cuda_target
from collage_engine.toolchains.runtime.cuda import nvrtc
from tests.device_codegen.cuda_on_cpu.emulator import Kernel, headers, source_of
from tests.device_codegen.cuda_on_cpu.whole import Emulated

LONG = os.environ.get("COLLAGE_LONG_TESTS") == "1"
SMALL = {
    "plain": Tile(32, 32, 32, (4, 4)),
    "f16": Tile(32, 32, 64, (16, 16), "f16"),
}
DTYPES = {"plain": "float32", "f16": "float16", "bf16": "bfloat16"}
TOLERANCES = {"plain": 1e-5, "f16": 1e-3, "bf16": 1e-2}


needs_headers = pytest.mark.skipif(headers() is None, reason="no CUDA headers here")
needs_compiler = pytest.mark.skipif(not nvrtc(), reason="no CUDA compiler here")


def module_of(build_body: Any, inputs: dict[str, tuple[int, ...]], dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    variables = [relax.Var(n, relax.TensorType(s, dtype)) for n, s in inputs.items()]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(build_body(builder, *variables))
        builder.emit_func_output(result)
    return builder.get()


def weight(shape: tuple[int, ...], dtype: str) -> Any:
    value = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return relax.const(value / np.prod(shape[1:]) ** 0.5, dtype)


def conv(
    dtype: str, x: tuple[int, ...], w: tuple[int, ...], residual: bool = False, **how: Any
) -> tvm.IRModule:
    """Convolution, bias, residual if asked for, ReLU."""
    operator = getattr(relax.op.nn, f"conv{len(x) - 2}d")
    bias = weight((1, w[0], *(1 for _ in x[2:])), dtype)

    def body(builder: Any, data: Any, *rest: Any) -> Any:
        y = builder.emit(relax.op.add(builder.emit(operator(data, weight(w, dtype), **how)), bias))
        for other in rest:
            y = builder.emit(relax.op.add(y, other))
        return builder.emit(relax.op.nn.relu(y))

    inputs = {"x": x}
    if residual:
        inputs["r"] = (x[0], w[0], *x[2:])
    return module_of(body, inputs, dtype)


def deconv(dtype: str, x: tuple[int, ...], w: tuple[int, ...], **how: Any) -> tvm.IRModule:
    def body(builder: Any, data: Any) -> Any:
        return builder.emit(relax.op.nn.conv2d_transpose(data, weight(w, dtype), **how))

    return module_of(body, {"x": x}, dtype)


def dense(dtype: str, a: tuple[int, ...], b: tuple[int, ...]) -> tvm.IRModule:
    def body(builder: Any, x: Any, y: Any) -> Any:
        return builder.emit(relax.op.nn.gelu(builder.emit(relax.op.matmul(x, y))))

    return module_of(body, {"x": a, "y": b}, dtype)


Call = tuple[tirx.PrimFunc, list[Any], Any]
"""A kernel, what it is called with, and the variable its result is bound to."""


def legal(module: tvm.IRModule, table: dict[str, Any]) -> list[Call]:
    """Its kernels, not yet scheduled, in the order ``main`` calls them."""
    done = tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(table),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)
    bindings = done["main"].body.blocks[0].bindings
    calls = [b for b in bindings if len(getattr(b.value, "args", ())) > 1]
    return [(done[b.value.args[0]], list(b.value.args[1]), b.var) for b in calls]


def run(module: tvm.IRModule, table: dict[str, Any], inputs: list[Any], kernel: Any) -> Any:
    """``main`` by hand; anchors go to ``kernel(function, arrays)``."""
    values = dict(zip(module["main"].params, inputs, strict=True))
    by_name = {str(v.name): a for v, a in values.items()}
    result = None
    for function, arguments, variable in legal(module, table):
        arrays = [
            a.value.numpy() if isinstance(a, tvm.ir.GenericConst) else by_name[str(a.name)]
            for a in arguments
        ]
        output = function.params[-1]
        shape = shape_of(output)
        arrays.append(np.full(shape, np.nan, arrays[0].dtype).astype(str(output.dtype)))
        if any(note_on(function, block, note) for _, block, note, _ in OWN):
            kernel(function, arrays)
        else:
            tensors = [tvm.runtime.tensor(a) for a in arrays]
            build(function)["kernel"](*tensors)
            arrays[-1] = tensors[-1].numpy()
        result = by_name[str(variable.name)] = arrays[-1]
    return result


CONVS: dict[str, Any] = {
    "3x3 with pads and a remainder": lambda d: conv(
        d, (1, 5, 9, 9), (33, 5, 3, 3), residual=True, padding=1
    ),
    "1x1, whole vectors": lambda d: conv(d, (1, 64, 8, 8), (32, 64, 1, 1)),
    "strided, groups, a batch": lambda d: conv(
        d, (2, 16, 9, 9), (32, 8, 3, 3), strides=2, padding=1, groups=2
    ),
    "one axis, dilated": lambda d: conv(d, (1, 8, 40), (16, 8, 3), padding=2, dilation=2),
    "transposed": lambda d: deconv(d, (1, 16, 5, 5), (16, 16, 4, 4), strides=2, padding=1),
    "dense with a remainder": lambda d: dense(d, (1, 35, 50), (50, 40)),
    "batched": lambda d: dense(d, (2, 3, 16, 64), (3, 64, 32)),
}
DEFAULT = {
    ("plain", "3x3 with pads and a remainder"),
    ("plain", "strided, groups, a batch"),
    ("f16", "batched"),
    ("f16", "3x3 with pads and a remainder"),
    ("bf16", "one axis, dilated"),
}


def test_plans_fill_the_device() -> None:
    """Few tiles and a long sum: it is split; many tiles: the largest that pays."""
    small = chosen(ProductSizes(1, 512, 49, 4608), "plain", 132)
    assert small.split > 1
    large = chosen(ProductSizes(1, 4096, 4096, 4096), "plain", 132)
    assert large.split == 1 and large.tile.m * large.tile.n >= 128 * 64
    assert chosen(ProductSizes(1, 4096, 4096, 4096), "f16", 132).split == 1


@pytest.mark.parametrize("math", SMALL)
def test_tiles_fit_a_block(math: str) -> None:
    for tile in tiles_for(math):
        assert tile.threads <= 1024 and tile.shared_bytes <= 48 << 10
        assert tile.m % tile.thread[0] == tile.n % tile.thread[1] == 0
        assert tile.k % FRAGMENT == 0 or math == "plain"


@needs_compiler
def test_tensor_cores_are_used() -> None:
    case = CONVS["1x1, whole vectors"]("float16")
    table = Products("sm_90a", "float32", plans=lambda *_: ProductPlan(SMALL["f16"])).table()
    (function,) = [f for f, _, _ in legal(case, table) if note_on(f, "product_c", AnnotatedProduct)]
    kernel = schedule_of(function, cuda_target("sm_90a"), "product")
    assert kernel.attrs[SCHEDULE] == "Product"
    source = source_of(kernel, "sm_90a")
    assert "matrix_a, 16, 16, 16, half" in source
    assert compile_cubin(source, "sm_90a")[:4] == b"\x7fELF"


@needs_headers
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("kind", DTYPES)
def test_the_kernels_source_computes_what_the_unscheduled_function_does(
    kind: str, name: str, tmp_path: Path
) -> None:
    if not LONG and (kind, name) not in DEFAULT:
        pytest.skip("COLLAGE_LONG_TESTS=1 runs every pair")
    split = 2 if name in ("dense with a remainder", "strided, groups, a batch") else 1
    # What is bfloat16 is multiplied in float32.
    plan = ProductPlan(SMALL["plain" if kind == "bf16" else kind], split)
    check(CONVS[name], plan, tmp_path, kind)


@needs_headers
def test_float32_is_rounded_on_the_way_where_that_is_asked_for(tmp_path: Path) -> None:
    plan = ProductPlan(SMALL["f16"])
    check(CONVS["1x1, whole vectors"], plan, tmp_path, "f16", rounds=True)


@needs_headers
@pytest.mark.skipif(not LONG, reason="COLLAGE_LONG_TESTS=1 runs every tile")
@pytest.mark.parametrize("tile", [t for m in SMALL for t in tiles_for(m)], ids=str)
def test_every_tile_computes_the_same(tile: Tile, tmp_path: Path) -> None:
    check(
        lambda d: conv(d, (1, 40, 10, 10), (130, 40, 3, 3), padding=1),
        ProductPlan(tile),
        tmp_path,
        tile.math,
    )


def check(case: Any, plan: ProductPlan, folder: Path, kind: str, rounds: bool = False) -> None:
    """Threads in either order, against TVM's own legalisation in single precision."""
    plain = case("float32")
    dtype, precision = ("float32", "float16") if rounds else (DTYPES[kind], "float32")
    random = np.random.default_rng(3)
    inputs = [
        random.standard_normal([int(e) for e in p.ty.shape.values]).astype(np.float32)
        for p in plain["main"].params
    ]
    truth = run(plain, {}, inputs, None)
    products = Products("sm_80", precision, plans=lambda *_: plan)
    used: list[Kernel] = []
    for downwards in (False, True):

        def kernel(function: Any, arrays: Any, downwards: bool = downwards) -> None:
            if not used:
                scheduled = schedule_of(function, cuda_target("sm_80"), "product")
                assert scheduled.attrs[SCHEDULE] == "Product"
                used.append(Kernel(scheduled, folder, include=headers() or ""))
            used[0](arrays, downwards=downwards)

        found = run(case(dtype), products.table(), [a.astype(dtype) for a in inputs], kernel)
        assert used, "there was no product"
        assert difference(truth, found.astype(np.float32)) < TOLERANCES[kind]


@needs_headers
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_mask_of_truth_values_behind_a_product(dtype: str, tmp_path: Path) -> None:
    """TVM writes a vector of truth values as one of 16-bit numbers: none may be written."""
    keep = np.tril(np.ones((1, 32, 32), bool))

    def body(builder: Any, x: Any, y: Any) -> Any:
        product = builder.emit(relax.op.matmul(x, y))
        return builder.emit(relax.op.where(relax.const(keep), product, relax.const(-9.0, dtype)))

    module = module_of(body, {"x": (1, 32, 32), "y": (1, 32, 32)}, dtype)
    random = np.random.default_rng(3)
    x, y = (random.standard_normal((1, 32, 32)).astype(dtype) for _ in range(2))
    emulated = Emulated(lower_module(module, "sm_80"), tmp_path, str(headers()))
    assert emulated.rules == ["Product"]
    truth = np.where(keep, x.astype("float32") @ y.astype("float32"), -9.0)
    assert np.abs(emulated.run([x, y]) - truth).max() < (2e-2 if dtype == "float16" else 1e-4)
