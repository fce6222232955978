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

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.kernels.cpu.pointwise import in_chunks, write_run, write_stage
from collage_engine.kernels.cpu.writing.context import (
    Context,
    Flattened,
    contiguous,
    flat_value,
    lanes_of,
)
from collage_engine.kernels.cpu.writing.register_tile import vector_load
from collage_engine.kernels.expressions import coefficient, loads, rewrite, substitute
from collage_engine.kernels.program import Program, Stage, combine, shape_of
from collage_engine.kernels.target import LATENCY
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    flat_index,
    int64,
    load,
    local,
    loop,
    nest,
    pieces,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)
from collage_engine.kernels.vector_math import vector_functions

ACCUMULATORS = LATENCY
"""Vectors summed side by side, to hide the latency of an addition where one begins in a cycle: its
terms are loaded and computed besides."""


def write_reduction(stage: Stage, context: Context, lead: tuple[Index, ...] = ()) -> Stmt:
    """Return a reduction over its own axes, below the ``lead`` indices of its output."""
    share = context.share(prod((*stage.extents, *stage.reduce_extents)))
    along = contiguous(stage.value, stage.reduce_axes, stage.reduce_extents, None)
    if along is not None and along.extent >= 8:
        return _along(stage, along, context, lead, share)
    return _across(stage, context, lead, share)


def _along(
    stage: Stage, along: Flattened, context: Context, lead: tuple[Index, ...], share: Any
) -> Stmt:
    """Write a reduction with vectors along the elements that are reduced."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    dtype = _sum_type(stage)
    outer = stage.reduce_axes[: len(stage.reduce_axes) - along.axes]
    outer_extents = stage.reduce_extents[: len(outer)]
    size = along.extent
    if size >= lanes * ACCUMULATORS:
        width = lanes * ACCUMULATORS
    else:
        width = lanes if size >= lanes else 1 << (size.bit_length() - 1)
    vectors = max(1, width // lanes)
    one = width // vectors
    full = size // width
    # What remains has sums of its own: a narrow store into a wide accumulator would have to
    # reach the cache before the wide one can be read again.
    parts = [(full * width + start, count) for start, count in pieces(size - full * width, one)]
    combiner = stage.combiner
    assert combiner is not None and stage.init is not None

    def element(*values: Index) -> Stmt:
        acc = local((width,), dtype)
        tails = [local((count,), dtype, "tail") for _, count in parts]
        chosen = dict(zip(stage.axes, values, strict=True))

        def term(reduced: Sequence[Index], position: Index) -> Expr:
            fixed = chosen | dict(zip(outer, reduced, strict=True))
            value = flat_value(stage.value, along, context.views, position)
            return _as(dtype, vector_functions(substitute(value, fixed)))

        def gather(sums: Any, reduced: Sequence[Index], at: Index, slot: int, count: int) -> Stmt:
            def lane(x: Index) -> Stmt:
                new = combine(combiner, load(sums, int64(slot) + x), term(reduced, at + x))
                return store(sums, new, int64(slot) + x)

            return vectorized(count, lane)

        def run(*reduced: Index) -> Stmt:
            def step(c: Index) -> Stmt:
                starts = ((int64(c) * width + v * one, v * one) for v in range(vectors))
                return seq(*(gather(acc, reduced, at, slot, one) for at, slot in starts))

            return seq(
                loop(full, step),
                *(
                    gather(tail, reduced, int64(start), 0, count)
                    for tail, (start, count) in zip(tails, parts, strict=True)
                ),
            )

        def clear(sums: Any, slot: int, count: int) -> Stmt:
            return vectorized(count, lambda x: store(sums, _as(dtype, stage.init), int64(slot) + x))

        statements = [
            *(allocate(sums) for sums in (acc, *tails)),
            *(clear(acc, v * one, one) for v in range(vectors)),
            *(clear(tail, 0, count) for tail, (_, count) in zip(tails, parts, strict=True)),
            nest(outer_extents, run),
        ]
        joined, value = _joined(acc, vectors, one, dtype, combiner)
        statements += joined
        for tail, (_, count) in zip(tails, parts, strict=True):
            joined, rest = _joined(tail, 1, count, dtype, combiner)
            statements += joined
            value = combine(combiner, value, rest)
        total = _as(str(stage.output.dtype), value)
        statements.append(store(stage.output, total, *_place(stage, lead, values)))
        return seq(*statements)

    return share(prod(stage.extents), lambda task: element(*split_index(task, stage.extents)))


def _sum_type(stage: Stage) -> str:
    """Return the element type of sums: half-precision values are summed in single precision."""
    dtype = str(stage.output.dtype)
    return "float32" if dtype == "float16" else dtype


def _as(dtype: str, value: Any) -> Expr:
    return value if str(value.ty.dtype) == dtype else tirx.Cast(dtype, value)


def _joined(
    acc: Any, vectors: int, lanes: int, dtype: str, combiner: str
) -> tuple[list[Stmt], Expr]:
    """Join all elements of ``vectors`` accumulators into one value.

    Halves are joined in registers; through memory every halving would wait for a store.

    Returns:
        Statements that run before, and the value.
    """
    if lanes == 1:
        parts = [load(acc, v) for v in range(vectors)]
        value = parts[0]
        for part in parts[1:]:
            value = combine(combiner, value, part)
        return [], value
    statements: list[Stmt] = []
    value = vector_load(acc, 0, lanes)
    for v in range(1, vectors):
        value = combine(combiner, value, vector_load(acc, v * lanes, lanes))
    while lanes > 1:
        var = tirx.Var("joined", f"{dtype}x{lanes}")
        statements.append(tirx.Bind(var, value))
        lanes //= 2
        if lanes > 1:
            kind = f"{dtype}x{lanes}"
            value = combine(combiner, tirx.vectorlow(kind, var), tirx.vectorhigh(kind, var))
        else:
            first, second = (tirx.Shuffle([var], [tirx.const(i, "int32")]) for i in range(2))
            value = combine(combiner, first, second)
    return statements, value


def _place(stage: Stage, lead: tuple[Index, ...], values: Sequence[Index]) -> tuple[Index, ...]:
    """Return where an element is stored; a row's own buffers are one-dimensional."""
    indices = (*lead, *values)
    if len(indices) == len(stage.output.shape):
        return indices
    return (flat_index(values, stage.extents),)


