"""Leaves anchors as plain loops for MetaSchedule, and finds them again in a fused module.

A *neutral* plan divides nothing: the product or convolution has no more padding than tensor cores
need, and MetaSchedule writes the whole schedule. What it finds is kept under the hash of the fused
function. The legalisation numbers its anchors, so that a second legalisation can leave those
neutral for whose functions something was found, and plan the others as usual.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.choices import trace_for
from collage_engine.kernels.cuda.direct.plan import DirectPlan, DirectProblem
from collage_engine.kernels.cuda.direct.reference import DIRECT
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.product.plan import (
    F16,
    FRAGMENT,
    PLAIN,
    ProductPlan,
    ProductSizes,
    Tile,
)
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.cuda.product.reference import PRODUCT
from collage_engine.kernels.program import kernel_text

NUMBER = "number"
"""Key of the anchor's number in the note of a neutral anchor."""
ANCHORS = {"product_c": PRODUCT, "direct_c": DIRECT}
"""The annotation that holds an anchor's note, by the name of the anchor's block."""


def neutral_plan(math: str) -> ProductPlan | None:
    """Returns the neutral plan; None where MetaSchedule has no rule for the arithmetic."""
    if math == PLAIN:
        return ProductPlan(Tile(1, 1, 1, (1, 1)))
    if math == F16:
        return ProductPlan(Tile(FRAGMENT, FRAGMENT, FRAGMENT, (FRAGMENT, FRAGMENT), F16))
    return None


def neutral_direct(shape: DirectProblem) -> DirectPlan:
    """Returns the neutral plan of a convolution with few channels a group."""
    return DirectPlan(1, 1, 1, 1, 1, 1, shape.channels)


@dataclass(frozen=True)
class Surveyed:
    """A fused function that is not scheduled yet."""

    name: str
    function: tirx.PrimFunc
    """The function without its anchor's number, so that equal work has equal functions."""
    number: int | None
    """The number of its anchor where that is neutral, else None."""
    math: str = PLAIN
    note: dict[str, Any] = field(default_factory=dict)
    """The note of its anchor; empty where it has none."""

    @property
    def anchor(self) -> bool:
        """Tells whether the function contains an anchor."""
        return bool(self.note)

    def plan_workload(self, architecture: str) -> str:
        """Returns the workload under which the anchor's plans are kept; empty without an anchor."""
        if "shape" in self.note:
            return DirectProblem.from_record(self.note["shape"]).workload(Gpu(architecture))
        if "sizes" in self.note:
            return ProductProblem(ProductSizes(*self.note["sizes"]), self.math).workload(
                Gpu(architecture)
            )
        return ""

    def product(self) -> dict[str, Any]:
        """Returns the anchor's problem as a record under ``product``; empty for no product."""
        if "sizes" not in self.note:
            return {}
        return {"product": ProductProblem(ProductSizes(*self.note["sizes"]), self.math).to_record()}

    def workload(self, architecture: str) -> str:
        """Returns the workload under which traces of the whole function are kept."""
        return workload_of(self.function, architecture)


def workload_of(function: tirx.PrimFunc, architecture: str) -> str:
    """Returns a line of text that equal unscheduled functions share, in every process."""
    return f"{kernel_text(function)} {architecture}"


def surveyed(name: str, function: tirx.PrimFunc) -> Surveyed:
    """Returns a function of a legalised module with what its anchor's note says."""
    schedule = Schedule(function)
    for block_name, annotation in ANCHORS.items():
        try:
            block = schedule.get_sblock(block_name)
        except Exception:  # TVM's own error class: there is no such block
            continue
        note = json.loads(str(schedule.get(block).annotations[annotation]))
        number = note.pop(NUMBER, None)
        math = note["plan"]["tile"]["math"] if "sizes" in note else PLAIN
        if number is None:
            return Surveyed(name, function, None, math, note)
        schedule.unannotate(block, annotation)
        schedule.annotate(block, annotation, json.dumps(note, sort_keys=True))
        return Surveyed(name, schedule.mod["main"], number, math, note)
    return Surveyed(name, function, None)


def calls_of(module: tvm.IRModule) -> list[Surveyed]:
    """Returns the functions that ``main`` calls in the order of the calls, each once."""
    found: dict[str, Surveyed] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            arguments = list(getattr(binding.value, "args", ()))
            if not arguments or not isinstance(arguments[0], tvm.ir.GlobalVar):
                continue
            name = str(arguments[0].name_hint)
            function = module[arguments[0]]
            if name not in found and isinstance(function, tirx.PrimFunc):
                found[name] = surveyed(name, function)
    return list(found.values())


def traced_numbers(survey: tvm.IRModule, architecture: str) -> set[int]:
    """Returns the numbers of the anchors for whose functions the table in use has a trace."""
    return {
        each.number
        for each in calls_of(survey)
        if each.number is not None and trace_for(each.workload(architecture)) is not None
    }


def traced(function: tirx.PrimFunc, architecture: str) -> tirx.PrimFunc | None:
    """Returns the kernel for which the table in use has a trace; None where it has none.

    Raises:
        ToolchainError: The trace does not fit the function.
    """
    from collage_engine.kernels.cuda.product.intrinsics import finish_sources, intrinsics
    from collage_engine.kernels.tuning.metaschedule import by_trace

    each = surveyed("", function)
    trace = trace_for(each.workload(architecture))
    if trace is None:
        return None
    if each.math != PLAIN:
        intrinsics(each.math)
        finish_sources()
    return by_trace(each.function, trace)


def legalised(module: tvm.IRModule, table: dict[str, Any]) -> tvm.IRModule:
    """Returns the module legalised and fused, its functions not yet scheduled."""
    done: tvm.IRModule = tvm.transform.Sequential(
        [
            relax.transform.FoldConstant(),  # weights may be dequantised
            relax.transform.LegalizeOps(table),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)
    return done
