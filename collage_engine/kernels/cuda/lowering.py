"""Lowers a Relax function to kernels for an NVIDIA device: it is legalised, fused and scheduled.

The schedules of this package are for matrix products and convolutions. DLight's rules schedule
what else they understand: vectors, reductions, transposes. What is left runs as one thread per
element. Source: tvm.s_tir.dlight. (DLight's own rule for matrix products does not use tensor cores
on ``sm_90a``, whose number it cannot read, and sums float16 in float16.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.direct import NotedDirect, schedule_direct
from collage_engine.kernels.cuda.epilogue import note_on
from collage_engine.kernels.cuda.legalize import Products
from collage_engine.kernels.cuda.product.forms import AnnotatedProduct
from collage_engine.kernels.cuda.product.schedule import schedule_product
from collage_engine.kernels.cuda.rows import as_kernels, with_joined_rows
from collage_engine.kernels.scheduler import SCHEDULE
from collage_engine.machine.cuda import cuda_target
from collage_engine.support.errors import ToolchainError, short_reason

OWN: tuple[tuple[str, str, type[Any], Callable[[Schedule, Any], None]], ...] = (
    ("Product", "product_c", AnnotatedProduct, schedule_product),
    ("Direct", "direct_c", NotedDirect, schedule_direct),
)
"""Our own schedules: the name, the block with the legalisation's note, the note's type, and the
function that changes the schedule."""


def rules() -> tuple[Any, ...]:
    """Return DLight's rules, the most specific first; the last one takes every function."""
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
    module: tvm.IRModule,
    architecture: str,
    precision: str = "float32",
    full: Collection[int] = (),
) -> tvm.IRModule:
    """Return the module with every PrimFunc that ``main`` calls scheduled.

    Args:
        module: The Relax module.
        architecture: The device's architecture, for example ``sm_90a``.
        precision: The lowest precision that products of float32 may have.
        full: Which products of ``main``, counted in their order, stay in float32.

    Raises:
        ToolchainError: No rule can schedule one of the functions, which the message names.
    """
    target = cuda_target(architecture)
    with target:
        products = Products(architecture, precision, full=full)
        legal = legalised(module, products.table())
    for variable, function in list(legal.functions.items()):
        if isinstance(function, tirx.PrimFunc):
            scheduled = schedule_of(function, target, str(variable.name_hint))
            if touches_booleans(function):
                scheduled = without_vectors(scheduled)
            legal.update_func(variable, scheduled)
    return legal


def legalised(module: tvm.IRModule, table: dict[str, Any]) -> tvm.IRModule:
    """Return the module legalised and fused, its functions not yet scheduled.

    Reductions along the last axis become one kernel with what is around.

    Args:
        module: The module.
        table: Legalisations by operator.
    """
    done: tvm.IRModule = tvm.transform.Sequential(
        [
            relax.transform.FoldConstant(),  # weights may be dequantised
            tvm.transform.module_pass(lambda m, _: with_joined_rows(m), opt_level=0),
            relax.transform.LegalizeOps(table),
            tvm.transform.module_pass(lambda m, _: as_kernels(m), opt_level=0),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
            relax.transform.DeadCodeElimination(),
        ]
    )(module)
    return done


def touches_booleans(function: tirx.PrimFunc) -> bool:
    """Tells whether a function that is not scheduled reads or writes truth values in memory."""
    schedule = Schedule(function)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return any(
        str(region.source.dtype) == "bool"
        for block in map(schedule.get, blocks)
        for region in (*block.reads, *block.writes)
    )


def without_vectors(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a kernel whose vectorised loops run element by element.

    TVM 0.27 reads and writes a vector of truth values, which take a byte each, as one of 16-bit
    numbers.
    """
    serial = tirx.transform.VectorizeLoop(enable_vectorize=False)
    named = kernel.with_attr("global_symbol", "main")
    serialised: tirx.PrimFunc = serial(tvm.IRModule({"main": named}))["main"]
    return serialised.without_attr("global_symbol")


def schedule_of(function: tirx.PrimFunc, target: Any, name: str) -> tirx.PrimFunc:
    """Return the kernel of a function, marked with the name of the rule that wrote it.

    Raises:
        ToolchainError: No rule can schedule the function; the message has every rule's reason.
    """
    reasons = []
    for own, block, kind, change in OWN:
        note = note_on(function, block, kind)
        if note is None:
            continue
        schedule = Schedule(function)
        try:
            change(schedule, note)
        except Exception as error:  # ours, or TVM's: it cannot be tiled
            reasons.append(f"{own}: {short_reason(error)}")
        else:
            return _marked(schedule.mod["main"], own)
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
        return _marked(schedule.mod["main"], label)
    raise ToolchainError(f"TVM has no schedule for {name}: {'; '.join(reasons)}")


def _marked(kernel: tirx.PrimFunc, rule: str) -> tirx.PrimFunc:
    return kernel.with_attr({"tirx.is_scheduled": True, "tirx.noalias": True, SCHEDULE: rule})
