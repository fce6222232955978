"""Tuning for real: a convolution and a product, plans checked, records used by another process."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest

from collage_engine.kernels.choices import Choices, using, write_table
from collage_engine.kernels.cpu.convolution.problem import Geometry
from collage_engine.kernels.scheduler import SCHEDULE, kernel_for
from collage_engine.kernels.target import cpu
from collage_engine.kernels.tuning.hill_climbing import name_of
from collage_engine.kernels.tuning.kernel_bench import AnchorBench
from collage_engine.kernels.tuning.spaces import neighbours_of, start_of
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.virtual_machine import virtual_machine_environment
from collage_engine.machine.worker import Worker
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from collage_engine.tuning.choice import tuned_instance
from collage_engine.tuning.job import JOB, ListTasks, Trying, Tune
from tests.support.toolchain_cases import Net

TVM = ToolchainInstance(toolchain="tvm")
LONG = pytest.mark.skipif(
    "COLLAGE_LONG_TESTS" not in os.environ,
    reason="takes minutes; run it with COLLAGE_LONG_TESTS=1",
)


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
        "out": shapes[1],
        "weight": list(weight),
        "groups": groups,
        "strides": [stride] * 2,
        "padding": [padding] * 4,
        "dilation": [1, 1],
    }


DESCRIPTIONS = {
    "conv3x3": conv((1, 33, 13, 11), (40, 33, 3, 3), 1, 1),
    "conv3x3 last": conv((1, 32, 9, 14), (48, 32, 3, 3), 2, 1, last=True),
    "conv1x1": conv((1, 64, 17, 16), (100, 64, 1, 1)),
    "conv few channels": conv((1, 3, 31, 33), (20, 3, 5, 5), 2, 2),
    "grouped": conv((1, 64, 12, 12), (64, 16, 3, 3), 1, 1, 4),
    "depthwise": conv((1, 24, 15, 37), (24, 1, 3, 3), 1, 1, 24),
    "depthwise last": conv((1, 40, 15, 13), (40, 1, 3, 3), 1, 1, 40, last=True),
    "packed": {"family": "packed", "rows": 37, "depth": 96, "columns": 100},
    "one row": {"family": "packed", "rows": 1, "depth": 100, "columns": 70},
    "runtime": {"family": "runtime", "left": [3, 40, 24], "right": [3, 24, 50], "out": [3, 40, 50]},
}


@pytest.mark.parametrize(
    "name, threads",
    [*((name, 1) for name in DESCRIPTIONS), ("conv3x3", 2), ("conv1x1", 2), ("packed", 2)],
)
def test_plans_next_to_the_start_compute_the_same(name: str, threads: int) -> None:
    """A few of them: compiling takes longer than running."""
    description, machine = DESCRIPTIONS[name], cpu(threads)
    bench = AnchorBench(description, machine)
    bench.make({})  # the default: checked against the unscheduled loops
    start = start_of(description, machine)
    bench.make(start)
    plans = {name_of(p): p for p in neighbours_of(description, machine, start)}
    plans.pop(name_of(start), None)
    assert len(plans) >= 4
    for chosen in random.Random(name).sample(sorted(plans), 4):
        bench.make(plans[chosen])  # raises when its numbers are wrong or it has no schedule


def test_a_plan_is_followed() -> None:
    bench = AnchorBench(DESCRIPTIONS["conv3x3"], cpu(1))
    texts = set()
    for plan, way in (
        ({}, "winograd"),
        ({"way": "winograd", "outputs": 2, "block": 1, "group": 2, "rows": 3}, "winograd"),
        ({"way": "channels", "block": 1, "chunk": 11, "rows": 1, "columns": 5}, "channels"),
        ({"way": "spatial", "block": 5}, "spatial"),
    ):
        function, operand = bench.program(plan)
        kernel = kernel_for(function, cpu(1))
        assert kernel.schedule == f"conv {way}"
        texts.add(kernel.function.script())
        if plan:
            assert operand.shape[-1] == (5 if way == "spatial" else 16)
    assert len(texts) == 4


def test_wrong_numbers_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = AnchorBench(DESCRIPTIONS["conv1x1"], cpu(1))
    bench.make({})
    pack = Geometry.pack
    monkeypatch.setattr(Geometry, "pack", lambda *a: pack(*a) * np.float32(1.01))
    with pytest.raises(ToolchainError, match="wrong numbers"):
        bench.make({"block": 1})


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
from collage_engine.lowering.compile import compile_function
from collage_engine.lowering.extract import function_of
from collage_engine.model.importer import import_model
from collage_engine.tuning.choice import tuned_instance
from collage_engine.records.toolchain import ToolchainInstance
path, digest, data = sys.argv[1:]
model = import_model(path, None)
instance = tuned_instance(ToolchainInstance(toolchain="tvm"), digest)
nodes = tuple(range(len(model.graph.operators)))
compiled = compile_function(function_of(model, instance, nodes, "whole"))
print(json.dumps([k["tir"] for k in compiled.inside()["kernels"]]))
np.save(data + ".out.npy", compiled.run([np.load(data)])[0])
"""


