"""MetaSchedule for CUDA without a device: tasks, traces followed, builds; the device is canned."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tvm.s_tir import Schedule

from collage_engine.kernels.choices import Choices, using, write_table
from collage_engine.kernels.cuda.neutral import traced
from collage_engine.kernels.marks import SCHEDULE
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.tuning.device import Built
from collage_engine.kernels.tuning.device_traces import search
from collage_engine.kernels.tuning.metaschedule import loaded, module_of, plain_json
from collage_engine.kernels.verify import difference
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.machine.cuda_runtime import LOST_DEVICE
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.store.tuning_records import TuningRecords
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from collage_engine.tuning.choice import tuned_instance
from collage_engine.tuning.job import Tune, TuningJob
from collage_engine.tuning.kernel_device import KernelDevice, open_device
from collage_engine.tuning.kernel_job import operands
from tests.device_codegen.cuda_on_cpu.emulator import Kernel
from tests.device_codegen.cuda_on_cpu.whole import Emulated
from tests.device_codegen.kernel_targets import seconds_of
from tests.device_codegen.test_cuda_products import LONG, headers, needs_compiler, needs_headers
from tests.gpu.cases import Case, conv, dense, node

TVM = TvmToolchain()
CANNED = "tests.device_codegen.kernel_targets:Canned"
CONV = conv("traced", 16, 24, 9, 3)
SOFTMAX = Case("softmax", (node("Softmax", "x", "y", axis=-1),), {"x": (1, 4, 33)})
POOL = Case("pool", (node("GlobalMaxPool", "x", "y"),), {"x": (1, 16, 9, 9)})


def tasks_of(case: Case, dtype: str, architecture: str = "sm_80") -> tuple[Any, list[TuneTask]]:
    """The case's function and what of it MetaSchedule may search."""
    model = import_onnx(case.model(dtype))
    (instance,) = TVM.instances(Target.cuda(architecture), "float32")
    function = function_of(model, instance, tuple(range(len(model.graph.operators))), "f")
    return function, [t for t in TVM.tuner().tasks(function) if t.kind == "trace"]


def by_hand(task: TuneTask) -> dict[str, Any]:
    """A trace as MetaSchedule records one: a thread per column of a product, a block per row."""
    schedule = Schedule(module_of(loaded(task.description["function"])))
    c = schedule.get_sblock("product_c")
    for block in schedule.get_producers(c):
        schedule.compute_inline(block)
    while len(following := schedule.get_consumers(c)) and schedule.get_consumers(following[0]):
        schedule.compute_inline(following[0])
    _, row, column, _ = schedule.get_loops(c)
    schedule.bind(row, "blockIdx.x")
    schedule.bind(column, "threadIdx.x")
    schedule.set_scope(c, 0, "local")
    schedule.reverse_compute_at(following[0], column)
    assert schedule.trace is not None
    return {"trace": json.loads(json.dumps(plain_json(schedule.trace.as_json())))}


def right(function: Any, module: Any, case: Case, folder: Path, tolerance: float) -> list[str]:
    """Every kernel's source run on the CPU; which rules wrote them."""
    emulated = Emulated(module, folder, headers() or "")
    dtype = str(np.dtype(function.graph.nodes[function.inputs[0]].type.dtype))
    values = case.values(dtype)
    model = function.model
    names = [name for name, _ in model.inputs]
    given = [values[names[model.graph.record.inputs.index(i)]] for i in function.inputs]
    result = emulated.run(given)
    assert difference(case.truth(dtype), result.astype(np.float64)) < tolerance
    return emulated.rules


def test_tasks_are_fused_functions_that_no_plan_has_cut() -> None:
    _, (task,) = tasks_of(CONV, "float32")
    function = loaded(task.description["function"])
    assert '\\"number\\"' not in function.script() and "product_c" in function.script()
    assert task.beside.startswith("product 1x24x81x144 plain")
    assert str(loaded(task.description["own"]).attrs[SCHEDULE]) == task.schedule == "Product"
    again = tasks_of(CONV, "float32")[1][0]
    assert again.workload == task.workload
    _, (softmax,) = tasks_of(SOFTMAX, "float32")
    assert not softmax.beside and softmax.schedule != "Product"
    assert not tasks_of(
        Case("add", (node("Add", "x r", "y"),), {"x": (4, 40), "r": (4, 40)}), "float32"
    )[1]


