"""Tuning for real: a convolution and a product, plans checked, records used by another process."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.kernels.choices import Choices, using, write_table
from collage_engine.kernels.rule import workload_of
from collage_engine.kernels.scheduler import RULES, decide, kernel_for
from collage_engine.kernels.target import cpu
from collage_engine.kernels.tuner import KernelBench
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.virtual_machine import virtual_machine_environment
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_model, import_onnx
from collage_engine.records.toolchain import ToolchainInstance, TuneRecord
from collage_engine.support.errors import ToolchainError
from collage_engine.timing.tuning import tuned_instance
from collage_engine.timing.tuning_job import JOB, ListTasks, Tune
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from tests.support.command import python
from tests.support.covers import candidate_on
from tests.support.toolchain_cases import Net

TVM = ToolchainInstance(toolchain="tvm")


def conv(data, weight, stride=1, padding=0, groups=1, last=False) -> dict:
    """A description as the lowering makes it; ``data`` channels first."""
    size = [(e + 2 * padding - k) // stride + 1 for e, k in zip(data[2:], weight[2:], strict=True)]
    shapes = [list(data), [data[0], weight[0], *size]]
    if last:
        shapes = [[s[0], *s[2:], s[1]] for s in shapes]
    return {
        "family": "conv",
        "channels_last": last,
        "data": shapes[0],
        "out_shape": shapes[1],
        "weight": list(weight),
        "groups": groups,
        "strides": [stride] * 2,
        "padding": [padding] * 4,
        "dilation": [1, 1],
    }


def product(rows: int, depth: int, columns: int) -> dict:
    """A description of a product with a constant matrix."""
    sizes = {"data": [rows, depth], "out_shape": [rows, columns], "weight": [columns, depth]}
    no_kernel = {"groups": 1, "strides": [], "padding": [], "dilation": []}
    return {"family": "conv", "channels_last": True, **sizes, **no_kernel}


DESCRIPTIONS = {
    "conv3x3": conv((1, 33, 13, 11), (40, 33, 3, 3), 1, 1, last=True),
    "conv3x3 strided": conv((1, 32, 9, 14), (48, 32, 3, 3), 2, 1, last=True),
    "conv1x1": conv((1, 64, 17, 16), (100, 64, 1, 1)),
    "conv few channels": conv((1, 3, 31, 33), (20, 3, 5, 5), 2, 2),
    "grouped": conv((1, 64, 12, 12), (64, 16, 3, 3), 1, 1, 4),
    "depthwise": conv((1, 24, 15, 37), (24, 1, 3, 3), 1, 1, 24),
    "depthwise last": conv((1, 40, 15, 13), (40, 1, 3, 3), 1, 1, 40, last=True),
    "packed": product(37, 96, 100),
    "one row": product(1, 100, 70),
    "runtime": {"family": "runtime", "left": [3, 40, 24], "right": [3, 24, 50], "out": [3, 40, 50]},
    "int8": {
        "family": "dots",
        "element": "int8",
        "channels_last": True,
        "data": [1, 13, 11, 20],
        "out_shape": [1, 13, 11, 40],
        "weight": [40, 20, 3, 3],
        "groups": 1,
        "strides": [1, 1],
        "padding": [1, 1, 1, 1],
        "dilation": [1, 1],
        "zero": 3,
        "signed": False,
    },
}


@pytest.mark.parametrize(
    "name, threads",
    [*((name, 1) for name in DESCRIPTIONS), ("conv3x3", 2), ("conv1x1", 2), ("packed", 2)],
)
def test_plans_next_to_the_start_compute_the_same(name: str, threads: int) -> None:
    """A few of them: compiling takes longer than running."""
    problem, machine = RULES.problem(DESCRIPTIONS[name]), cpu(threads)
    bench = KernelBench(problem, machine)
    bench.make(bench.default)  # checked against the unscheduled loops
    near = {d.name: d for d in RULES.neighbours(bench.default, machine)}
    near.pop(bench.default.name, None)
    assert len(near) >= 4
    for decision in near.values():
        assert RULES.decide(problem, machine, decision.to_record()) == decision
    for chosen in random.Random(name).sample(sorted(near), 4):
        bench.make(near[chosen])  # raises when its numbers are wrong or it has no schedule


def test_a_plan_is_followed() -> None:
    problem = RULES.problem(DESCRIPTIONS["conv3x3"])
    bench = KernelBench(problem, cpu(1))
    texts = set()
    for record in (
        {},
        {"rule": "conv winograd", "outputs": 2, "block": 1, "group": 2},
        {"rule": "conv channels", "block": 1, "chunk": 11, "rows": 1, "columns": 5},
    ):
        decision = RULES.decide(problem, cpu(1), record)
        assert decision is not None
        function, operand = bench.program(decision)
        kernel = kernel_for(function, cpu(1))
        assert kernel.schedule == record.get("rule", "conv winograd") == decision.rule.name
        texts.add(kernel.function.script())
        if record:
            assert operand.shape[-1] == 16
    assert len(texts) == 3


@pytest.mark.parametrize(
    "plan",
    [
        {"block": 9, "chunk": 11, "rows": 1, "columns": 5},  # more channels than there are
        {"block": 1, "chunk": 33, "rows": 14, "columns": 2},  # more rows, and parts of them
        {"block": 3, "chunk": 33, "rows": 1, "columns": 20},  # more sums than registers
    ],
)
def test_a_plan_that_does_not_suit_the_convolution_is_not_wrong(plan: dict) -> None:
    problem = RULES.problem(DESCRIPTIONS["conv3x3"])
    bench = KernelBench(problem, cpu(1))
    decision = RULES.decide(problem, cpu(1), {"rule": "conv channels", **plan})
    assert decision is not None
    bench.make(decision)  # raises when its numbers are wrong or it has no schedule


def test_a_misspelt_parameter_of_a_plan_is_an_error() -> None:
    problem = RULES.problem(DESCRIPTIONS["conv3x3"])
    record = {"rule": "conv channels", "block": 1, "chunk": 33, "rows": 1, "column": 5}
    with (
        using(Choices({workload_of(problem, cpu(1)): record})),
        pytest.raises(ToolchainError, match="unknown field `column`"),
    ):
        decide(problem, cpu(1))


def test_wrong_numbers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = KernelBench(RULES.problem(DESCRIPTIONS["conv1x1"]), cpu(1))
    bench.make(bench.default)
    rule = type(bench.default.rule)
    pack = rule.pack
    monkeypatch.setattr(rule, "pack", lambda *a: pack(*a) * np.float32(1.01))
    other = next(d for d in RULES.neighbours(bench.default, cpu(1)) if d.name != bench.default.name)
    assert other.rule is bench.default.rule
    with pytest.raises(ToolchainError, match="wrong numbers"):
        bench.make(other)


def model() -> onnx.ModelProto:
    """A convolution and a product."""
    net = Net()
    x = net.input(1, 32, 14, 14)
    y = net.add("Conv", x, net.randn(48, 32, 3, 3, scale=0.06), net.randn(48), pads=[1] * 4)
    y = net.add("Relu", y)
    y = net.add("Reshape", y, net.const(np.array([48, 196])))
    y = net.add("MatMul", y, net.randn(196, 64, scale=0.07))
    return net.model(net.add("Relu", y))


RUN = """
import json, sys
import numpy as np
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import import_model, import_model
from collage_engine.timing.tuning import tuned_instance
from collage_engine.records.toolchain import ToolchainInstance
path, digest, data = sys.argv[1:]
model = import_model(path, None)
instance = tuned_instance(ToolchainInstance(toolchain="tvm"), digest)
nodes = tuple(range(len(model.graph.operators)))
compiled = Compiled(function_of(model, instance, nodes, "whole"))
print(json.dumps([k["tir"] for k in compiled.inside()["kernels"]]))
np.save(data + ".out.npy", compiled.run([np.load(data)])[0])
"""


def test_tuned_for_real_and_used_by_a_second_process(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    imported = import_onnx(model())
    nodes = tuple(range(len(imported.graph.operators)))
    records: dict[str, TuneRecord] = {}
    with Worker(JOB, env=virtual_machine_environment(1, False)) as worker:
        tasks = worker.call(ListTasks(import_model(path).record, candidate_on(TVM, nodes)))
        assert {t.schedule for t in tasks} == {"conv"}
        for task in tasks:
            records[task.workload] = worker.call(Tune(task, TVM, None, 3.0))
        first = records[tasks[0].workload]
        again = worker.call(Tune(tasks[0], TVM, first, 1.0))
    assert all(r.tried and r.default_us and r.tuned_us for r in records.values())
    assert set(first.tried) <= set(again.tried), "a resumed search goes on"
    # Whether or not the defaults are the best here: choices are followed in another process.
    table = {}
    for task in tasks:
        default = RULES.default(RULES.problem(task.description), cpu(1))
        assert default is not None
        other = next(
            d
            for d in RULES.neighbours(default, cpu(1))
            if d.rule is default.rule and d.plan.block != default.plan.block
        )
        table[task.workload] = other.to_record()
    digest = write_table(table)
    data = tmp_path / "x.npy"
    x = np.random.default_rng(0).standard_normal((1, 32, 14, 14)).astype(np.float32)
    np.save(data, x)
    done = python(RUN, path, digest, data, env=os.environ, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    instance = tuned_instance(TVM, digest)
    kernels = []
    for chosen in (TVM, instance):
        compiled = Compiled(function_of(imported, chosen, nodes, "whole"))
        np.testing.assert_allclose(
            compiled.run([x])[0], np.load(f"{data}.out.npy"), rtol=1e-4, atol=1e-5
        )
        kernels.append([k["tir"] for k in compiled.inside()["kernels"]])
        compiled.close()
    assert json.loads(done.stdout) == kernels[1] != kernels[0]


def test_a_table_that_is_gone_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    imported = import_onnx(model())
    function = function_of(imported, tuned_instance(TVM, "0123456789abcdef"), (0,), "f")
    with pytest.raises(ToolchainError, match="place the model again"):
        TvmToolchain().lower(function)
