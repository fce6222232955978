"""TVM's products in bfloat16: kernels against numpy, what is rounded and what is not."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

from collage_engine.kernels.bfloat16_numbers import real, rounded
from collage_engine.kernels.cpu.winograd import cost as winograd
from collage_engine.kernels.relax_values import constant_of
from collage_engine.kernels.scheduler import UNSCHEDULED, schedule
from collage_engine.kernels.target import cpu
from collage_engine.lowering.compile import Compiled
from collage_engine.machine.device import cpu_target, processor
from collage_engine.records.precision import BFLOAT16, keep_float32
from collage_engine.records.toolchain import Target
from collage_engine.toolchains import registry
from collage_engine.toolchains.tvm import bfloat16, channels_last
from collage_engine.toolchains.tvm.lowering import fused, lower_module
from tests.support.toolchain_cases import Net, error, imported, name_of, reference, whole
from tests.support.tvm_cases import constant, function, schedules

pytestmark = pytest.mark.skipif(
    "avx512_bf16" not in processor().flags, reason="this processor has no bfloat16 products"
)
NARROW_ERROR = 2e-6
"""Of the kernels against numpy on the same rounded numbers: float32 sums in another order."""


def in_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounded to the nearest bfloat16, half to even, in float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def lowered(module: tvm.IRModule, full: tuple[int, ...] = ()) -> tuple[Any, set[str]]:
    """Runs ``main`` with its products rounded; and the schedules of its kernels."""
    found = lower_module(module, cpu(1), full)
    built = relax.build(found, tvm.target.Target(cpu_target()))
    machine = relax.VirtualMachine(built, tvm.cpu())
    return lambda *x: machine["main"](*map(tvm.runtime.tensor, x)).numpy(), {
        *schedules(found).values()
    }


def convolved(x: np.ndarray, w: np.ndarray, stride: int, padding: int, groups: int) -> np.ndarray:
    """The convolution in float64, by the standard's own evaluator."""
    about = {"strides": [stride] * 2, "pads": [padding] * 4, "group": groups}
    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], **about)
    wide = {"x": x.astype(np.float64), "w": w.astype(np.float64)}
    return ReferenceEvaluator(node).run(None, wide)[0]


@pytest.mark.parametrize(
    "data, weight, stride, padding, groups",
    [
        ((1, 32, 14, 14), (64, 32, 1, 1), 1, 0, 1),
        ((2, 48, 9, 9), (40, 48, 1, 1), 2, 0, 1),
        ((2, 64, 9, 7), (48, 64, 3, 3), 2, 1, 1),
        ((1, 17, 8, 8), (33, 17, 5, 5), 1, 2, 1),
        ((1, 48, 12, 12), (40, 24, 3, 3), 1, 1, 2),
        ((1, 3, 21, 23), (40, 3, 7, 7), 2, 3, 1),
        ((2, 4, 9, 9), (16, 4, 3, 3), 1, 0, 1),
        ((1, 1, 9, 9), (16, 1, 1, 5), 1, 0, 1),
        ((1, 512, 4, 4), (1000, 512, 1, 1), 1, 0, 1),
    ],
)
def test_convolutions_multiply_rounded_numbers(
    data: tuple, weight: tuple, stride: int, padding: int, groups: int
) -> None:
    random = np.random.default_rng(3)
    w = in_bfloat16(random.standard_normal(weight))  # already bfloat16, so rounding keeps it
    kernel = relax.const(w)
    module = function(
        [data],
        lambda x: relax.op.nn.conv2d(x, kernel, strides=stride, padding=padding, groups=groups),
    )
    run, made = lowered(module)
    assert "bfloat16 dots" in made and UNSCHEDULED not in made
    x = random.standard_normal(data).astype(np.float32)
    want = convolved(in_bfloat16(x), w, stride, padding, groups)
    assert error(run(x), want) < NARROW_ERROR


@pytest.mark.parametrize("shape", [(1, 64), (5, 33), (2, 7, 40)])
def test_matrix_products_multiply_rounded_numbers(shape: tuple) -> None:
    random = np.random.default_rng(4)
    w = in_bfloat16(random.standard_normal((shape[-1], 72)))
    run, made = lowered(function([shape], lambda x: relax.op.matmul(x, relax.const(w))))
    assert any("bfloat16" in name for name in made)
    x = random.standard_normal(shape).astype(np.float32)
    assert error(run(x), in_bfloat16(x).astype(np.float64) @ w) < NARROW_ERROR


