"""From a Relax function to kernels for an NVIDIA device: legalise, fuse, schedule.

Matmuls and convolutions are ours: ``legalize``, ``schedule`` (products) and ``schedule_direct``
(few channels a group). DLight's rules schedule what else they understand: vectors, reductions,
transposes; what is left runs as one thread per element. Source: tvm.s_tir.dlight. (DLight's own
matmul leaves tensor cores alone on ``sm_90a``, whose number it cannot read, and sums float16 in
float16.)
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
from collage_engine.machine.cuda import cuda_target
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason

SCHEDULE = "collage.schedule"
"""PrimFunc attribute: which rule wrote it."""
TRACED = "MetaSchedule"
"""A trace that tuning found."""


@dataclass
class CudaLowered:
    """A module of scheduled kernels; rules by kernel name."""

    module: tvm.IRModule
    schedules: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def rules() -> tuple[Any, ...]:
    """DLight's rules, the most specific first; the last one takes everything."""
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
    """Every PrimFunc that ``main`` calls scheduled; ``ToolchainError`` names one that cannot be."""
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
    """Legal and fused, with all anchors neutral that MetaSchedule has rules for; the others, or
    all, by our own plans, none of which splits a sum: one function for each of the other kind."""
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
    """A function's kernel, and which rule wrote it."""
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
