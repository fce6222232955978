"""Reductions, alone or in chains with plain stages: softmax, normalisations, means.

Stages that agree on their leading axes run one row at a time, so that what passes between them
stays in the first-level cache; rows are shared among threads. A reduction along contiguous
elements keeps several vector accumulators; one along other axes vectorises the axes it keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    allocate,
    int64,
    load,
    local,
    loop,
    nest,
    parallel,
    pieces,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)
from collage_engine.toolchains.tvm.expressions import coefficient, loads, rewrite, substitute
from collage_engine.toolchains.tvm.program import Program, Stage, combine, shape_of
from collage_engine.toolchains.tvm.schedules.contiguous import contiguous, flat_value
from collage_engine.toolchains.tvm.schedules.pointwise import Context, lanes_of, write_stage
from collage_engine.toolchains.tvm.vector_math import vector_functions

ACCUMULATORS = 4


def write_program(program: Program, context: Context) -> Stmt:
    """All stages of a kernel without an anchor, by rows where that is possible."""
    stages = list(program.stages)
    prefix = common_prefix(program) if len(stages) > 1 else 0
    rows = 1
    for e in stages[0].extents[:prefix]:
        rows *= e
    if prefix == 0 or rows < context.cpu.threads:
        return _one_by_one(program, context)
    return _by_rows(program, prefix, rows, context)


def _one_by_one(program: Program, context: Context) -> Stmt:
    for stage in program.stages:
        if not program.is_parameter(stage.output):
            context.buffers.append(stage.output)
    return seq(*(write_any(stage, context) for stage in program.stages))


def write_any(stage: Stage, context: Context) -> Stmt:
    return write_reduction(stage, context) if stage.is_reduction else write_stage(stage, context)


def common_prefix(program: Program) -> int:
    """How many leading axes all stages share, intermediate values being read at the same ones.

    An axis that a later vector loop or reduction needs is left out: the last axis of a stage
    whose output is the largest, unless that stage reduces.
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
    """Whether every stage that has work of its own in a row still has an axis for vectors."""
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
            # One element per row: harmless only beside stages that do a whole row.
            return False
    return True


def _reduces_contiguously(stage: Stage) -> bool:
    if not stage.reduce_axes:
        return False
    return contiguous(stage.value, stage.reduce_axes, stage.reduce_extents, None) is not None


def _by_rows(program: Program, prefix: int, rows: int, context: Context) -> Stmt:
    extents = program.stages[0].extents[:prefix]
    share = parallel if context.threads and context.cpu.threads > 1 else loop

    def row(task: Any) -> Stmt:
        indices = split_index(task, extents)
        inner = replace(context, threads=False)
        scratch: dict[Any, Any] = {}
        statements: list[Stmt] = []
        for stage in program.stages:
            if not program.is_parameter(stage.output):
                size = 1
                for e in stage.extents[prefix:]:
                    size *= e
                buffer = workspace((size,), str(stage.output.dtype), stage.output.name)
                scratch[stage.output] = buffer
                statements.append(allocate(buffer))
        return seq(
            *statements,
            *(_row_stage(stage, prefix, indices, scratch, inner) for stage in program.stages),
        )

    return share(rows, row)


def _row_stage(
    stage: Stage, prefix: int, indices: Sequence[Any], scratch: dict[Any, Any], context: Context
) -> Stmt:
    """One stage with its leading axes fixed, intermediate buffers holding one row."""
    fixed = dict(zip(stage.axes[:prefix], (int64(i) for i in indices), strict=True))

    def replace_load(node: Expr) -> Expr | None:
        if isinstance(node, TensorLoad) and node.source in scratch:
            index: Any = int64(0)
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


