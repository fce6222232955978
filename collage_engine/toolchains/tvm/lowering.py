"""Lowers a Relax function to kernels: it is folded, laid out, legalised, fused, scheduled."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import tvm
from tvm import relax, tirx

from collage_engine.kernels.cpu.legalization import table
from collage_engine.kernels.scheduler import Kernel, kernel_for
from collage_engine.kernels.target import Cpu
from collage_engine.toolchains.tvm import bfloat16, channels_last, transposed


@dataclass
class Lowered:
    """A module of scheduled kernels and what is known of them, by kernel name."""

    module: tvm.IRModule
    kernels: dict[str, Kernel] = field(default_factory=dict)
    layout: str = "plain"
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def unscheduled(self) -> int:
        """Return how many kernels no rule could write, so that TVM's plain loops run."""
        return sum(kernel.unscheduled for kernel in self.kernels.values())


def fused(module: tvm.IRModule, cpu: Cpu) -> tvm.IRModule:
    """Returns the module legalised and fused: ``main`` calls PrimFuncs without schedules."""
    return tvm.transform.Sequential(
        [
            relax.transform.LegalizeOps(table(cpu)),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)


def lower_module(module: tvm.IRModule, cpu: Cpu) -> Lowered:
    """Schedules everything ``main`` does."""
    start = time.perf_counter()
    layout = "plain"
    narrow, full = bfloat16.wanted(module["main"])
    narrow = narrow and cpu.bfloat16
    images = narrow and bfloat16.has_images(module["main"])
    if images or channels_last.worthwhile(module["main"], cpu.lanes("float32")):
        module, layout = channels_last.convert(module), "channels last"
    else:
        module = transposed.rewritten(module)
    if narrow:
        module = bfloat16.with_rounded_products(module, full, cpu)
    legal = fused(module, cpu)
    middle = time.perf_counter()
    lowered = Lowered(legal, layout=layout)
    for variable, function in list(legal.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            kernel = kernel_for(function, cpu)
            legal.update_func(variable, kernel.function)
            lowered.kernels[str(variable.name_hint)] = kernel
    lowered.seconds = {"legalize": middle - start, "schedule": time.perf_counter() - middle}
    return lowered
