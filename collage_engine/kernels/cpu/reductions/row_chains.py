"""Writes reductions, alone or in chains with plain stages: softmax, normalisations, means.

Stages that agree on their leading axes run one row at a time, so that what passes between them
stays in the first-level cache; rows are shared among threads. A reduction along contiguous
elements keeps several vector accumulators; one along other axes vectorises the axes it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.kernels.cpu.pointwise.writer import write_stage
from collage_engine.kernels.cpu.reductions.reduction import write_reduction
from collage_engine.kernels.cpu.writing.context import Context, lanes_of
from collage_engine.kernels.cpu.writing.contiguous import contiguous, flat_value
from collage_engine.kernels.expressions import loads, rewrite, substitute
from collage_engine.kernels.program import Program, Stage, shape_of
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    in_vectors,
    int64,
    load,
    nest,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)
from collage_engine.kernels.vector_math import vector_functions


def write_program(program: Program, context: Context) -> Stmt:
    """Returns all stages of a kernel without an anchor, by rows where that is possible."""
    stages = list(program.stages)
    prefix = common_prefix(program) if len(stages) > 1 else 0
    rows = prod(stages[0].extents[:prefix])
    if prefix == 0 or rows < context.cpu.threads:
        return _one_by_one(program, context)
    return _by_rows(program, prefix, rows, context)


def _one_by_one(program: Program, context: Context) -> Stmt:
    for stage in program.stages:
        if not program.is_parameter(stage.output):
            context.buffers.append(stage.output)
    return seq(*(write_any(stage, context) for stage in program.stages))


def write_any(stage: Stage, context: Context) -> Stmt:
    """Returns the loops of one stage."""
    return write_reduction(stage, context) if stage.is_reduction else write_stage(stage, context)


def common_prefix(program: Program) -> int:
    """Returns how many leading axes all stages share, with intermediate values read along the same.

    An axis that a later vector loop or reduction needs is left out: the last axis of a stage whose
    output is the largest, unless that stage reduces.
    """
    stages = program.stages
    limit = min(len(s.axes) for s in stages)
    widest = max(len(s.axes) for s in stages)
    if all(len(s.axes) == widest and not s.is_reduction for s in stages):
        limit = min(limit, widest - 1)
    prefix = 0
    while prefix < limit:
        extents = {s.extents[prefix] for s in stages}
        if len(extents) != 1:
            break
        if extents != {1} and not all(_reads_own(program, s, prefix) for s in stages):
            break
        prefix += 1
    while prefix and not _leaves_vectors(stages, prefix):
        prefix -= 1
    return prefix


def _reads_own(program: Program, stage: Stage, position: int) -> bool:
    for access in loads(stage.value):
        if program.is_parameter(access.source) and not any(
            access.source.same_as(s.output) for s in program.stages
        ):
            continue
        if len(access.indices) <= position:
            return False
        index = access.indices[position]
        if not (isinstance(index, Var) and index.same_as(stage.axes[position])):
            return False
    return True


def _leaves_vectors(stages: Sequence[Stage], prefix: int) -> bool:
    """Tells whether every stage that has work of its own in a row still has an axis for vectors."""
    for stage in stages:
        rest = stage.extents[prefix:]
        if stage.is_reduction:
            if not rest and not _reduces_contiguously(stage):
                return False
        elif (
            all(e == 1 for e in rest)
            and any(e > 1 for e in stage.extents)
            and not any(s.is_reduction for s in stages)
        ):
            # One element per row is harmless only beside stages that do a whole row.
            return False
    return True


def _reduces_contiguously(stage: Stage) -> bool:
    if not stage.reduce_axes:
        return False
    return contiguous(stage.value, stage.reduce_axes, stage.reduce_extents, None) is not None


def _by_rows(program: Program, prefix: int, rows: int, context: Context) -> Stmt:
    extents = program.stages[0].extents[:prefix]
    work = max(prod((*s.extents, *s.reduce_extents)) for s in program.stages)
    share = context.share(work)

    def row(task: Index) -> Stmt:
        indices = split_index(task, extents)
        inner = replace(context, threads=False)
        scratch: dict[Any, Any] = {}
        statements: list[Stmt] = []
        for stage in program.stages:
            if not program.is_parameter(stage.output):
                size = prod(stage.extents[prefix:])
                buffer = workspace((size,), str(stage.output.dtype), stage.output.name)
                scratch[stage.output] = buffer
                statements.append(allocate(buffer))
        return seq(
            *statements,
            *(_row_stage(stage, prefix, indices, scratch, inner) for stage in program.stages),
        )

    return share(rows, row)


def _row_stage(
    stage: Stage, prefix: int, indices: Sequence[Index], scratch: dict[Any, Any], context: Context
) -> Stmt:
    """Returns one stage with its leading axes fixed, intermediate buffers holding one row."""
    fixed = dict(zip(stage.axes[:prefix], (int64(i) for i in indices), strict=True))

    def replace_load(node: Expr) -> Expr | None:
        if isinstance(node, TensorLoad) and node.source in scratch:
            index: Index = int64(0)
            inner = list(zip(node.indices, shape_of(node.source), strict=True))[prefix:]
            for part, extent in inner:
                index = index * extent + rewrite(part, replace_load)
            return load(scratch[node.source], index)
        return None

    value = rewrite(substitute(stage.value, fixed), replace_load)
    output, lead = stage.output, tuple(indices)
    if stage.output in scratch:
        output, lead = scratch[stage.output], ()
    axes, extents = stage.axes[prefix:], stage.extents[prefix:]
    narrowed = replace(stage, output=output, axes=axes, extents=extents, value=value)
    if stage.is_reduction:
        return write_reduction(narrowed, context, lead)
    return write_row(narrowed, context, lead)


def write_row(stage: Stage, context: Context, lead: tuple[Index, ...]) -> Stmt:
    """Returns a plain stage's remaining axes, written below the ``lead`` indices of its output."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    flattened = contiguous(stage.value, stage.axes, stage.extents, stage.extents)
    if flattened is None:
        outer, size = stage.axes, 1
    else:
        outer, size = stage.axes[: len(stage.axes) - flattened.axes], flattened.extent
    outer_extents = stage.extents[: len(outer)]
    output = context.views.flat(stage.output)
    shape = shape_of(stage.output) if lead else stage.extents

    def body(*values: Index) -> Stmt:
        chosen = {a: int64(v) for a, v in zip(outer, values, strict=True)}

        def vector(at: Index, width: int) -> Stmt:
            def lane(x: Index) -> Stmt:
                position = int64(at) + x if not isinstance(at, int) else int64(at) + int64(x)
                value = stage.value
                if flattened is not None:
                    value = flat_value(value, flattened, context.views, position)
                value = vector_functions(substitute(value, chosen))
                index: Index = int64(0)
                for v, e in zip((*lead, *values), shape, strict=False):
                    index = index * e + int64(v)
                if flattened is not None:
                    index = index * flattened.extent + position
                return store(output, value, index)

            return vectorized(width, lane)

        return in_vectors(size, lanes, vector)

    return nest(outer_extents, body)
