"""Lowers a Relax function to kernels: it is folded, laid out, legalised, fused, scheduled.

So are kernels that bring a value from one format to another.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

import tvm
from tvm import relax, te, tirx, topi

from collage_engine.kernels.cpu.legalization import legalization
from collage_engine.kernels.scheduler import Kernel, kernel_for
from collage_engine.kernels.target import Cpu, cpu
from collage_engine.records.format import TO_LOGICAL, TO_STORED, stored_type
from collage_engine.records.graph import TensorType
from collage_engine.toolchains.base import KERNEL_NODES, Function
from collage_engine.toolchains.tvm import bfloat16, channels_last, transposed
from collage_engine.toolchains.tvm.kernel_nodes import nodes_of_calls
from collage_engine.toolchains.tvm.rebuild import relax_module


@dataclass
class Lowered:
    """A module of scheduled kernels and what is known of them, by kernel name."""

    module: tvm.IRModule
    kernels: dict[str, Kernel] = field(default_factory=dict)


def fused(module: tvm.IRModule, cpu: Cpu) -> tvm.IRModule:
    """Return the module legalised and fused: ``main`` calls PrimFuncs without schedules.

    Its attribute ``KERNEL_NODES`` says which nodes of the graph each of the calls computes.
    """
    legal = legalization(cpu)(module)
    groups = tvm.transform.Sequential(
        [relax.transform.AnnotateTIROpPattern(), relax.transform.FuseOps()]
    )(legal)
    kernels = tvm.transform.Sequential(
        [relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()]
    )(groups)
    nodes = [(callee, sorted(found)) for callee, found in nodes_of_calls(legal, groups)]
    return kernels.with_attr(KERNEL_NODES, json.dumps(nodes))


def lower_module(
    module: tvm.IRModule,
    cpu: Cpu,
    full: Collection[int] | None = None,
    takes: Collection[int] = (),
    gives: Collection[int] = (),
) -> Lowered:
    """Schedules everything ``main`` does.

    Args:
        module: The module.
        cpu: The processor.
        full: Products, by their order, that are left in float32 where the others are rounded to
            bfloat16; None: none is rounded.
        takes: Positions of the parameters that are images with channels last.
        gives: Positions of the results that are to be.
    """
    narrow = full is not None and cpu.bfloat16
    images = narrow and bfloat16.has_images(module["main"])
    wide = channels_last.worthwhile(module["main"], cpu.lanes("float32"))
    if takes or gives or images or wide:
        module = channels_last.convert(module, takes, gives)
    module = transposed.rewritten(module)
    if full is not None and narrow:
        module = bfloat16.with_rounded_products(module, full, cpu)
    legal = fused(module, cpu)
    lowered = Lowered(legal)
    for variable, function in list(legal.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            kernel = kernel_for(function, cpu)
            legal.update_func(variable, kernel.function)
            lowered.kernels[str(variable.name_hint)] = kernel
    return lowered


def lower_function(function: Function) -> Lowered:
    """Schedules a function's operators for the processor."""
    module, full = relax_module(function)
    takes = [k for k, index in enumerate(function.inputs) if index in function.takes]
    gives = [k for k, index in enumerate(function.outputs) if index in function.gives]
    return lower_module(module, cpu(function.instance.threads), full, takes, gives)


def conversion(kind: TensorType, source: str, target: str, threads: int) -> Kernel:
    """Return a scheduled kernel that brings a value from one stored form to another.

    It is a transposition in squares held in registers (``cpu/pointwise``), shared
    by the threads where it is long enough.

    Args:
        kind: The value's logical type.
        source: The format that it has.
        target: The format that it gets.
        threads: How many threads may share the work on the processor.
    """
    plain = tuple(range(len(kind.shape)))
    to_logical = TO_LOGICAL.get(source, plain)
    given = stored_type(kind, source)
    value = te.placeholder(given.shape, given.dtype, "value")
    moved = topi.transpose(value, [to_logical[axis] for axis in TO_STORED.get(target, plain)])
    function = te.create_prim_func([value, moved]).without_attr("global_symbol")
    return kernel_for(function, cpu(threads))
