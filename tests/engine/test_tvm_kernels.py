"""Products, reductions, normalisations and everything pointwise against their plain selves.

And what TVM says when it cannot build.

The check of a kernel's indices finds what lies outside a buffer, and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from collage_engine.lowering.compile import Compiled
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ToolchainError
from tests.support.toolchain_cases import imported, one_operator, whole

pytest.importorskip("tvm")

import tvm
from tvm import relax, tirx

from collage_engine.kernels.expressions import nesting
from collage_engine.kernels.program import inline, read_program
from collage_engine.kernels.stack_buffers import LINE_BYTES
from collage_engine.kernels.target import cpu
from collage_engine.kernels.tir_builder import (
    allocate,
    f32,
    for_range,
    int64,
    load,
    loop,
    prefetch,
    seq,
    store,
    vectorized,
    when,
    workspace,
)
from collage_engine.kernels.tuner import build, difference
from collage_engine.kernels.vector_math import vector_functions
from collage_engine.machine.device import cpu_target
from tests.support.index_bounds import out_of_bounds
from tests.support.tvm_cases import check, constant, error_of, function, kernels

op = relax.op


# Matrix products ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "left, right",
    [
        ((17, 33), (33, 21)),
        ((1, 2048), (2048, 100)),
        ((1, 64), (64, 1)),
        ((2, 5, 96), (96, 40)),
        ((3, 48), (48, 200)),
        ((128, 64), (64, 96)),
    ],
)
@pytest.mark.parametrize("tail", [False, True])
def test_product_with_a_constant(left: Any, right: Any, tail: bool) -> None:
    def body(x: Any) -> Any:
        y = yield op.matmul(x, constant(*right))
        if tail:
            y = yield op.add(y, constant(right[-1]))
            yield op.nn.gelu(y)

    check(function([left], body), "matmul packed")


@pytest.mark.parametrize(
    "left, right",
    [
        ((12, 33, 16), (12, 16, 50)),
        ((2, 3, 7, 9), (2, 3, 9, 5)),
        ((2, 3, 7, 9), (9, 64)),
        ((2, 1, 7, 9), (1, 3, 9, 18)),
        ((64, 192), (192, 200)),
        ((3, 40, 300), (3, 300, 70)),
    ],
)
def test_product_of_two_inputs(left: Any, right: Any) -> None:
    check(function([left, right], lambda x, y: op.matmul(x, y)), "matmul runtime")


def test_product_with_a_batched_constant() -> None:
    check(function([(3, 7, 9)], lambda x: op.matmul(x, constant(3, 9, 20))), "matmul runtime")


def test_half_precision_products_are_summed_in_single_precision() -> None:
    def half(*shape: int) -> Any:
        return relax.const(constant(*shape).value.numpy().astype(np.float16))

    def dense(x: Any) -> Any:
        h = yield op.astype(x, "float16")
        yield op.astype(op.matmul(h, half(300, 40)), "float32")

    def inputs(x: Any, y: Any) -> Any:
        a = yield op.astype(x, "float16")
        b = yield op.astype(y, "float16")
        yield op.astype(op.matmul(a, b), "float32")

    def image(x: Any) -> Any:
        h = yield op.astype(x, "float16")
        y = yield op.nn.conv2d(h, half(24, 40, 3, 3), padding=1)
        z = yield op.add(y, half(1, 24, 1, 1))
        yield op.astype(op.nn.relu(z), "float32")

    for shapes, body, family in (
        ([(9, 300)], dense, "matmul"),
        ([(9, 50), (50, 33)], inputs, "matmul"),
        ([(1, 40, 9, 7)], image, "conv"),
    ):
        found = kernels(function(shapes, body))
        assert any(k.schedule.startswith(family) for k in found)
        for kernel in found:
            assert not kernel.reason
            assert error_of(kernel) < 1e-3


# Reductions and rows -----------------------------------------------------------------------

ROWS: list[tuple[str, Any, Any]] = [
    ("softmax", (12, 33, 65), lambda x: op.nn.softmax(x, -1)),
    ("softmax of channels", (1, 21, 5, 7), lambda x: op.nn.softmax(x, 1)),
    ("softmax of one row", (1, 1000), lambda x: op.nn.softmax(x, -1)),
    ("softmax of points", (1, 40, 1, 1), lambda x: op.nn.softmax(x, 1)),
    ("log_softmax", (9, 100), lambda x: op.nn.log_softmax(x, -1)),
    ("mean of images", (2, 19, 7, 7), lambda x: op.mean(x, [2, 3], True)),
    ("mean of channels last", (2, 7, 7, 40), lambda x: op.mean(x, [1, 2], True)),
    ("mean of all", (13, 11), lambda x: op.mean(x)),
    ("sum of rows", (37, 131), lambda x: op.sum(x, [0])),
    ("maximum", (5, 6, 70), lambda x: op.max(x, [1])),
    ("minimum", (5, 300), lambda x: op.min(x, [1], True)),
    ("product", (5, 9), lambda x: op.prod(x, [1])),
    ("variance", (8, 77), lambda x: op.variance(x, [1])),
    (
        "layer_norm",
        (10, 77),
        lambda x: op.nn.layer_norm(x, constant(77), constant(77, seed=1), [-1]),
    ),
    (
        "instance_norm",
        (2, 5, 9, 9),
        lambda x: op.nn.instance_norm(x, constant(5), constant(5, seed=1), 1, [2, 3]),
    ),
    (
        "group_norm",
        (2, 12, 5, 5),
        lambda x: op.nn.group_norm(x, constant(12), constant(12, seed=1), 3, 1, [2, 3]),
    ),
    ("rms_norm", (10, 64), lambda x: op.nn.rms_norm(x, constant(64), [-1])),
    ("max_pool", (1, 7, 23, 19), lambda x: op.nn.max_pool2d(x, [3, 3], [2, 2], [1, 1, 1, 1])),
    (
        "max_pool last",
        (1, 13, 14, 24),
        lambda x: op.nn.max_pool2d(x, [3, 3], [2, 2], [0, 0, 1, 1], layout="NHWC"),
    ),
    ("avg_pool", (1, 5, 14, 14), lambda x: op.nn.avg_pool2d(x, [3, 3], [1, 1], [1, 1, 1, 1])),
]


def test_what_no_schedule_understands_keeps_its_plain_loops_and_says_why() -> None:
    found = kernels(function([(1, 6, 13, 11)], lambda x: op.nn.adaptive_avg_pool2d(x, [3, 3])))
    assert [k.schedule for k in found] == ["plain"]
    assert found[0].reason and error_of(found[0]) == 0


@pytest.mark.parametrize("name, shape, body", ROWS, ids=[r[0] for r in ROWS])
def test_rows(name: str, shape: Any, body: Any) -> None:
    check(function([shape], body))


# Pointwise ---------------------------------------------------------------------------------

POINTS: list[tuple[str, Any, Any]] = [
    ("relu", [(3, 7, 7)], lambda x: op.nn.relu(x)),
    ("scalar", [()], lambda x: op.exp(x)),
    ("add", [(2, 19, 13, 13), (2, 19, 13, 13)], lambda x, y: op.add(x, y)),
    ("bias", [(2, 19, 13, 13)], lambda x: op.add(x, constant(1, 19, 1, 1))),
    ("row and column", [(37, 1), (1, 45)], lambda x, y: op.multiply(x, y)),
    ("gelu", [(9, 77)], lambda x: op.nn.gelu(x)),
    ("sigmoid", [(1000,)], lambda x: op.sigmoid(x)),
    ("power", [(77,)], lambda x: op.power(op.abs(x), relax.const(0.75))),
    ("cube", [(77,)], lambda x: op.power(x, relax.const(3.0))),
    ("where", [(9, 31), (9, 31)], lambda x, y: op.where(op.greater(x, y), x, y)),
    ("transpose of squares", [(1, 3, 50, 35)], lambda x: op.permute_dims(x, [0, 1, 3, 2])),
    ("channels last", [(2, 35, 7, 9)], lambda x: op.permute_dims(x, [0, 2, 3, 1])),
    ("channels first", [(2, 7, 9, 35)], lambda x: op.permute_dims(x, [0, 3, 1, 2])),
    ("heads", [(1, 9, 4, 16)], lambda x: op.permute_dims(x, [0, 2, 1, 3])),
    ("reverse", [(5, 6, 20)], lambda x: op.permute_dims(x, [2, 1, 0])),
    ("concat", [(1, 5, 27), (1, 3, 27)], lambda x, y: op.concat([x, y], 1)),
    ("concat last", [(4, 5), (4, 18)], lambda x, y: op.concat([x, y], 1)),
    ("split", [(4, 30)], lambda x: op.add(*(op.split(x, 2, 1)[i] for i in range(2)))),
    ("slice", [(9, 40)], lambda x: op.strided_slice(x, [0, 1], [1, 2], [9, 39], [3, 2])),
    ("pad", [(1, 3, 7, 9)], lambda x: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 3, 0])),
    (
        "nearest",
        [(1, 3, 7, 9)],
        lambda x: op.image.resize2d(x, (14, 18), method="nearest_neighbor"),
    ),
    ("linear", [(1, 3, 7, 9)], lambda x: op.image.resize2d(x, (15, 11), method="linear")),
    ("gather", [(20, 33)], lambda x: op.take(x, relax.const(np.array([3, 0, 19, 7])), 0)),
    ("cast", [(4, 33)], lambda x: op.astype(op.astype(x, "int32"), "float32")),
    ("half", [(4, 33)], lambda x: op.astype(op.astype(x, "float16"), "float32")),
    ("reshape", [(4, 6, 5)], lambda x: op.reshape(x, (12, 10))),
    ("broadcast", [(4, 1, 5)], lambda x: op.broadcast_to(x, (4, 7, 5))),
    ("tile", [(4, 5)], lambda x: op.tile(x, (2, 3))),
    ("flip", [(4, 37)], lambda x: op.flip(x, 1)),
]


@pytest.mark.parametrize("name, shapes, body", POINTS, ids=[p[0] for p in POINTS])
def test_pointwise(name: str, shapes: Any, body: Any) -> None:
    check(function(shapes, body))


def test_a_number_between_two_steps_is_quantised_as_it_is_divided() -> None:
    scale, zero = np.float32(0.3), np.int8(3)
    middles = ((np.arange(-120, 120) + 0.5) * scale).astype(np.float32)
    values = np.concatenate([middles, np.nextafter(middles, np.float32(np.inf))])

    def body(x: Any) -> Any:
        return op.quantize(x, relax.const(scale), relax.const(zero), axis=0, out_dtype="int8")

    (kernel,) = kernels(function([values.shape], body))
    result = tvm.runtime.tensor(np.zeros(values.shape, np.int8))
    build(kernel.function)["kernel"](tvm.runtime.tensor(values), result)
    wanted = np.clip(np.rint(values / scale) + zero, -128, 127).astype(np.int8)
    np.testing.assert_array_equal(result.numpy(), wanted)


def test_an_infinite_exponent_is_left_to_the_library() -> None:
    (kernel,) = kernels(function([(64,)], lambda x: op.power(x, relax.const(np.float32(np.inf)))))
    assert not kernel.unscheduled


def test_functions_of_functions_are_stages_of_their_own() -> None:
    # In one expression, TVM's simplifier would take hours for Mish.
    def mish(x: Any) -> Any:
        inner = yield op.exp(x)
        inner = yield op.add(inner, relax.const(1.0, "float32"))
        inner = yield op.log(inner)
        inner = yield op.tanh(inner)
        yield op.multiply(x, inner)

    for shapes, body in [((2, 5, 33), mish), ((3, 70), lambda x: op.exp(op.tanh(x)))]:
        module = function([shapes], body)
        for kernel in kernels(module):
            stages = inline(read_program(kernel.plain)).stages
            assert [nesting(s.value) for s in stages] == [1, 1]
        check(module, "pointwise")


def test_a_value_read_twice_is_computed_once() -> None:
    """x·sigmoid(x) after an exponential: one kernel, and its dear part only once in it."""

    def body(x: Any) -> Any:
        y = yield op.exp(x)
        s = yield op.sigmoid(y)
        yield op.multiply(y, s)

    check(function([(9, 50)], body))
    (kernel,) = kernels(function([(9, 48)], body))  # whole vectors: one loop a stage
    script = kernel.function.script()
    assert script.count("x0_flat[") == 1, script


@pytest.mark.parametrize("threads", [1, 2])
def test_sums_in_registers_take_no_memory_of_the_workspace(threads: int) -> None:
    """Threads that share a loop would else allocate and free it for each of their pieces."""

    def body(x: Any) -> Any:
        yield op.mean(x, [2, 3])

    (mean,) = kernels(function([(1, 2000, 7, 7)], body), cpu(threads))
    code = build(mean.function).inspect_source("ll")
    assert ("call i32 %" in code and "@__tvm_parallel_lambda" in code) == (threads > 1)
    assert "load ptr, ptr @__TVMBackendAllocWorkspace" not in code
    assert f"alloca <{LINE_BYTES} x i8>, align {LINE_BYTES}" in code, "whole vectors lie in it"


# Functions of vectors ----------------------------------------------------------------------


def evaluate(call: Any, values: np.ndarray) -> np.ndarray:
    size = len(values)
    x = tirx.decl_buffer([int64(size)], "float32", "x")
    y = tirx.decl_buffer([int64(size)], "float32", "y")
    assert size % 16 == 0
    body = loop(
        size // 16,
        lambda i: vectorized(
            16, lambda lane: store(y, vector_functions(call(load(x, i * 16 + lane))), i * 16 + lane)
        ),
    )
    kernel = tirx.PrimFunc([x, y], seq(body)).with_attr("global_symbol", "kernel")
    built = tvm.tirx.build(tvm.IRModule({"kernel": kernel}), tvm.target.Target(cpu_target()))
    out = tvm.runtime.tensor(np.zeros_like(values))
    built["kernel"](tvm.runtime.tensor(values), out)
    return out.numpy().astype(np.float64)


@pytest.mark.parametrize(
    "name, reference, low, high, relative",
    [
        ("exp", math.exp, -87, 88, True),
        ("log", math.log, 1e-30, 1e4, False),
        ("tanh", math.tanh, -10, 10, False),
        ("erf", math.erf, -5, 5, False),
        ("sigmoid", lambda v: 1 / (1 + math.exp(-v)), -30, 30, False),
    ],
)
def test_accuracy(name: str, reference: Any, low: float, high: float, relative: bool) -> None:
    values = np.linspace(low, high, 4096, dtype=np.float32)
    want = np.array([reference(float(v)) for v in values])
    got = evaluate(getattr(tirx, name), values)
    scale = np.abs(want) if relative else 1.0
    assert np.max(np.abs(got - want) / scale) < 1e-6


def test_infinities_of_other_sign_and_nan_are_a_difference() -> None:
    want = np.array([1.0, np.inf, np.nan])
    assert difference(want, want.copy()) == 0.0
    assert difference(want, np.array([1.0, -np.inf, np.nan])) == math.inf
    assert difference(want, np.array([1.0, np.nan, np.nan])) == math.inf


def test_edges() -> None:
    values = np.zeros(16, np.float32)
    values[:6] = [np.nan, np.inf, -np.inf, 100.0, -200.0, 88.7]
    got = evaluate(tirx.exp, values)
    assert np.isnan(got[0]) and got[1] == np.inf and got[2] == 0
    assert got[3] == np.inf and got[4] == 0 and np.isfinite(got[5])
    values[:6] = [np.nan, np.inf, -1.0, 0.0, 1.0, -np.inf]
    got = evaluate(tirx.log, values)
    assert np.isnan(got[[0, 2, 5]]).all() and got[1] == np.inf and got[3] == -np.inf
    assert got[4] == 0
    for name in ("tanh", "erf"):
        got = evaluate(getattr(tirx, name), np.array([np.nan, np.inf, -np.inf, 0] * 4, np.float32))
        assert np.isnan(got[0]) and got[3] == 0
        assert got[1] == pytest.approx(1) and got[2] == pytest.approx(-1)


TVM = ToolchainInstance(toolchain="tvm")


def test_what_cannot_be_built_is_an_error_of_the_toolchain(monkeypatch) -> None:
    from collage_engine.lowering import executable

    def build(*_: object, **__: object) -> None:
        raise ValueError("Traceback\n\n  unknown intrinsic tirx.sinh\n")

    net = imported(one_operator("Relu", (4, 5)))
    monkeypatch.setattr(executable, "Executable", build)
    with pytest.raises(ToolchainError, match="TVM cannot build it: unknown intrinsic"):
        Compiled(whole(net, TVM))


BUFFER = workspace((4, 16), name="buffer")


def outside(body) -> list[str]:
    return out_of_bounds(tirx.PrimFunc([], seq(allocate(BUFFER), body)))


def zeros(i, first=0):
    return vectorized(16, lambda lane: store(BUFFER, f32(0.0), i, first + lane))


def test_stores_and_loads_past_the_end_are_found() -> None:
    assert not outside(loop(4, zeros))
    (line,) = outside(loop(5, zeros))
    assert line.startswith("stores to buffer of 64 elements from 0 to 79")
    (line,) = outside(loop(4, lambda i: store(BUFFER, load(BUFFER, i, 15) * 2.0, i + 1, 0)))
    assert line.startswith("stores to")
    (line,) = outside(loop(4, lambda i: store(BUFFER, load(BUFFER, i - 1, 15) * 2.0, i, 0)))
    assert line.startswith("reads buffer of 64 elements from -1 to 47")
    vector = tirx.BufferLoad(BUFFER, [3, tirx.Ramp(tirx.const(1, "int64"), 1, 16)])
    (line,) = outside(tirx.Evaluate(vector))
    assert "from 49 to 64" in line


def test_conditions_and_extents_of_loops_count() -> None:
    assert not outside(loop(9, lambda i: when(i * 2 < 7, zeros(i))))
    assert outside(loop(9, lambda i: when(i * 2 < 9, zeros(i))))
    assert not outside(loop(9, lambda i: when(i > 3, prefetch(BUFFER, i, 0), zeros(i))))
    assert not outside(loop(4, lambda i: for_range(4 - i, lambda k: zeros(i + k))))
    assert outside(loop(4, lambda i: for_range(5 - i, lambda k: zeros(i + k))))