@needs_headers
def test_a_record_goes_through_the_store_and_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two convolutions, a trace for one: the other is cut as ever, both are right."""
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path / "cache"))
    case = Case(
        "two",
        (
            node("Conv", "x w", "c", kernel_shape=[3], pads=[1, 1]),
            node("Relu", "c", "r"),
            node("Conv", "r v", "y", kernel_shape=[1]),
        ),
        {"x": (1, 8, 21)},
        {"w": (16, 8, 3), "v": (12, 16, 1)},
    )
    function, tasks = tasks_of(case, "float32")
    assert len(tasks) == 2
    context = KeyContext(tvm_version="t", target="cuda:sm_80", fingerprint="f")
    records = TuningRecords(Store(tmp_path / "store.sqlite"), context, "tvm")
    records.put(
        TuneRecord(
            workload=tasks[0].workload,
            toolchain="tvm",
            kind="trace",
            choice=by_hand(tasks[0]),
            default_us=2.0,
            tuned_us=1.0,
        )
    )
    known = records.records([t.workload for t in tasks])
    instance = tuned_instance(
        function.instance, write_table({w: dict(r.choice) for w, r in known.items()})
    )
    operators = tuple(range(len(function.graph.operators)))
    module = TVM.lower(function_of(function.model, instance, operators, "f"))
    (tmp_path / "kernels").mkdir()
    rules = right(function, module, case, tmp_path / "kernels", 1e-5)
    assert sorted(rules) == ["MetaSchedule", "Product"]


def test_a_trace_that_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    function, (task,) = tasks_of(SOFTMAX, "float32")
    other = by_hand(tasks_of(CONV, "float32")[1][0])
    instance = tuned_instance(function.instance, write_table({task.workload: other}))
    operators = tuple(range(len(function.graph.operators)))
    with pytest.raises(ToolchainError, match="does not fit"):
        TVM.lower(function_of(function.model, instance, operators, "f"))


@needs_compiler
def test_kernels_are_compiled_side_by_side_and_the_child_may_be_lost() -> None:
    """A convolution and a product for sm_90a; one that TVM refuses; crashes, wrong numbers."""
    kernels = [
        loaded(tasks_of(case, dtype, "sm_90a")[1][0].description["own"])
        for case, dtype in ((CONV, "float32"), (dense("d", 32, 64, 48), "float16"))
    ]
    with contextlib.closing(KernelDevice("sm_90a", CANNED)) as device:
        unscheduled = loaded(tasks_of(CONV, "float32")[1][0].description["function"])
        first, second, refused = device.built([*kernels, unscheduled])
        assert isinstance(first, Built) and isinstance(second, Built)
        assert first.code[:4] == second.code[:4] == b"\x7fELF" and "wmma" in second.source
        assert isinstance(refused, str) and "TVM cannot write it" in refused
        for code, reason in (
            (b"crash", "SIGABRT"),
            (b"fault", str(LOST_DEVICE)),
            (b"wrong", "wrong numbers"),
        ):
            broken = Built(second.kernel, code, "")
            with pytest.raises(ToolchainError, match=reason):
                device.compare(first, broken)
        slow, fast = device.compare(first, Built(second.kernel + " ", b"fast", ""))
        assert fast == pytest.approx(1e-4) and slow >= 1e-3


@pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")
@pytest.mark.parametrize("kind", ["plan", "trace"])
def test_without_a_device_it_is_refused(kind: str) -> None:
    """Before MetaSchedule is loaded, and through the job that the pipeline calls."""
    function, _ = tasks_of(CONV, "float32")
    task = next(t for t in TVM.tuner().tasks(function) if t.kind == kind)
    with pytest.raises(ToolchainError, match="kernels cannot be tuned: there is no NVIDIA driver"):
        TuningJob()(Tune(task, function.instance, None, 5.0), lambda _: None)
    with pytest.raises(ToolchainError), open_device("sm_80"):
        pass


@needs_headers
@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not LONG, reason="COLLAGE_LONG_TESTS=1 searches with MetaSchedule")
@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        (conv("c", 32, 32, 10, 3), "float16"),
        (dense("d", 32, 48, 64, "relu"), "float32"),
        (conv("dw", 16, 16, 14, 3, groups=16), "float32"),
        (POOL, "float32"),
    ],
    ids=["conv f16", "matmul f32", "depthwise f32", "pool f32"],
)
def test_metaschedule_searches_and_the_best_answer_wins(
    case: Case, dtype: str, tmp_path: Path
) -> None:
    """The builds are real, the times are canned; what won computes the right numbers."""
    _, (task,) = tasks_of(case, dtype)
    known = TuneRecord(workload=task.workload, toolchain="tvm", kind="trace")
    built: list[str] = []

    class Device(KernelDevice):
        def built(self, kernels: Any, parts: Any = None) -> list[Built | str]:
            found = super().built(kernels, parts)
            if not built:  # ours, which any other shall beat
                (ours,) = found
                assert isinstance(ours, Built)
                found = [replace(ours, code=b"slow")]
            built.extend("" if isinstance(f, str) else f.kernel for f in found)
            return found

    @contextlib.contextmanager
    def canned(architecture: str) -> Iterator[KernelDevice]:
        with contextlib.closing(Device(architecture, CANNED)) as device:
            yield device

    found = search(task, known, time.monotonic() + 10, lambda _: None, lambda _: None, canned)
    assert len(found.tried) >= 4
    assert set(built) and built[0] == task.description["own"], "ours is what has to be beaten"
    found = msgspec.json.decode(msgspec.json.encode(found), type=TuneRecord)
    best = min(built[1:], key=lambda kernel: seconds_of(kernel) if kernel else 9.0)
    assert found.tuned_us == pytest.approx(seconds_of(best) * 1e6)
    with using(Choices({task.workload: found.choice})):
        kernel = traced(loaded(task.description["function"]), "sm_80")
    assert kernel is not None
    ours = loaded(task.description["own"])
    results = []
    for number, each in enumerate((ours, kernel)):
        folder = tmp_path / str(number)
        folder.mkdir()
        emulated = Kernel(each, folder, include=headers() or "")
        output = np.zeros(shape_of(each.params[-1]), str(each.params[-1].dtype))
        emulated([*operands(each), output])
        results.append(output.astype(np.float32))
        assert ("wmma" in emulated.source) == (dtype == "float16")
    assert difference(*results) < 1e-2
