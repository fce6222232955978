"""Convolution kernels against their plain selves, over shapes that no tile divides."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

from collage_engine.kernels.cpu.convolution import ConvProblem
from collage_engine.kernels.cpu.depthwise import SPARE_REGISTERS
from collage_engine.kernels.scheduler import RULES
from collage_engine.kernels.target import cpu
from collage_engine.machine.device import cpu_target
from collage_engine.toolchains.tvm import channels_last
from collage_engine.toolchains.tvm.lowering import lower_module
from tests.support.tvm_cases import (
    TOLERANCE,
    check,
    constant,
    conv,
    error_of,
    function,
    kernels,
    kernels_by,
    schedules,
)

SHAPES = [
    # data, weight, stride, padding, dilation, groups
    ((1, 3, 23, 31), (8, 3, 7, 7), 2, 3, 1, 1),
    ((1, 32, 14, 14), (48, 32, 3, 3), 1, 1, 1, 1),
    ((1, 64, 7, 7), (80, 64, 3, 3), 1, 1, 1, 1),
    ((2, 37, 13, 11), (19, 37, 3, 3), 1, 1, 1, 1),
    ((1, 40, 17, 17), (33, 40, 3, 3), 2, 1, 1, 1),
    ((1, 48, 9, 10), (24, 48, 3, 3), 1, 2, 2, 1),
    ((1, 512, 7, 7), (40, 512, 1, 1), 1, 0, 1, 1),
    ((2, 272, 13, 13), (70, 272, 1, 1), 1, 0, 1, 1),
    ((1, 64, 28, 28), (96, 64, 1, 1), 1, 0, 1, 1),
    ((1, 256, 9, 9), (64, 256, 1, 1), 2, 0, 1, 1),
    ((1, 24, 1, 1), (56, 24, 1, 1), 1, 0, 1, 1),
    ((1, 32, 12, 12), (48, 8, 3, 3), 1, 1, 1, 4),
    ((1, 20, 11, 11), (40, 10, 3, 3), 2, 1, 1, 2),
    ((1, 16, 5, 3), (32, 16, 3, 3), 3, 0, 1, 1),
    ((1, 30, 4, 2), (17, 30, 2, 2), 1, (1, 0, 0, 1), 1, 1),
    ((1, 64, 2, 2), (16, 64, 5, 5), 1, 2, 1, 1),
]


@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_equals_its_plain_self(case: tuple, layout: str) -> None:
    data, weight, stride, padding, dilation, groups = case
    if layout == "NHWC":
        data = (data[0], *data[2:], data[1])
    check(conv(data, weight, stride, padding, dilation, groups, layout))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "channels, size, kernel, stride, padding, dilation, multiplier",
    [
        (96, (14, 14), 3, 1, 1, 1, 1),
        (19, (7, 7), 3, 1, 1, 1, 1),
        (40, (13, 17), 5, 2, 2, 1, 1),
        (33, (9, 70), 3, 2, (0, 0, 1, 1), 1, 1),
        (16, (11, 11), 3, 1, 2, 2, 1),
        (12, (8, 8), 3, 1, 1, 1, 2),
        (16, (6, 6), 6, 1, 0, 1, 1),
    ],
)
def test_depthwise(layout, channels, size, kernel, stride, padding, dilation, multiplier) -> None:
    data = (1, channels, *size) if layout == "NCHW" else (1, *size, channels)
    weight = (channels * multiplier, 1, kernel, kernel)
    module = conv(data, weight, stride, padding, dilation, channels, layout)
    own = "conv depthwise" if layout == "NCHW" else "conv depthwise last"
    check(module, own if multiplier == 1 or layout == "NCHW" else "conv channels")


@pytest.mark.parametrize("tail", ["none", "relu", "residual", "silu"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "weight, schedule",
    [
        ((48, 64, 5, 5), "conv channels"),
        ((48, 64, 3, 3), "conv winograd"),  # channels last only
        ((40, 272, 1, 1), "conv channels"),
        ((64, 1, 3, 3), "conv depthwise"),  # or that for channels last
    ],
    ids=str,
)
def test_what_follows_is_fused(
    tail: str, layout: str, weight: tuple[int, ...], schedule: str
) -> None:
    """One kernel, whatever reads the convolution's elements in place."""
    channels = weight[1] if weight[1] > 1 else weight[0]
    data = (1, channels, 9, 13) if layout == "NCHW" else (1, 9, 13, channels)
    groups = 1 if weight[1] > 1 else channels
    own = schedule
    if layout == "NHWC" and "depthwise" in schedule:
        own = "conv depthwise last"
    elif layout == "NCHW" and "winograd" in schedule:
        own = "conv channels"
    check(conv(data, weight, 1, weight[2] // 2, 1, groups, layout, tail), own)


@pytest.mark.parametrize("layout", ["NCW", "NWC", "NCDHW", "NDHWC"])
@pytest.mark.parametrize("stride", [1, 2])
def test_one_and_three_dimensions(layout: str, stride: int) -> None:
    size = (29,) if len(layout) == 3 else (5, 9, 7)
    data = (1, *size, 24) if layout.endswith("C") else (1, 24, *size)
    check(conv(data, (35, 24, *([3] * len(size))), stride, 1, 1, 1, layout))


@pytest.mark.parametrize("tail", ["none", "residual", "silu"])
@pytest.mark.parametrize("length", [59, 1029])
@pytest.mark.parametrize("stride, dilation", [(1, 5), (3, 1)])
def test_long_rows(length: int, stride: int, dilation: int, tail: str) -> None:
    """No more code is written for a long row than for a short one."""

    def written(size: int) -> Any:
        module = conv((2, 6, size), (7, 6, 3), stride, 2, dilation, 1, "NCW", tail)
        (kernel,) = kernels_by("conv spatial", module)
        return kernel

    kernel = written(length)
    assert error_of(kernel) <= TOLERANCE
    lines = len(kernel.function.script().splitlines())
    assert len(written(4 * length).function.script().splitlines()) < lines + 40


def test_what_is_read_several_times_is_computed_once() -> None:
    """The code grows with the number of functions, not with the power of their reads."""

    def written(count: int) -> Any:
        def body(x: Any, y: Any) -> Any:
            value = yield relax.op.nn.conv2d(x, constant(9, 5, 3, 3), padding=1)
            for _ in range(count):
                total = yield relax.op.add(value, y)
                value = yield relax.op.nn.leakyrelu(total, 0.1)

        (kernel,) = kernels(function([(1, 5, 9, 11), (1, 9, 9, 11)], body))
        return kernel

    small, large = written(1), written(6)
    assert error_of(large) <= TOLERANCE
    assert len(large.function.script()) < 6 * len(small.function.script())


OTHERS = [
    other
    for other in ((64, 32), (32, 16), (16, 32), (16, 16))
    if other != (cpu(2).vector_bytes, cpu(2).registers)
]
"""Bytes of a vector and number of registers of other processors than this one."""


@pytest.mark.parametrize("vector_bytes, registers", OTHERS)
@pytest.mark.parametrize("case", [SHAPES[i] for i in (1, 4, 7, 11)], ids=str)
def test_for_processors_with_other_vectors(case: tuple, vector_bytes: int, registers: int) -> None:
    """AVX2's and NEON's vector lengths give the same numbers (on this machine's code generator)."""
    processor = replace(cpu(2), vector_bytes=vector_bytes, registers=registers)
    data, *rest = case
    for layout, shape in (("NCHW", data), ("NHWC", (data[0], *data[2:], data[1]))):
        for kernel in kernels(conv(shape, *rest, layout=layout), processor):
            assert kernel.schedule.startswith("conv") and not kernel.reason
            assert error_of(kernel) <= TOLERANCE


@pytest.mark.parametrize("width", [5, 7, 14, 56])
def test_default_plans_follow_the_registers_and_the_caches(width: int) -> None:
    narrow = replace(cpu(1), vector_bytes=32, registers=16, l1_bytes=32 << 10)
    wide = replace(cpu(1), vector_bytes=64, registers=32, l1_bytes=64 << 10)
    image, weight = (1, width, width, 64), (64, 1, 3, 3)
    problem = ConvProblem(True, image, image, weight, 64, (1, 1), (1, 1, 1, 1), (1, 1))
    for processor in (narrow, wide):
        plan = RULES.default(problem, processor).plan  # type: ignore[union-attr]
        assert plan.columns * plan.vectors <= processor.registers - SPARE_REGISTERS


@pytest.mark.parametrize(
    "data, weight, stride, padding, extra",
    [
        ((1, 24, 7, 9), (24, 20, 2, 2), 2, 0, 0),
        ((1, 6, 11), (6, 5, 4), 3, 0, 0),
        ((1, 64, 5, 5), (64, 16, 2, 2), 2, 0, 0),
        ((1, 128, 4, 4), (128, 32, 3, 3), 2, 1, 1),
        ((1, 32, 6, 5), (32, 17, 4, 4), 2, 1, 0),
        ((2, 16, 5, 4), (16, 9, 5, 5), 3, 2, 2),
        ((1, 16, 5, 4), (16, 3, 2, 2), 3, 0, 0),
    ],
)
@pytest.mark.parametrize("last", [False, True])
def test_transposed(data, weight, stride, padding, extra, last, monkeypatch) -> None:
    """Against the standard's evaluator, since the plain form is itself rewritten."""
    monkeypatch.setattr(channels_last, "worthwhile", lambda *_: last)
    dims = len(data) - 2
    operator = {1: relax.op.nn.conv1d_transpose, 2: relax.op.nn.conv2d_transpose}[dims]
    values = constant(*weight)
    layout = "NCHW" if dims == 2 else "NCW"
    module = function(
        [data],
        lambda x: operator(
            x,
            values,
            [stride] * dims,
            [padding] * (2 * dims),
            [extra] * dims,
            [1] * dims,
            1,
            layout,
            layout.replace("NC", "IO"),
        ),
    )
    x = np.random.default_rng(5).standard_normal(data).astype(np.float32)
    lowered = lower_module(module, cpu(2))
    assert any(name.startswith("conv") for name in schedules(lowered).values())
    built = relax.build(lowered, tvm.target.Target(cpu_target()))
    machine = relax.VirtualMachine(built, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    about = {"strides": [stride] * dims, "pads": [padding] * (2 * dims)}
    node = onnx.helper.make_node(
        "ConvTranspose", ["x", "w"], ["y"], output_padding=[extra] * dims, **about
    )
    wide = {"x": x.astype(np.float64), "w": values.value.numpy().astype(np.float64)}
    want = ReferenceEvaluator(node).run(None, wide)[0]
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