def _across(stage: Stage, context: Context, lead: tuple[Index, ...], share: Any) -> Stmt:
    """Write a reduction with vectors along the last kept axis; without one, by elements."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    dtype = _sum_type(stage)
    combiner = stage.combiner
    assert combiner is not None and stage.init is not None
    axis = _vector_axis(stage)
    size = stage.extents[axis] if axis is not None else 1
    outer = [e for i, e in enumerate(stage.extents) if i != axis]
    block = lanes * ACCUMULATORS

    def span(others: Sequence[Index], low: Index, count: int) -> Stmt:
        acc = local((count,), dtype)
        vectors = [(s, w) for s, w in pieces(count, lanes)]

        def indices(x: Index) -> list[Any]:
            rest = list(others)
            if axis is not None:
                rest.insert(axis, int64(low) + x)
            return rest

        def accumulate(*reduced: Index) -> Stmt:
            def lane(x: Index) -> Stmt:
                places = (*indices(x), *reduced)
                fixed = dict(zip((*stage.axes, *stage.reduce_axes), places, strict=True))
                term = _as(dtype, vector_functions(substitute(stage.value, fixed)))
                return store(acc, combine(combiner, load(acc, x), term), x)

            return seq(*(_lanes(s, w, lane) for s, w in vectors))

        def finish(x: Index) -> Stmt:
            total = _as(str(stage.output.dtype), load(acc, x))
            return store(stage.output, total, *_place(stage, lead, indices(x)))

        return seq(
            allocate(acc),
            *(_lanes(s, w, lambda x: store(acc, _as(dtype, stage.init), x)) for s, w in vectors),
            nest(stage.reduce_extents, accumulate),
            *(_lanes(s, w, finish) for s, w in vectors),
        )

    return in_chunks(outer, size, block, share, span)


def _lanes(start: int, width: int, body: Any) -> Stmt:
    return vectorized(width, lambda x: body(int64(start) + x))


def _vector_axis(stage: Stage) -> int | None:
    """Return the kept axis along which most loads are contiguous; the last one in doubt."""
    best, score = None, -1
    for position, (axis, extent) in enumerate(zip(stage.axes, stage.extents, strict=True)):
        if extent == 1:
            continue
        points = 0
        for access in loads(stage.value):
            steps = [coefficient(i, axis) for i in access.indices]
            if any(s is None for s in steps):
                points -= 1
            elif any(steps):
                points += 2 if steps[-1] == 1 and not any(steps[:-1]) else -1
        if points >= score:
            best, score = position, points
    return best


def write_program(program: Program, context: Context) -> Stmt:
    """Return all stages of a kernel without an anchor, by rows where that is possible."""
    stages = list(program.stages)
    prefix = common_prefix(program) if len(stages) > 1 else 0
    rows = prod(stages[0].extents[:prefix])
    if prefix and rows >= context.cpu.threads:
        return _by_rows(program, prefix, rows, context)
    outputs = [stage.output for stage in stages]
    context.buffers += [output for output in outputs if not program.is_parameter(output)]
    return seq(*(write_any(stage, context) for stage in stages))


def write_any(stage: Stage, context: Context) -> Stmt:
    """Return the loops of one stage."""
    return write_reduction(stage, context) if stage.is_reduction else write_stage(stage, context)


def common_prefix(program: Program) -> int:
    """Return how many leading axes all stages share, with intermediate values read along the same.

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
    """Return one stage with its leading axes fixed, intermediate buffers holding one row."""
    fixed = dict(zip(stage.axes[:prefix], indices, strict=True))

    def replace_load(node: Expr) -> Expr | None:
        if isinstance(node, TensorLoad) and node.source in scratch:
            inner = [rewrite(part, replace_load) for part in node.indices[prefix:]]
            at = flat_index(inner, shape_of(node.source)[prefix:])
            return load(scratch[node.source], at)
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
    """Return a plain stage's remaining axes, written below the ``lead`` indices of its output."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    flattened = contiguous(stage.value, stage.axes, stage.extents, stage.extents)
    outer = stage.axes[: len(stage.axes) - (flattened.axes if flattened else 0)]
    output = context.views.flat(stage.output)
    shape = shape_of(stage.output) if lead else stage.extents

    def body(*values: Index) -> Stmt:
        fixed = dict(zip(outer, values, strict=True))
        places = (*lead, *values)
        index = flat_index(places, shape[: len(places)])
        if flattened is None:
            return store(output, vector_functions(substitute(stage.value, fixed)), index)
        base, size = index * flattened.extent, flattened.extent
        return write_run(stage.value, flattened, fixed, context, output, base, 0, size, lanes)

    return nest(stage.extents[: len(outer)], body)
