"""Schedules fused PrimFuncs: the ordered list of rules, and which one writes each function.

A new method is added here, before the more general rules for the same problems.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import tvm_ffi
from tvm import s_tir, tirx

from collage_engine.kernels.choices import plan_for
from collage_engine.kernels.cpu import reductions
from collage_engine.kernels.cpu.depthwise import DepthwiseFirst, DepthwiseLast
from collage_engine.kernels.cpu.direct_channels import DirectChannels, PackedProduct
from collage_engine.kernels.cpu.direct_spatial import DirectSpatial
from collage_engine.kernels.cpu.dots import Bfloat16Dots, Int8Depthwise, Int8Dots
from collage_engine.kernels.cpu.runtime_matmul import RuntimeProduct
from collage_engine.kernels.cpu.winograd.rule import Winograd
from collage_engine.kernels.cpu.writing.context import HANDING_CYCLES, Context
from collage_engine.kernels.cpu.writing.epilogue import surround
from collage_engine.kernels.expressions import UnsupportedPattern, loads
from collage_engine.kernels.program import Program, Stage, inline, read_program
from collage_engine.kernels.rule import Decision, Registry, decision_of, workload_of
from collage_engine.kernels.target import BYTES_PER_CYCLE, Cpu

if TYPE_CHECKING:
    import tvm

SCHEDULE = "collage.schedule"
"""PrimFunc attribute: the name of the rule that wrote it, or ``UNSCHEDULED``."""
ROWS, POINTWISE = "rows", "pointwise"
"""The schedules of whole programs, with a reduction and without: stage by stage or row by row."""
UNSCHEDULED = "plain"
"""The schedule of a kernel that no rule could write: TVM's plain loops, tens of times slower."""


def count_unscheduled(module: tvm.IRModule) -> int:
    """Count the kernels of a module that no rule could write, so that TVM's plain loops run."""
    count = 0
    for function in module.functions.values():
        attributes = getattr(function, "attrs", None)
        if attributes and SCHEDULE in attributes:
            count += str(attributes[SCHEDULE]) == UNSCHEDULED
    return count


RULES = Registry(
    [
        DepthwiseFirst(),
        DepthwiseLast(),
        Winograd(),
        DirectSpatial(),
        DirectChannels(),
        PackedProduct(),
        RuntimeProduct(),
        Int8Depthwise(),
        Int8Dots(),
        Bfloat16Dots(),
    ]
)


def decide(problem: Any, machine: Any) -> Decision[Any, Any] | None:
    """Return the rule and plan for a problem: those of the tuned table in use, else the default.

    The table learns that the problem was asked for, which is how the tuner finds what there is to
    tune.

    Returns:
        The decision; None where no rule matches.

    Raises:
        PlanError: The table's choice names no rule that matches, or its plan cannot be followed.
    """
    record = plan_for(workload_of(problem, machine), msgspec.to_builtins(problem))
    return RULES.decide(problem, machine, record)


CYCLES_PER_STORE = 8 / BYTES_PER_CYCLE
"""Cycles of one thread for a result of a plain stage: four bytes are read and four written."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kernel:
    """A scheduled PrimFunc, and how it came about."""

    function: tirx.PrimFunc
    plain: tirx.PrimFunc
    """The PrimFunc before scheduling: the same computation in TVM's plain loops, slow but
    reliable."""
    schedule: str
    reason: str = ""
    """A sentence why a more specific rule was not used, when one was tried; else empty."""

    @property
    def unscheduled(self) -> bool:
        """Tells whether no rule could write the kernel, so that TVM's plain loops run."""
        return self.schedule == UNSCHEDULED


_kernels: dict[tuple[int, Cpu], Kernel] = {}


