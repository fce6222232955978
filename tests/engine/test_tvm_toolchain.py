"""The TVM toolchain on whole models and parts of them: numbers, kernels, layouts, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import tvm
from tvm import relax

from collage_engine.kernels.cpu import reductions
from collage_engine.kernels.scheduler import count_unscheduled, kernel_for, schedule
from collage_engine.kernels.target import cpu
from collage_engine.lowering.compile import Compiled
from collage_engine.machine.device import cpu_target, processor
from collage_engine.model.importer import import_onnx
from collage_engine.toolchains.tvm import channels_last
from collage_engine.toolchains.tvm.lowering import fused, lower_module
from collage_engine.toolchains.tvm.toolchain import SUPPORTED, TvmToolchain
from tests import zoo
from tests.support.model_runs import relative_error, run_onnx
from tests.support.toolchain_cases import Net, default_instance, imported, name_of, whole
from tests.support.tvm_cases import constant, conv, function, schedules

TOOLCHAIN = TvmToolchain()
INSTANCE = default_instance(TOOLCHAIN, 2)


def calls(module: tvm.IRModule, name: str) -> list[Any]:
    return [
        b.value
        for block in module["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, tvm.ir.Call) and str(b.value.op.name) == f"relax.{name}"
    ]


@pytest.mark.parametrize("name", zoo.SMALL)
def test_whole_models(name: str) -> None:
    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    values = model.random_inputs(seed=3)
    want = run_onnx(model.onnx, values)
    part = whole(model, INSTANCE)
    with Compiled(part) as compiled:
        given = [values[name_of(model.graph, i)] for i in part.inputs]
        got = dict(zip(part.outputs, compiled.run(given), strict=True))
        kernels = compiled.inside()["kernels"]
    assert all(k["schedule"] != "unknown" for k in kernels)
    # A step of 8 bits here or there, where a sum in another order flips a rounding.
    tolerance = {"qdq_resnet_block": 2e-2, "float16": 1e-2}.get(name, 1e-4)
    for index, expected in zip(model.graph.record.outputs, want, strict=True):
        if index in got:  # else it is an input or a constant
            assert got[index].shape == expected.shape and got[index].dtype == expected.dtype
            assert relative_error(got[index], expected) < tolerance


def test_one_group_is_one_kernel_with_its_weight_as_a_constant() -> None:
    lowered = lower_module(conv((1, 9, 9, 64), (48, 64, 3, 3), padding=1, layout="NHWC"), cpu(2))
    assert [*schedules(lowered).values()] == ["conv winograd"]
    main = lowered["main"]
    assert len(main.params) == 1 and len(main.body.blocks) == 1
    (call,) = calls(lowered, "call_tir")
    constants = [a for a in call.args[1].fields if isinstance(a, tvm.ir.GenericConst)]
    assert len(constants) == 2  # the packed weight and the bias


def test_equal_kernels_are_scheduled_once() -> None:
    def body(x: Any) -> Any:
        for seed in range(3):
            x = yield relax.op.nn.conv2d(
                x,
                constant(32, 32, 3, 3, seed=seed),
                padding=1,
                data_layout="NHWC",
                kernel_layout="OIHW",
                out_layout="NHWC",
            )
            x = yield relax.op.nn.relu(x)

    module = function([(1, 8, 8, 32)], body)
    lowered = lower_module(module, cpu(2))
    assert len(schedules(lowered)) == 1
    assert len(calls(lowered, "call_tir")) == 3
    (plain,) = (
        f for f in fused(module, cpu(2)).functions.values() if isinstance(f, tvm.tirx.PrimFunc)
    )
    assert kernel_for(plain, cpu(2)) is kernel_for(plain, cpu(2))


def test_images_stay_channels_last_between_kernels() -> None:
    model = import_onnx(zoo.build("mobilenet_v2", size=32))
    from collage_engine.toolchains.tvm.lowering import relax_module

    module, _ = relax_module(whole(model, INSTANCE))
    assert channels_last.worthwhile(module["main"])
    converted = channels_last.convert(module)
    # Only the image coming in: the mean leaves one point per channel, whose order is the same.
    assert len(calls(converted, "permute_dims")) == 1
    assert all(str(c.attrs.data_layout) == "NHWC" for c in calls(converted, "nn.conv2d"))


def test_narrow_convolutions_keep_their_layout() -> None:
    from collage_engine.toolchains.tvm.lowering import relax_module

    module, _ = relax_module(whole(import_onnx(zoo.build("unet")), INSTANCE))
    assert not channels_last.worthwhile(module["main"])


def test_operators_between_convolutions_follow_their_layout() -> None:
    """Each of these must neither stop the layout nor change a number."""

    def body(x: Any, side: Any) -> Any:
        a = yield relax.op.nn.conv2d(x, constant(8, 6, 3, 3), padding=1)
        b = yield relax.op.clip(a, 0, 6)
        c = yield relax.op.add(b, constant(8, 1, 1))
        d = yield relax.op.multiply(c, side)
        e = yield relax.op.nn.avg_pool2d(d, [2, 2], [1, 1], [0, 0, 1, 1])
        f = yield relax.op.concat([e, x], 1)
        g = yield relax.op.nn.pad(f, [0, 0, 0, 0, 1, 0, 0, 1])
        h = yield relax.op.nn.conv2d(g, constant(6, 14, 1, 1, seed=2))
        i = yield relax.op.split(h, 2, 1)
        j = yield relax.op.subtract(i[1], i[0])
        k = yield relax.op.nn.softmax(j, 1)
        m = yield relax.op.mean(k, [2, 3], True)
        n = yield relax.op.maximum(k, m)
        yield relax.op.nn.conv2d(n, constant(5, 3, 1, 1, seed=3))

    module = function([(2, 6, 7, 9), (2, 8, 1, 1)], body)
    converted = channels_last.convert(module)
    moved = [c for c in calls(converted, "permute_dims")]
    assert len(moved) == 2  # in and out
    random = np.random.default_rng(0)
    inputs = [random.standard_normal(s).astype(np.float32) for s in ((2, 6, 7, 9), (2, 8, 1, 1))]
    results = []
    for candidate in (fused(module, cpu(2)), lower_module(converted, cpu(2))):
        built = relax.build(candidate, tvm.target.Target(cpu_target()))
        machine = relax.VirtualMachine(built, tvm.cpu())
        results.append(machine["main"](*map(tvm.runtime.tensor, inputs)).numpy())
    assert np.abs(results[0] - results[1]).max() < 1e-5 * np.abs(results[0]).max()


def test_vectors_are_as_wide_as_the_processor_has() -> None:
    lowered = lower_module(conv((1, 9, 9, 64), (48, 64, 3, 3), padding=1, layout="NHWC"), cpu(1))
    (name,) = schedules(lowered)
    register = {64: "zmm", 32: "ymm", 16: "xmm"}[cpu(1).vector_bytes]
    (function,) = (f for v, f in lowered.functions.items() if v.name_hint == name)
    kernel = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    built = tvm.tirx.build(kernel, tvm.target.Target(cpu_target()))
    assembly = str(built.inspect_source("asm"))
    assert ("vfmadd" in assembly) == ("fma" in processor().flags)
    assert "vfmadd" not in assembly or f"%{register}" in assembly


def test_every_supported_operator_has_a_legalisation() -> None:
    for name in SUPPORTED:
        assert tvm.ir.Op.get(f"relax.{name}").has_attr("FLegalize"), name


def test_kernels_that_no_rule_writes_are_counted() -> None:
    """Scattering stores where an index says, which no rule of ours understands."""

    def body(x: Any) -> Any:
        y = yield relax.op.nn.relu(x)
        where = relax.const(np.zeros((2, 3), np.int64))
        yield relax.op.scatter_elements(y, where, relax.const(np.ones((2, 3), np.float32)))

    lowered = lower_module(function([(4, 3)], body), cpu(1))
    assert count_unscheduled(lowered) == 1 < len(schedules(lowered))


def test_a_defect_of_a_rule_does_not_look_like_a_rule_that_does_not_apply(monkeypatch) -> None:
    def broken(*_: Any) -> Any:
        raise IndexError("a defect")

    monkeypatch.setattr(reductions, "write_program", broken)
    module = function([(3, 50)], lambda x: relax.op.nn.softmax(x, -1))
    with pytest.raises(IndexError, match="a defect"):
        for each in fused(module, cpu(1)).functions.values():
            if isinstance(each, tvm.tirx.PrimFunc):
                schedule(each, cpu(1))


def test_not_greater_is_true_of_nan_and_a_search_finds_the_smallest_value() -> None:
    """TVM makes "less or equal" of the one, and finds -1 where all are as small as can be."""
    net = Net()
    x, y = net.input(3, 40), net.input(3, 40)
    given = [net.add("Not", net.add(op, x, y)) for op in ("Greater", "Less")]
    model = imported(net.model(*given, net.add("ArgMax", x, axis=1), net.add("ArgMin", y, axis=1)))
    smallest = np.full((3, 40), -np.inf, np.float32)
    numbers = np.zeros((3, 40), np.float32)
    numbers[0], numbers[1] = np.nan, np.inf
    with Compiled(whole(model, INSTANCE)) as compiled:
        above, below, largest, least = compiled.run([smallest, numbers])
    assert above.all() and below[0].all() and not below[1:].any()
    assert not largest.any() and not least[1:].any()
