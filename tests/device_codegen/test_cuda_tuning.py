"""Tuning products for an NVIDIA device, against a bench that answers from a script."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tvm import tirx

from collage_engine.kernels.choices import write_table
from collage_engine.kernels.cuda.direct import described_direct
from collage_engine.kernels.cuda.direct_tiles import Shape
from collage_engine.kernels.cuda.tiles import Plan, Sizes, chosen, plans
from collage_engine.kernels.tuning.device import Built
from collage_engine.kernels.tuning.device_plans import DeviceBench, tune
from collage_engine.kernels.tuning.subjects import DirectSubject, ProductSubject, subject_of
from collage_engine.lowering.extract import function_of
from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import import_onnx
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target
from collage_engine.records.tuning import TuneRecord, TuneTask
from collage_engine.store.keys import KeyContext
from collage_engine.store.store import Store
from collage_engine.store.tuning_records import TuningRecords
from collage_engine.toolchains.tvm.toolchain import TvmToolchain
from collage_engine.tuning.choice import tuned_instance
from collage_engine.tuning.kernel_device import open_device
from tests.device_codegen.cuda_on_cpu.emulator import extents
from tests.gpu.cases import dense

TVM = TvmToolchain()
(PLAIN,) = TVM.instances(Target.cuda("sm_90a"), "float32")


class Canned:
    """A bench on which a plan takes what the script says."""

    def __init__(self, times: dict[Plan, float], broken: tuple[Plan, ...] = ()) -> None:
        self.times, self.broken = times, broken
        self.compared: list[Plan] = []

    @contextlib.contextmanager
    def __call__(self, subject: Any) -> Iterator[Canned]:
        yield self

    def prepare(self, plans: tuple[Plan, ...]) -> None:
        pass

    def compare(self, both: tuple[Plan, Plan]) -> tuple[float, float]:
        self.compared.append(both[1])
        if both[1] in self.broken:
            raise ToolchainError("wrong numbers")
        first, second = (self.times.get(plan, 1.0) for plan in both)
        return first, second


@pytest.fixture(scope="module")
def model() -> Any:
    return import_onnx(dense("tuned", 128, 256, 192).model("float32"))


@pytest.fixture(scope="module")
def task(model: Any) -> TuneTask:
    operators = tuple(range(len(model.graph.operators)))
    tasks = TVM.tuner().tasks(function_of(model, PLAIN, operators, "f"))
    (found,) = [t for t in tasks if t.kind == "plan"]
    (beside,) = [t for t in tasks if t.kind == "trace"]
    assert beside.beside == found.workload and beside.schedule == "Product"
    return found


def search(
    task: TuneTask, bench: Canned, known: TuneRecord | None = None, seconds: float = 60.0
) -> TuneRecord:
    known = known or TuneRecord(workload=task.workload, toolchain="tvm", kind="plan")
    return tune(task, known, time.monotonic() + seconds, lambda _: None, lambda _: None, bench)


def space(task: TuneTask) -> tuple[Plan, list[Plan]]:
    sizes, about = Sizes(*task.description["sizes"]), task.description
    default = chosen(sizes, about["math"], about["architecture"])
    others = [p for p in plans(sizes, about["math"], about["architecture"]) if p != default]
    return default, others


def test_a_task_names_the_product(task: TuneTask) -> None:
    assert task.workload == "product 1x128x192x256 plain sm_90a"
    assert task.kind == "plan" and task.description["sizes"] == [1, 128, 192, 256]


def test_the_fastest_is_kept_and_wrong_numbers_are_not(task: TuneTask) -> None:
    _, others = space(task)
    bench = Canned({others[0]: 0.1, others[1]: 0.5}, broken=(others[0],))
    found = search(task, bench)
    assert Plan.from_record(found.choice) == others[1]
    assert found.failed == (ProductSubject(task.description).name(others[0]),) and found.complete
    assert (found.default_us, found.tuned_us) == (1e6, 0.5e6)


def test_nothing_better_is_said_too(task: TuneTask) -> None:
    found = search(task, Canned({}))
    assert found.complete and not found.choice and len(found.tried) == len(space(task)[1])


def test_records_are_stored_and_a_later_search_leaves_out_what_was_tried(
    task: TuneTask, tmp_path: Path
) -> None:
    _, others = space(task)
    context = KeyContext(tvm_version="t", target="cuda:sm_90a", fingerprint="f")
    store = Store(tmp_path / "store.sqlite")
    first = search(task, Canned({others[0]: 0.5}))
    TuningRecords(store, context, "tvm").put(first)
    known = TuningRecords(store, context, "tvm").records([task.workload])[task.workload]
    assert known == first
    bench = Canned({others[0]: 0.5})
    again = search(task, bench, known)
    assert bench.compared == [others[0]], "only the confirmation"
    assert again.choice == first.choice


def test_the_lowering_follows_the_record(
    model: Any, task: TuneTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLLAGE_CACHE_DIR", str(tmp_path))
    default, others = space(task)
    wanted = next(
        p for p in others if p.split == 1 and p.tile.threads not in (default.tile.threads, 256)
    )
    instance = tuned_instance(PLAIN, write_table({task.workload: wanted.record()}))
    operators = tuple(range(len(model.graph.operators)))
    module = TVM.lower(function_of(model, instance, operators, "f"))
    threads = {
        extents(f)["threadIdx.x"] for f in module.functions.values() if isinstance(f, tirx.PrimFunc)
    }
    assert wanted.tile.threads in threads


@pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")
def test_without_a_device_it_says_so(task: TuneTask) -> None:
    known = TuneRecord(workload=task.workload, toolchain="tvm", kind="plan")
    with pytest.raises(ToolchainError, match="there is no NVIDIA driver"):
        TVM.tuner().tune(
            task, PLAIN, known, 5.0, lambda _: None, lambda _: None, open_device=open_device
        )


@pytest.mark.parametrize("split", [False, True])
def test_the_bare_product_can_be_built(task: TuneTask, split: bool) -> None:
    subject = ProductSubject({**task.description, "sizes": [1, 64, 64, 4096]})
    plan = next(p for p in subject.plans() if (p.split > 1) == split)
    found = extents(subject.kernel(plan))
    assert found["threadIdx.x"] == plan.tile.threads and found["blockIdx.z"] == plan.split
    assert subject.split(plan) == split and (subject.adding(plan) > 0) == split


def test_integers_and_direct_convolutions_have_kernels_to_tune() -> None:
    integers = ProductSubject(
        {"family": "product", "sizes": [1, 64, 96, 128], "math": "s8", "architecture": "sm_90a"}
    )
    assert not any(plan.split > 1 for plan in integers.plans())
    kernel = integers.kernel(integers.default)
    assert [str(p.dtype) for p in kernel.params] == ["int8", "int8", "int32"]
    shape = Shape(
        1, 32, 1, 1, (1, 28, 28), (1, 28, 28), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), "float16"
    )
    workload, about = described_direct(shape, "sm_90a")
    assert workload.startswith("direct 1x32x1x1 1x28x28")
    direct = subject_of(about)
    assert isinstance(direct, DirectSubject) and direct.default is not None
    assert direct.read(direct.default.record()) == direct.default
    for plan in direct.plans():
        if plan != direct.default:
            assert extents(direct.kernel(plan))["threadIdx.x"] == plan.threads(shape)
            break


class CannedDevice:
    """Builds nothing; a kernel takes as long as its text's turn says."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def built(self, kernels: Any, parts: Any = None) -> list[Built | str]:
        self.asked.append(len(kernels))
        first = 100 * (len(self.asked) - 1)
        return [
            "refused" if first + number == 1 else Built(str(first + number), b"", "", split)
            for number, (_, split) in enumerate(zip(kernels, parts, strict=True))
        ]

    def compare(self, best: Built, challenger: Built) -> tuple[float, float]:
        return 1.0, 0.5 if challenger.kernel == "2" else 2.0


def test_plans_are_compiled_side_by_side_and_those_that_are_refused_fail(task: TuneTask) -> None:
    """The default is compiled first, then plans together; the second of them is refused."""
    device = CannedDevice()
    known = TuneRecord(workload=task.workload, toolchain="tvm", kind="plan")

    @contextlib.contextmanager
    def bench(subject: Any) -> Iterator[DeviceBench]:
        yield DeviceBench(subject, device)  # type: ignore[arg-type]

    _, others = space(task)
    found = tune(task, known, time.monotonic() + 60, lambda _: None, lambda _: None, bench)
    assert device.asked[0] == 9 and sum(device.asked) == 1 + len(others)
    names = [ProductSubject(task.description).name(p) for p in others]
    assert found.failed[0] == names[0], "the first besides the default"
    assert Plan.from_record(found.choice) == others[1]
