"""Tunes candidates for an NVIDIA device by MetaSchedule: tasks, search spaces, and the search.

Anchors are searched as plain loops (``cuda.neutral``), reductions as they are. What it finds has to
beat what the lowering writes otherwise: our own schedule of the same fused function, unsplit, or
DLight's. Kernels are built side by side by the compiler's own processes and run in a child that may
lose the device; only this process, which took half a minute to load MetaSchedule, stays.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.tuning.device import Built, Device, OpenDevice
from collage_engine.kernels.tuning.metaschedule import evolve, load_intrinsics, loaded, saved
from collage_engine.machine.device import physical_cores
from collage_engine.records.errors import ToolchainError
from collage_engine.records.tuning import TuneRecord, TuneTask

MOST_TOGETHER = 16
"""Kernels compiled side by side, at most; chosen."""
REDUCTION = 2
"""``IterVar.iter_type`` of an axis that is summed over."""


def trace_tasks(module: Any, architecture: str, precision: str) -> list[TuneTask]:
    """Returns what of a candidate's Relax module MetaSchedule may search."""
    from collage_engine.kernels.cuda.lowering import schedule_of, survey
    from collage_engine.kernels.cuda.neutral import calls_of
    from collage_engine.machine.cuda import cuda_target

    target = cuda_target(architecture)
    free = calls_of(survey(module, architecture, precision))
    own = calls_of(survey(module, architecture, precision, neutral=False))
    found = []
    for each, ours in zip(free, own, strict=True):
        anchored = each.number is not None
        if not anchored and (ours.anchor or not has_reduction(each.function)):
            continue  # no rule for its arithmetic, or nothing to gain
        kernel, rule = schedule_of(ours.function, target, ours.name)
        found.append(
            TuneTask(
                workload=each.workload(architecture),
                kind="trace",
                description={
                    "function": saved(each.function),
                    "own": saved(kernel),
                    "math": each.math,
                    "architecture": architecture,
                    **ours.product(),
                },
                schedule="plain" if rule == "Fallback" else rule,
                weight=_work(each.function),
                beside=ours.plan_workload(architecture),
            )
        )
    return found


def _blocks(function: Any) -> list[Any]:
    """Returns the TIR blocks of a function that is not scheduled."""
    from tvm.s_tir import Schedule

    schedule = Schedule(function)
    found = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [schedule.get(block) for block in found]


def has_reduction(function: Any) -> bool:
    """Tells whether any block of a function reduces: sums, or finds a maximum, and so on."""
    return any(int(v.iter_type) == REDUCTION for b in _blocks(function) for v in b.iter_vars)


def _work(function: Any) -> float:
    """Return the points of the largest block's loops."""
    sizes = (math.prod(int(v.dom.extent) for v in b.iter_vars) for b in _blocks(function))
    return float(max(sizes, default=1))


def space_for(arithmetic: str) -> Any:
    """Returns MetaSchedule's space for CUDA; with tensor cores where we have their instructions.

    Its own rule for them keeps slices and results in one block of dynamic shared memory, which TVM
    0.27 refuses for two types, and its instructions take a minute to load for whoever applies the
    trace. So the rule is given ours, with slices in static shared memory.
    """
    from tvm.s_tir.meta_schedule.schedule_rule import (
        MultiLevelTilingTensorCore,
        ReuseType,
        ScheduleRule,
    )
    from tvm.s_tir.meta_schedule.space_generator import PostOrderApply

    from collage_engine.kernels.cuda.product.fragments import RESULT, SHARED
    from collage_engine.kernels.cuda.product.intrinsics import finish_sources, intrinsics
    from collage_engine.kernels.cuda.product.plan import PLAIN

    if arithmetic == PLAIN:
        return PostOrderApply(sch_rules="cuda", postprocs="cuda", mutator_probs="cuda")
    names = intrinsics(arithmetic)
    finish_sources()
    group = {
        "init": names.fill,
        "load_a": names.load_a,
        "load_b": names.load_b,
        "compute": names.multiply,
        "store": names.store,
    }
    rule = MultiLevelTilingTensorCore(
        [group],
        "SSSRRSRS",
        ["blockIdx.y", "blockIdx.x", "threadIdx.y"],
        4,
        [1, 2, 4, 8],
        ReuseType("must", [4], SHARED[arithmetic]),
        ReuseType("must", [2], RESULT),
        False,
    )
    return PostOrderApply(
        sch_rules=[rule, *ScheduleRule.create("cuda")],
        postprocs="cuda-tensorcore",
        mutator_probs="cuda-tensorcore",
    )