def test_tuned_for_real_and_used_by_a_second_process(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    imported = import_onnx(model())
    nodes = tuple(range(len(imported.graph.operators)))
    tried: list[str] = []
    records: dict[str, TuneRecord] = {}
    with Worker(JOB, env=virtual_machine_environment(1, False)) as worker:
        tasks = worker.call(ListTasks(str(path), {}, nodes, TVM))
        assert {t.schedule for t in tasks} == {"conv", "packed"}
        for task in tasks:
            records[task.workload] = worker.call(
                Tune(task, TVM, None, 3.0),
                on_message=lambda m: tried.append(m.name) if isinstance(m, Trying) else None,
            )
        first = records[tasks[0].workload]
        again = worker.call(Tune(tasks[0], TVM, first, 1.0))
    assert all(r.tried and r.default_us and r.tuned_us for r in records.values())
    assert len(tried) > len(records)
    assert set(first.tried) <= set(again.tried), "a resumed search goes on"
    # Whether or not the defaults are the best here: choices are followed in another process.
    table = {t.workload: dict(start_of(t.description, cpu(1))) for t in tasks}
    for choice in table.values():
        choice["block"] = 2 if choice["block"] == 1 else 1
        choice.pop("rows"), choice.pop("columns", None)
    digest = write_table(table)
    data = tmp_path / "x.npy"
    x = np.random.default_rng(0).standard_normal((1, 32, 14, 14)).astype(np.float32)
    np.save(data, x)
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(path), digest, str(data)],
        capture_output=True,
        text=True,
        env=os.environ,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    instance = tuned_instance(TVM, digest)
    kernels = []
    for chosen in (TVM, instance):
        compiled = compile_function(function_of(imported, chosen, nodes, "whole"))
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


def unscheduled() -> TuneTask:
    """A kernel as one that no schedule of ours takes: a running sum."""
    from tvm import te

    from collage_engine.kernels.scheduler import workload_of
    from collage_engine.kernels.tuning.metaschedule import saved

    source = te.placeholder((64, 256), "float32", name="source")
    weight = te.placeholder((256, 128), "float32", name="weight")
    k = te.reduce_axis((0, 256), "k")
    result = te.compute((64, 128), lambda i, j: te.sum(source[i, k] * weight[k, j], axis=k))
    function = te.create_prim_func([source, weight, result])
    return TuneTask(
        workload=workload_of(function, cpu(1)),
        kind="trace",
        description={"function": saved(function)},
        schedule="plain",
    )


@LONG
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_metaschedule_finds_a_trace_that_is_applied_again() -> None:
    from collage_engine.kernels.tuning.metaschedule import loaded
    from collage_engine.kernels.verify import verify

    task = unscheduled()
    with Worker(JOB, env=virtual_machine_environment(1, False)) as worker:
        record = worker.call(Tune(task, TVM, None, 75.0), timeout_s=500)
    assert record.choice and record.tuned_us < record.default_us / 2
    record = msgspec.json.decode(msgspec.json.encode(record), type=TuneRecord)
    function = loaded(task.description["function"])
    with using(Choices({task.workload: record.choice})):
        kernel = kernel_for(function, cpu(1))
    assert kernel.schedule == "metaschedule" and str(kernel.function.attrs[SCHEDULE])
    assert verify(kernel.function, function) < 1e-5
    assert math.isfinite(record.seconds)
