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
from collage_engine.kernels.cuda.cuda_rule import CudaRule, bare_kernel
from collage_engine.kernels.cuda.direct.plan import DirectProblem
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.product.plan import ProductPlan, ProductSizes
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.registry import RULES
from collage_engine.kernels.rule import Decision, PlanError
from collage_engine.kernels.tuning.device import Built
from collage_engine.kernels.tuning.device_plans import DeviceBench, tune
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
GPU = Gpu("sm_90a")
(PLAIN,) = TVM.instances(Target.cuda("sm_90a"), "float32")


class Canned:
    """A bench on which a plan takes what the script says."""

    def __init__(
        self, times: dict[ProductPlan, float], broken: tuple[ProductPlan, ...] = ()
    ) -> None:
        self.times, self.broken = times, broken
        self.compared: list[ProductPlan] = []

    @contextlib.contextmanager
    def __call__(self, decision: Any) -> Iterator[Canned]:
        yield self

    def prepare(self, decisions: tuple[Decision[Any, Any], ...]) -> None:
        pass

    def compare(self, both: tuple[Decision[Any, Any], Decision[Any, Any]]) -> tuple[float, float]:
        self.compared.append(both[1].plan)
        if both[1].plan in self.broken:
            raise ToolchainError("wrong numbers")
        first, second = (self.times.get(each.plan, 1.0) for each in both)
        return first, second


@pytest.fixture(scope="module")
def model() -> Any:
    return import_onnx(dense("tuned", 128, 256, 192).model("float32"))


@pytest.fixture(scope="module")
def task(model: Any) -> TuneTask:
    operators = tuple(range(len(model.graph.operators)))
    (found,) = TVM.tuner().tasks(function_of(model, PLAIN, operators, "f"))
    return found


def search(
    task: TuneTask, bench: Canned, known: TuneRecord | None = None, seconds: float = 60.0
) -> TuneRecord:
    known = known or TuneRecord(workload=task.workload, toolchain="tvm")
    return tune(task, known, time.monotonic() + seconds, lambda _: None, bench, GPU)


def default_of(task: TuneTask) -> Decision[Any, Any]:
    found = RULES.default(RULES.problem(task.description), GPU)
    assert found is not None
    return found


def space(task: TuneTask) -> tuple[ProductPlan, list[ProductPlan]]:
    default = default_of(task)
    return default.plan, [each.plan for each in RULES.neighbours(default, GPU)]


def test_a_task_names_the_product(task: TuneTask) -> None:
    assert task.workload == "product 1x128x192x256 plain sm_90a"
    assert task.description["sizes"] == [1, 128, 192, 256]


def test_the_fastest_is_kept_and_wrong_numbers_are_not(task: TuneTask) -> None:
    _, others = space(task)
    bench = Canned({others[0]: 0.1, others[1]: 0.5}, broken=(others[0],))
    found = search(task, bench)
    chosen = RULES.decide(default_of(task).problem, GPU, found.choice)
    assert chosen is not None and chosen.plan == others[1]
    assert found.failed == (f"Product: {others[0].name}",) and found.complete
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
    instance = tuned_instance(
        PLAIN, write_table({task.workload: {"rule": "Product", **wanted.to_record()}})
    )
    operators = tuple(range(len(model.graph.operators)))
    module = TVM.lower(function_of(model, instance, operators, "f"))
    threads = {
        extents(f)["threadIdx.x"] for f in module.functions.values() if isinstance(f, tirx.PrimFunc)
    }
    assert wanted.tile.threads in threads


@pytest.mark.skipif(bool(cuda_probe().devices), reason="a device is here")
def test_without_a_device_it_says_so(task: TuneTask) -> None:
    known = TuneRecord(workload=task.workload, toolchain="tvm")
    with pytest.raises(ToolchainError, match="there is no NVIDIA driver"):
        TVM.tuner().tune(task, PLAIN, known, 5.0, lambda _: None, open_device=open_device)


@pytest.mark.parametrize("split", [False, True])
def test_the_bare_product_can_be_built(task: TuneTask, split: bool) -> None:
    problem = RULES.problem({**task.description, "sizes": [1, 64, 64, 4096]})
    default = RULES.default(problem, GPU)
    assert default is not None and isinstance(default.rule, CudaRule)
    decision = next(
        each
        for each in (default, *RULES.neighbours(default, GPU))
        if (each.plan.split > 1) == split
    )
    found = extents(bare_kernel(decision))
    assert found["threadIdx.x"] == decision.plan.tile.threads
    assert found["blockIdx.z"] == decision.plan.split
    assert default.rule.gives_parts(decision.plan) == split
    assert (default.rule.adding_s(problem, decision.plan) > 0) == split


def test_integers_and_direct_convolutions_have_kernels_to_tune() -> None:
    integers = RULES.default(ProductProblem(ProductSizes(1, 64, 96, 128), "s8"), GPU)
    assert integers is not None
    assert not any(each.plan.split > 1 for each in RULES.neighbours(integers, GPU))
    kernel = bare_kernel(integers)
    assert [str(p.dtype) for p in kernel.params] == ["int8", "int8", "int32"]
    shape = DirectProblem(
        1, 32, 1, 1, (1, 28, 28), (1, 28, 28), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), "float16"
    )
    assert shape.workload(GPU).startswith("direct 1x32x1x1 1x28x28")
    assert RULES.problem(shape.to_record()) == shape
    direct = RULES.default(shape, GPU)
    assert direct is not None and RULES.decide(shape, GPU, direct.to_record()) == direct
    other = next(RULES.neighbours(direct, GPU))
    assert extents(bare_kernel(other))["threadIdx.x"] == other.plan.threads(shape)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"splits": 2}, "has no parameter splits"),
        ({"split": 0}, "between 1 and 16"),
        ({"tile": {"m": 3, "n": 3, "k": 3, "thread": [1, 1], "math": "plain"}}, "there is no tile"),
        ({"tile": {"m": 64}}, "describes no tile"),
    ],
)
def test_a_plan_that_is_not_one_of_the_rule_is_refused(
    task: TuneTask, change: dict[str, Any], reason: str
) -> None:
    default = default_of(task)
    with pytest.raises(PlanError, match=reason):
        RULES.decide(default.problem, GPU, {**default.to_record(), **change})


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
    known = TuneRecord(workload=task.workload, toolchain="tvm")

    @contextlib.contextmanager
    def bench(decision: Any) -> Iterator[DeviceBench]:
        yield DeviceBench(device)  # type: ignore[arg-type]

    _, others = space(task)
    found = tune(task, known, time.monotonic() + 60, lambda _: None, bench, GPU)
    assert device.asked[0] == 9 and sum(device.asked) == 1 + len(others)
    names = [f"Product: {plan.name}" for plan in others]
    assert found.failed[0] == names[0], "the first besides the default"
    assert found.choice == {"rule": "Product", **others[1].to_record()}
