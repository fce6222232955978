"""Lowers a Relax function to kernels for an NVIDIA device: it is legalised, fused and scheduled.

The kernel rules of this package schedule matrix products and convolutions. DLight's rules schedule
what else they understand: vectors, reductions, transposes. What is left runs as one thread per
element. Source: tvm.s_tir.dlight. (DLight's own rule for matrix products does not use tensor cores
on ``sm_90a``, whose number it cannot read, and sums float16 in float16.)
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import tirx

from collage_engine.kernels.choices import has_traces
from collage_engine.kernels.cuda.decisions import decision_in
from collage_engine.kernels.cuda.direct.plan import direct_chosen
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.legalize import Products
from collage_engine.kernels.cuda.neutral import legalised, traced, traced_numbers
from collage_engine.kernels.cuda.product.plan import chosen
from collage_engine.kernels.marks import SCHEDULE
from collage_engine.machine.cuda import cuda_target
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason

TRACED = "MetaSchedule"
"""The name under which kernels are marked whose schedule is a trace that tuning found."""


@dataclass
class CudaLowered:
    """A module of scheduled kernels, with the rule that wrote each kernel."""

    module: tvm.IRModule
    schedules: dict[str, str] = field(default_factory=dict)
    """The name of the rule that wrote each kernel, by the kernel's name."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds that each stage of the lowering took, by the stage's name."""


def rules() -> tuple[Any, ...]:
    """Returns DLight's rules, the most specific first; the last one takes every function."""
    from tvm.s_tir import dlight

    gpu = dlight.gpu
    return (
        gpu.Matmul(),
        gpu.GEMV(),
        gpu.Reduction(),
        gpu.GeneralReduction(),
        gpu.Transpose(),
        gpu.Fallback(),
    )


def lower_module(
    module: tvm.IRModule, architecture: str, precision: str = "float32"
) -> CudaLowered:
    """Schedules every PrimFunc that ``main`` calls.

    Args:
        module: The Relax module.
        architecture: The device's architecture, for example ``sm_90a``.
        precision: The lowest precision that products of float32 may have.

    Raises:
        ToolchainError: No rule can schedule one of the functions, which the message names.
    """
    start = time.perf_counter()
    target = cuda_target(architecture)
    with target:
        numbers = (
            traced_numbers(survey(module, architecture, precision), architecture)
            if has_traces()
            else set()
        )
        products = Products(architecture, precision, neutral=numbers.__contains__)
        legal = legalised(module, products.table())
    middle = time.perf_counter()
    lowered = CudaLowered(legal)
    for variable, function in list(legal.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            name = str(variable.name_hint)
            found = traced(function, architecture) if has_traces() else None
            if found is not None:
                scheduled, rule = _marked(found, TRACED), TRACED
            else:
                scheduled, rule = schedule_of(function, target, name)
            legal.update_func(variable, scheduled)
            lowered.schedules[name] = rule
    lowered.seconds = {"legalize": middle - start, "schedule": time.perf_counter() - middle}
    return lowered


def survey(
    module: tvm.IRModule, architecture: str, precision: str, neutral: bool = True
) -> tvm.IRModule:
    """Legalises and fuses a module whose anchors are left unscheduled.

    Those for which MetaSchedule has no rule follow our own plans. None of these plans splits a sum,
    so that every anchor becomes one function.

    Args:
        module: The Relax module.
        architecture: The device's architecture.
        precision: The lowest precision that products of float32 may have.
        neutral: Whether anchors are left to MetaSchedule; otherwise all follow our own plans.
    """
    gpu = Gpu(architecture)
    products = Products(
        architecture,
        precision,
        plans=lambda sizes, math: chosen(sizes, math, gpu, most_splits=1),
        direct_plans=lambda shape: direct_chosen(shape, gpu),
        neutral=lambda _: neutral,
    )
    with cuda_target(architecture):
        return legalised(module, products.table())


def schedule_of(function: tirx.PrimFunc, target: Any, name: str) -> tuple[tirx.PrimFunc, str]:
    """Returns the kernel of a function, and the name of the rule that wrote it.

    Raises:
        ToolchainError: No rule can schedule the function; the message has every rule's reason.
    """
    reasons = []
    decision = decision_in(function)
    if decision is not None:
        own = decision.rule.name
        try:
            return _marked(decision.write(function), own), own
        except ToolchainError as error:
            reasons.append(f"{own}: {error}")
    for rule in rules():
        label = type(rule).__name__
        try:
            with target:
                space = rule.apply(function, target, False)
        except Exception as error:
            # A rule that trips over a function leaves it to the next one.
            reasons.append(f"{label}: {short_reason(error)[:120]}")
            continue
        if space is None:
            continue
        schedule = space[0] if isinstance(space, list) else space
        return _marked(schedule.mod["main"], label), label
    raise ToolchainError(f"TVM has no schedule for {name}: {'; '.join(reasons)}")


def _marked(kernel: tirx.PrimFunc, rule: str) -> tirx.PrimFunc:
    return kernel.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, SCHEDULE: rule})