def test_numbers_are_rounded_half_to_even_and_what_is_no_number_stays_none() -> None:
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, -1e-38, 1e30]
    nan = np.array([0xFFFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    x = np.concatenate([np.array(special, np.float32), nan, np.linspace(-3, 3, 52, dtype="f4")])
    builder = relax.BlockBuilder()
    parameter = relax.Var("x", relax.TensorType((64,), "float32"))

    def body(value: Any) -> Any:
        from tvm import te

        half = rounded(value)
        return te.compute(value.shape, lambda i: real(half(i)), name="back")

    with builder.function("main", [parameter]):
        builder.emit_func_output(builder.emit_te(body, parameter))
    built = relax.build(lower_module(builder.get(), cpu(1)), tvm.target.Target(cpu_target()))
    got = relax.VirtualMachine(built, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    want = in_bfloat16(x)
    want[np.isnan(x)] = np.nan
    np.testing.assert_array_equal(got, want)


def chain(channels: int = 32, size: int = 12) -> Any:
    """expand → depthwise → project, with a sum around: the body of a mobile network."""
    net = Net()
    x = net.input(1, channels, size, size)
    y = net.add("Conv", x, net.randn(channels * 6, channels, 1, 1, scale=0.2))
    y = net.add("Clip", y, net.scalar(0.0), net.scalar(6.0))
    y = net.add(
        "Conv",
        y,
        net.randn(channels * 6, 1, 3, 3, scale=0.3),
        group=channels * 6,
        pads=[1, 1, 1, 1],
    )
    y = net.add("Relu", y)
    y = net.add("Conv", y, net.randn(channels, channels * 6, 1, 1, scale=0.05))
    return net.model(net.add("Add", x, y))


def instances() -> tuple[Any, Any]:
    return registry.get("tvm").instances(Target(), BFLOAT16)


@pytest.mark.parametrize("channels, size", [(32, 12), (16, 80)])
def test_a_chain_keeps_its_sums_in_float32(channels: int, size: int) -> None:
    """Near the truth, but not float32's; with all products left full it is float32's."""
    model = chain(channels, size)
    net = imported(model)
    plain, narrow = instances()
    feeds = net.random_inputs(0)
    errors = []
    for instance in (plain, narrow, keep_float32(narrow, (0, 2, 4))):
        made = whole(net, instance)
        with Compiled(made) as compiled:
            results = compiled.run([feeds[name_of(net.graph, i)] for i in made.inputs])
        errors.append(max(map(error, results, reference(model, made, feeds))))
    assert errors[0] < 5e-6 and errors[2] < 5e-6
    assert 1e-4 < errors[1] < 1e-2


def kernels_of(model: Any, instance: Any) -> str:
    net = imported(model)
    with Compiled(whole(net, instance)) as compiled:
        return str(compiled.module.script())  # type: ignore[attr-defined]


def test_what_does_not_fit_the_cache_is_held_in_bfloat16() -> None:
    """The depthwise convolution reads half the bytes where its image is large, not else."""
    narrow = instances()[1]
    large, small = kernels_of(chain(16, 80), narrow), kernels_of(chain(16, 12), narrow)
    assert large.count("uint16") > small.count("uint16")


def test_a_large_matrix_of_four_axes_is_multiplied_in_bfloat16() -> None:
    """As the linear layers of a ConvNeXt read it, channels last."""
    weight = constant(32, 32)
    rows = 1 + cpu(1).l2_bytes // (4 * 32 * 32)
    shape = (1, rows, 32, 32)
    module = function([shape, shape], lambda x, y: relax.op.matmul(relax.op.add(x, y), weight))
    run, made = lowered(module)
    assert any("bfloat16" in name for name in made)
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(shape, dtype=np.float32) for _ in range(2))
    truth = (x.astype(np.float64) + y) @ constant_of(weight)
    assert 1e-4 < error(run(x, y), truth) < 2.0**-8  # both operands are rounded once


def test_vectors_are_rounded_by_one_instruction() -> None:
    """The pattern that stands for it is still what TVM's simplifier leaves."""
    assert "collage_round_to_bfloat16" in kernels_of(chain(), instances()[1])


def multiplied_in_bfloat16(weight: tuple, data: tuple) -> bool:
    values = constant(*weight)
    module = function([data], lambda x: relax.op.nn.conv2d(x, values, padding=weight[2] // 2))
    return any("bfloat16" in name for name in lowered(module)[1])


def test_products_that_gain_nothing_stay_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Narrow ones, and 3 × 3 ones that Winograd's method saves more, as its estimate says."""
    assert not multiplied_in_bfloat16((4, 32, 1, 1), (1, 32, 9, 9))
    for better in (True, False):
        monkeypatch.setattr(winograd, "worthwhile", lambda *_, better=better: better)
        assert multiplied_in_bfloat16((32, 32, 3, 3), (1, 32, 12, 12)) is not better


def test_without_the_instruction_there_is_no_such_kernel() -> None:
    from dataclasses import replace

    module = channels_last.convert(
        function([(1, 32, 9, 9)], lambda x: relax.op.nn.conv2d(x, constant(32, 32, 1, 1)))
    )
    module = bfloat16.with_rounded_products(module, (), cpu(1))
    plain = replace(cpu(1), bfloat16=False)
    found = [
        schedule(f, plain)
        for f in fused(module, plain).functions.values()
        if isinstance(f, tvm.tirx.PrimFunc)
    ]
    assert any("no instruction for bfloat16" in kernel.reason for kernel in found)