def kernel_for(function: tirx.PrimFunc, cpu: Cpu) -> Kernel:
    """Return the scheduled form of a fused PrimFunc.

    Equal functions are scheduled once a process.
    """
    key = (tvm_ffi.structural_hash(function), cpu)
    kernel = _kernels.get(key)
    if kernel is None or not tvm_ffi.structural_equal(kernel.plain, function):
        kernel = schedule(function, cpu)
        _kernels[key] = kernel
    return kernel


def worth_sharing(program: Program, cpu: Cpu) -> bool:
    """Tells whether a kernel takes long enough on one thread for others to have a part of it.

    A written kernel is taken to start one multiply-add of vectors in a cycle: all that a processor
    with halved vectors can, and about what kernels reach where two could start.
    """
    lanes = cpu.lanes("float32")
    cycles = 0.0
    for stage in program.stages:
        points = math.prod(stage.extents) * math.prod(stage.reduce_extents)
        cycles += points / lanes if stage.note else points * CYCLES_PER_STORE
    return cycles >= HANDING_CYCLES


def schedule(function: tirx.PrimFunc, cpu: Cpu) -> Kernel:
    """Write a kernel by the rule that its note names, else as a whole program.

    Only ``UnsupportedPattern`` makes one give way to the next, at last to TVM's plain loops; any
    other error is a defect and is raised.
    """
    try:
        program = inline(read_program(function))
    except UnsupportedPattern as error:
        return _unscheduled(function, str(error))
    reason = ""
    anchors = [stage for stage in program.stages if stage.note]
    if len(anchors) == 1:
        try:
            return _anchored(function, program, anchors[0], cpu)
        except UnsupportedPattern as error:
            assert anchors[0].note is not None
            reason = f"{anchors[0].note.rule}: {error}"
    context = Context(cpu, threads=worth_sharing(program, cpu))
    try:
        body = reductions.write_program(program, context)
    except UnsupportedPattern as error:
        return _unscheduled(function, f"{reason}; {error}".lstrip("; "))
    name = ROWS if any(stage.is_reduction for stage in program.stages) else POINTWISE
    return _kernel(function, context.kernel(body), name, reason)


def _anchored(function: tirx.PrimFunc, program: Program, anchor: Stage, cpu: Cpu) -> Kernel:
    """Return the kernel by the decision that the anchor's note holds."""
    assert anchor.note is not None
    decision = decision_of(anchor.note, RULES.rule(anchor.note.rule))
    read = [access.source for access in loads(anchor.value)]
    if len(read) != 2:  # bfloat16 numbers are read twice
        read = list({str(buffer.name): buffer for buffer in read}.values())
    if len(read) != 2:
        raise UnsupportedPattern("an anchor that does not read two tensors")
    data, weight = read
    context = Context(cpu, threads=worth_sharing(program, cpu), data=data, weight=weight)
    body = surround(program, anchor, context, decision.write)
    return _kernel(function, context.kernel(body), decision.rule.name)


def _unscheduled(function: tirx.PrimFunc, reason: str) -> Kernel:
    """Return TVM's plain loops and log it: they are tens of times slower than our kernels."""
    _log.info("a kernel of %d parameters runs unscheduled: %s", len(function.params), reason)
    return _kernel(function, None, UNSCHEDULED, reason)


def _kernel(plain: tirx.PrimFunc, body: Any, name: str, reason: str = "") -> Kernel:
    """Return a PrimFunc of the plain one's parameters with this body; without one, its own loops.

    Args:
        plain: The unscheduled function.
        body: The loops, or nothing.
        name: The schedule's name.
        reason: Why a more specific rule was not used.
    """
    attributes = {"tirx.noalias": True, "tirx.is_scheduled": True, SCHEDULE: name}
    function = plain
    if body is not None:
        # Relax's passes look into every kernel and expect a root block around its loops.
        root = s_tir.SBlockRealize([], True, s_tir.SBlock([], [], [], "root", body))
        function = tirx.PrimFunc(list(plain.params), root, plain.ret_type)
    return Kernel(function.with_attr(attributes), plain, name, reason)