def write_row(stage: Stage, context: Context, lead: tuple[Any, ...]) -> Stmt:
    """A plain stage's remaining axes, written below the ``lead`` indices of its output."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    flattened = contiguous(stage.value, stage.axes, stage.extents, stage.extents)
    if flattened is None:
        outer, size = stage.axes, 1
    else:
        outer, size = stage.axes[: len(stage.axes) - flattened.axes], flattened.extent
    outer_extents = stage.extents[: len(outer)]
    output = context.views.flat(stage.output)
    shape = shape_of(stage.output) if lead else stage.extents

    def body(*values: Any) -> Stmt:
        chosen = {a: int64(v) for a, v in zip(outer, values, strict=True)}

        def vector(at: Any, width: int) -> Stmt:
            def lane(x: Any) -> Stmt:
                position = int64(at) + x if not isinstance(at, int) else int64(at) + int64(x)
                value = stage.value
                if flattened is not None:
                    value = flat_value(value, flattened, context.views, position)
                value = vector_functions(substitute(value, chosen))
                index: Any = int64(0)
                for v, e in zip((*lead, *values), shape, strict=False):
                    index = index * e + int64(v)
                if flattened is not None:
                    index = index * flattened.extent + position
                return store(output, value, index)

            return vectorized(width, lane)

        full = size // lanes
        statements = []
        if full:
            statements.append(loop(full, lambda v: vector(v * lanes, lanes)))
        for start, width in pieces(size - full * lanes, lanes):
            statements.append(vector(full * lanes + start, width))
        return seq(*statements)

    return nest(outer_extents, body)


def write_reduction(stage: Stage, context: Context, lead: tuple[Any, ...] = ()) -> Stmt:
    """A reduction over its own axes, below the ``lead`` indices of its output."""
    total = 1
    for e in (*stage.extents, *stage.reduce_extents):
        total *= e
    threads = context.threads and context.cpu.threads > 1 and total >= 8192
    along = contiguous(stage.value, stage.reduce_axes, stage.reduce_extents, None)
    if along is not None and along.extent >= 8:
        return _along(stage, along, context, lead, threads)
    return _across(stage, context, lead, threads)


def _along(
    stage: Stage, along: Any, context: Context, lead: tuple[Any, ...], threads: bool
) -> Stmt:
    """Vectors run along what is reduced."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    dtype = str(stage.output.dtype)
    outer = stage.reduce_axes[: len(stage.reduce_axes) - along.axes]
    outer_extents = stage.reduce_extents[: len(outer)]
    size = along.extent
    step = lanes * ACCUMULATORS if size >= lanes * ACCUMULATORS else lanes
    width = step if size >= lanes else 1 << (size.bit_length() - 1)
    if size < lanes:
        step = width
    combiner = stage.combiner
    assert combiner is not None and stage.init is not None

    def element(*values: Any) -> Stmt:
        acc = local((width,), dtype)
        chosen = {a: int64(v) for a, v in zip(stage.axes, values, strict=True)}
        vectors = max(1, width // lanes)
        one = width // vectors

        def term(reduced: Sequence[Any], position: Any) -> Expr:
            fixed = dict(chosen)
            fixed.update({a: int64(v) for a, v in zip(outer, reduced, strict=True)})
            value = flat_value(stage.value, along, context.views, position)
            return vector_functions(substitute(value, fixed))

        def gather(reduced: Sequence[Any], at: Any, slot: int, count: int) -> Stmt:
            return vectorized(
                count,
                lambda x: store(
                    acc,
                    combine(combiner, load(acc, int64(slot) + x), term(reduced, at + x)),
                    int64(slot) + x,
                ),
            )

        def run(*reduced: Any) -> Stmt:
            full = size // width
            statements: list[Stmt] = [
                loop(
                    full,
                    lambda c: seq(
                        *(
                            gather(reduced, int64(c) * width + v * one, v * one, one)
                            for v in range(vectors)
                        )
                    ),
                )
            ]
            for number, (start, count) in enumerate(pieces(size - full * width, one)):
                slot = (number % vectors) * one
                statements.append(gather(reduced, int64(full * width + start), slot, count))
            return seq(*statements)

        statements = [
            allocate(acc),
            *(
                vectorized(one, lambda x, v=v: store(acc, stage.init, int64(v * one) + x))
                for v in range(vectors)
            ),
            nest(outer_extents, run),
        ]
        live = width
        while live > 1:
            half = live // 2
            chunk = min(half, lanes)
            statements += [_halve(acc, combiner, low, half, chunk) for low in range(0, half, chunk)]
            live = half
        statements.append(store(stage.output, load(acc, 0), *_place(stage, lead, values)))
        return seq(*statements)

    return _over(stage.extents, element, threads)


def _halve(acc: Any, combiner: str, low: int, half: int, width: int) -> Stmt:
    """Elements ``low`` and so on joined with those ``half`` above."""

    def lane(x: Any) -> Stmt:
        joined = combine(combiner, load(acc, int64(low) + x), load(acc, int64(low + half) + x))
        return store(acc, joined, int64(low) + x)

    return vectorized(width, lane)


def _place(stage: Stage, lead: tuple[Any, ...], values: Sequence[Any]) -> tuple[Any, ...]:
    """Where an element is stored; a row's own buffers are one-dimensional."""
    indices = (*lead, *values)
    if len(indices) == len(stage.output.shape):
        return indices
    index: Any = int64(0)
    for value, extent in zip(values, stage.extents, strict=True):
        index = index * extent + int64(value)
    return (index,)


def _over(extents: Sequence[int], body: Any, threads: bool) -> Stmt:
    total = 1
    for e in extents:
        total *= e
    share = parallel if threads else loop
    return share(total, lambda task: body(*(split_index(task, extents) if extents else ())))


def _across(stage: Stage, context: Context, lead: tuple[Any, ...], threads: bool) -> Stmt:
    """Vectors run along the last axis that is kept; without one, elements one at a time."""
    lanes = lanes_of(context.cpu, stage.value, stage.output)
    dtype = str(stage.output.dtype)
    combiner = stage.combiner
    assert combiner is not None and stage.init is not None
    axis = _vector_axis(stage)
    size = stage.extents[axis] if axis is not None else 1
    outer = [e for i, e in enumerate(stage.extents) if i != axis]
    block = lanes * ACCUMULATORS

    def span(others: Sequence[Any], low: Any, count: int) -> Stmt:
        acc = local((count,), dtype)
        vectors = [(s, w) for s, w in pieces(count, lanes)]

        def indices(x: Any) -> list[Any]:
            rest = list(others)
            if axis is not None:
                rest.insert(axis, int64(low) + x)
            return rest

        def accumulate(*reduced: Any) -> Stmt:
            def lane(x: Any) -> Stmt:
                fixed = {
                    a: int64(v)
                    for a, v in zip(
                        (*stage.axes, *stage.reduce_axes), (*indices(x), *reduced), strict=True
                    )
                }
                term = vector_functions(substitute(stage.value, fixed))
                return store(acc, combine(combiner, load(acc, x), term), x)

            return seq(*(_lanes(s, w, lane) for s, w in vectors))

        def finish(x: Any) -> Stmt:
            return store(stage.output, load(acc, x), *_place(stage, lead, indices(x)))

        return seq(
            allocate(acc),
            *(_lanes(s, w, lambda x: store(acc, stage.init, x)) for s, w in vectors),
            nest(stage.reduce_extents, accumulate),
            *(_lanes(s, w, finish) for s, w in vectors),
        )

    chunks = size // block
    rest = size - chunks * block
    total = 1
    for e in outer:
        total *= e
    share = parallel if threads else loop
    statements = []
    if chunks:
        statements.append(
            share(
                total * chunks,
                lambda task: span(
                    split_index(task // chunks, outer) if outer else (),
                    (task % chunks) * block if chunks > 1 else int64(0),
                    block,
                ),
            )
        )
    if rest:
        statements.append(
            share(
                total,
                lambda task: span(
                    split_index(task, outer) if outer else (), int64(chunks * block), rest
                ),
            )
        )
    return seq(*statements)


def _lanes(start: int, width: int, body: Any) -> Stmt:
    return vectorized(width, lambda x: body(int64(start) + x))


def _vector_axis(stage: Stage) -> int | None:
    """The kept axis along which most loads are contiguous; the last one in doubt."""
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
