"""From a fused PrimFunc to a scheduled one: which schedule, with which fall-backs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import s_tir, tirx

from collage_engine.kernels.choices import has_traces, trace_for
from collage_engine.kernels.cpu.convolution import writer as conv
from collage_engine.kernels.cpu.dots import bfloat16
from collage_engine.kernels.cpu.dots import int8 as quantized
from collage_engine.kernels.cpu.matmul import writer as matmul
from collage_engine.kernels.cpu.pointwise.writer import Context
from collage_engine.kernels.cpu.reductions import row_chains as rows
from collage_engine.kernels.expressions import NotUnderstood
from collage_engine.kernels.program import Program, Stage, inline, read_program
from collage_engine.kernels.target import Cpu

SCHEDULE = "collage.schedule"
"""PrimFunc attribute: which schedule wrote it."""
REASON = "collage.reason"
"""PrimFunc attribute: why a better schedule was not used."""

Writer = Callable[[Program, Stage, Context], Any]
FAMILIES: dict[str, Writer] = {
    "conv": conv.write,
    "matmul": matmul.write,
    "quantized": quantized.write,
    "bfloat16": bfloat16.write,
}


MACS_PER_US = 50_000
POINTS_PER_US = 2_000
"""What one thread does in a microsecond, roughly: multiply-adds of an anchor, other results."""
WAKING_US = 25.0
"""Waking the other threads takes about this where they must not spin, as in a placement that
mixes toolchains: kernels below it are left to the calling thread."""


@dataclass(frozen=True)
class Kernel:
    """A scheduled PrimFunc and how it came about."""

    function: tirx.PrimFunc
    plain: tirx.PrimFunc
    """What it was scheduled from: the same computation, slow and beyond doubt."""
    schedule: str
    reason: str = ""
    """Why a better schedule was not used, when one was tried."""


_kernels: dict[tuple[int, Cpu], Kernel] = {}


def kernel_for(function: tirx.PrimFunc, cpu: Cpu) -> Kernel:
    """The scheduled form of a fused PrimFunc; equal functions are scheduled once a process."""
    if has_traces():
        traced = _traced(function, cpu)
        if traced is not None:
            return traced
    key = (tvm_ffi.structural_hash(function), cpu)
    found = _kernels.get(key)
    if found is None or not tvm_ffi.structural_equal(found.plain, function):
        found = schedule(function, cpu)
        _kernels[key] = found
    return found


def workload_of(function: tirx.PrimFunc, cpu: Cpu) -> str:
    """A line that equal unscheduled kernels share, in every process."""
    shapes = " ".join(
        "x".join(str(int(e)) for e in p.shape) + ":" + str(p.dtype) for p in function.params
    )
    return f"kernel {tvm_ffi.structural_hash(function):016x} {shapes} threads {cpu.threads}"


def _traced(function: tirx.PrimFunc, cpu: Cpu) -> Kernel | None:
    """The kernel by the MetaSchedule trace that the choices in use hold for it."""
    trace = trace_for(workload_of(function, cpu))
    if trace is None:
        return None
    from collage_engine.kernels.tuning.metaschedule import by_trace

    return _kernel(function, by_trace(function, trace), "metaschedule", whole=True)


def worth_sharing(program: Program) -> bool:
    """Whether a kernel takes long enough on one thread for others to be woken."""
    took = 0.0
    for stage in program.stages:
        points = math.prod(stage.extents) * math.prod(stage.reduce_extents)
        took += points / (MACS_PER_US if stage.note else POINTS_PER_US)
    return took >= WAKING_US


def schedule(function: tirx.PrimFunc, cpu: Cpu) -> Kernel:
    """Tries the anchor's own schedule, then rows and loops, then leaves the plain loops."""
    try:
        program = inline(read_program(function))
    except NotUnderstood as error:
        return _kernel(function, None, "plain", str(error))
    reason = ""
    threads = worth_sharing(program)
    anchors = [s for s in program.stages if s.note]
    if len(anchors) == 1:
        family = anchors[0].note["family"]
        name = " ".join([family, *([anchors[0].note["way"]] if "way" in anchors[0].note else [])])
        context = Context(cpu, threads=threads, plan=anchors[0].note.get("plan", {}))
        try:
            body = FAMILIES[family](program, anchors[0], context)
            return _kernel(function, context.kernel(body), name)
        except NotUnderstood as error:
            reason = f"{name}: {error}"
    context = Context(cpu, threads=threads)
    try:
        body = rows.write_program(program, context)
    except NotUnderstood as error:
        return _kernel(function, None, "plain", f"{reason}; {error}".lstrip("; "))
    name = "rows" if any(s.is_reduction for s in program.stages) else "pointwise"
    return _kernel(function, context.kernel(body), name, reason)


def _kernel(
    plain: tirx.PrimFunc, body: Any, name: str, reason: str = "", whole: bool = False
) -> Kernel:
    """A PrimFunc of the plain one's parameters with this body; without one, its own loops.

    ``whole``: the body is a PrimFunc that is complete.
    """
    attributes = {"tirx.noalias": True, "tirx.is_scheduled": True, SCHEDULE: name}
    if reason:
        attributes[REASON] = reason
    function = plain
    if whole:
        function = body
    elif body is not None:
        # Relax's passes look into every kernel and expect a root block around its loops.
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
        function = tirx.PrimFunc(list(plain.params), root, plain.ret_type)
    return Kernel(function.with_attr(attributes), plain, name, reason)