class DeviceBench:
    """A bench that times kernels beside our own one, in rounds that alternate between both."""

    def __init__(
        self, device: Device, own: Any, gpu: Gpu, bare: dict[str, Any] | None = None
    ) -> None:
        """Builds and times our own kernel.

        Args:
            device: Where kernels run.
            own: Our own kernel, with an unsplit sum.
            gpu: The device's architecture.
            bare: The record of the product inside, whose default plan may split its sum.
        """
        self._device = device
        (built,) = device.built([own])
        if isinstance(built, str):
            raise ToolchainError(f"our own kernel cannot be built: {built}")
        self._own: Built = built
        self._own_us = min(device.compare(built, built)) * 1e6
        self.default_us = self._own_us * (_default_share(device, bare, gpu) if bare else 1.0)

    def measure(
        self, kernels: Sequence[Any], about_to_try: Callable[[int], None]
    ) -> list[tuple[float, str | None]]:
        """Builds, checks and times kernels.

        Args:
            kernels: The scheduled kernels.
            about_to_try: Is called with the position of each kernel before it is run.

        Returns:
            For each kernel its microseconds and None; or infinity and the reason.
        """
        made = self._device.built([_bare(kernel) for kernel in kernels])
        found: list[tuple[float, str | None]] = []
        for place, built in enumerate(made):
            if isinstance(built, str):
                found.append((math.inf, built))
                continue
            about_to_try(place)
            try:
                own, its = self._device.compare(self._own, built)
            except ToolchainError as error:
                found.append((math.inf, str(error)[-200:]))
                continue
            found.append((self._own_us * its / own, None))
        return found


def _default_share(device: Device, about: dict[str, Any], gpu: Gpu) -> float:
    """Returns what a bare product takes by its default plan, as a share of the best unsplit one."""
    from collage_engine.kernels.cuda.product.plan import chosen
    from collage_engine.kernels.registry import RULES
    from collage_engine.kernels.tuning.device_plans import DeviceBench as PlanBench

    problem = RULES.problem(about)
    default = RULES.default(problem, gpu)
    if default is None or default.plan.split == 1:
        return 1.0
    unsplit = replace(default, plan=chosen(problem.sizes, problem.math, gpu, most_splits=1))
    one, all_parts = PlanBench(device).compare((unsplit, default))
    return all_parts / one


def _bare(kernel: Any) -> Any:
    return kernel.without_attr("global_symbol") if "global_symbol" in kernel.attrs else kernel


def search(
    task: TuneTask,
    known: TuneRecord,
    deadline: float,
    about_to_try: Callable[[str], None],
    better: Callable[[TuneRecord], None],
    open_device: OpenDevice,
) -> TuneRecord:
    """Searches by MetaSchedule for a faster schedule of a task's function on an NVIDIA device.

    Args:
        task: What is tuned; its description holds the function and our own kernel.
        known: What earlier searches found.
        deadline: When to end, on ``time.monotonic``'s clock, in seconds.
        about_to_try: It is told the name of what is tried next.
        better: It is told the record whenever something faster is found.
        open_device: Opens the device for an architecture.

    Returns:
        The best trace found, as a record.

    Raises:
        ToolchainError: There is no device.
    """
    from collage_engine.machine.cuda import cuda_target

    about, begun = task.description, time.monotonic()
    processors = physical_cores()
    with open_device(about["architecture"]) as device:
        # This is done once a process, is no part of the search, and needs a device.
        loading = load_intrinsics()
        begun, deadline = begun + loading, deadline + loading
        about_to_try("")
        bench = DeviceBench(
            device, loaded(about["own"]), Gpu(about["architecture"]), about.get("product")
        )
        # However long the device took to wake, half of the turn is left for searching.
        deadline = max(deadline, time.monotonic() + (deadline - begun) / 2)
        return evolve(
            loaded(about["function"]),
            cuda_target(about["architecture"]),
            space_for(about["math"]),
            processors,
            max(8, min(MOST_TOGETHER, processors)),
            bench,
            known,
            deadline,
            about_to_try,
            better,
        )
