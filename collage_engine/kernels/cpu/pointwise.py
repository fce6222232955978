"""Writes plain stages: elementwise ones, broadcasts, and everything that only moves elements.

The output's box is cut where a condition changes (the parts of a concatenation, the rim of a
padding), so that inside a part there are no branches. Trailing axes that every operand walks
through contiguously become one long axis, which vectors then cover; the rest is shared among
threads. An operand that runs along another axis is read by squares, transposed in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim

from collage_engine.kernels.cpu.writing.context import (
    Context,
    Flattened,
    contiguous,
    flat_value,
    lanes_of,
    step_of,
    used_outside_loads,
)
from collage_engine.kernels.cpu.writing.register_tile import (
    transposed_tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.expressions import (
    call_name,
    coefficient,
    equal,
    loads,
    rewrite,
    substitute,
    walk,
)
from collage_engine.kernels.program import Stage, shape_of
from collage_engine.kernels.target import MOST_REGISTERS
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    bound,
    flat_index,
    in_vectors,
    int64,
    load,
    local,
    loop,
    nest,
    parallel,
    seq,
    split_index,
    store,
    vectorized,
)
from collage_engine.kernels.vector_math import vector_functions
from collage_engine.records.graph import item_bytes

BYTES = MOST_REGISTERS // 2
"""Side of a square of bytes, in elements: each step of a transposition reads so many registers and
writes as many."""


@dataclass(frozen=True)
class Axis:
    """An axis of a copy: its elements, and their distances in the source and the target."""

    extent: int
    source: int
    target: int


def write_squares(
    value: Expr,
    axes: Sequence[Var],
    extents: Sequence[int],
    starts: Sequence[int],
    output: Any,
    context: Context,
    share: Any,
) -> Stmt | None:
    """Return the loops of a copy that permutes axes, by squares transposed in registers.

    It writes copies of elements of four bytes and of one; also of a function of the element (a
    quantisation, a cast), which is applied to the squares once they are transposed.

    Args:
        value: The value of an element of the output.
        axes: The variables of the output's axes in ``value``.
        extents: The extent of each axis.
        starts: The first index of each axis.
        output: The buffer that is written.
        context: The context in which the kernel is written.
        share: The kind of loop over all squares.

    Returns:
        The loops; None where the value is no such copy, or too narrow for squares.
    """
    access = _moving_load(value, axes)
    if access is None:
        return None
    dtype = str(access.source.dtype)
    if item_bytes(dtype) not in (1, 4) or dtype == "bool":
        return None
    lanes = min(BYTES, context.cpu.vector_bytes) if item_bytes(dtype) == 1 else 0
    lanes = lanes or context.cpu.lanes(dtype)
    steps = strides(access, axes, extents, shape_of(output))
    merged = [] if steps is None else merge(steps)
    sides = _sides(merged, lanes)
    if sides is None:
        return None
    across, along = sides
    others = [a for a in merged if a is not across and a is not along]
    zero = dict.fromkeys(axes, 0)
    places = [substitute(index, zero) for index in access.indices]
    source_start = flat_index(places, shape_of(access.source), int64(0))
    target_start = flat_index(starts, shape_of(output))
    source, target = context.views.flat(access.source), context.views.flat(output)
    columns, rows = -(-along.extent // lanes), -(-across.extent // lanes)
    # Several squares side by side in turn: each reads (or writes, where that is more bytes) lines
    # of memory next to the last one's, where one line of every row would be too many streams
    # for the processor to foresee.
    outwards = item_bytes(str(output.dtype)) > item_bytes(dtype)
    inner, outer = (rows, columns) if outwards else (columns, rows)
    run = next(n for n in (4, 2, 1) if inner % n == 0)

    def square(index: Index) -> Stmt:
        *places, k, j, i = split_index(
            index, (*(a.extent for a in others), inner // run, outer, run)
        )
        i = int64(k) * run + i
        if outwards:
            i, j = j, i
        # The last square of a row or column overlaps the one before it.
        x = tirx.min(int64(i) * lanes, int64(along.extent - lanes))
        y = tirx.min(int64(j) * lanes, int64(across.extent - lanes))
        begin: Index = source_start + x + y * across.source
        end: Any = int64(target_start) + y + x * along.target
        for coordinate, axis in zip(places, others, strict=True):
            begin = begin + coordinate * axis.source
            end = end + coordinate * axis.target

        def turned(store_column: Callable[[int, Expr], Stmt], begin: Index) -> Stmt:
            return transposed_tile(
                lanes,
                lambda r: vector_load(source, begin + r * across.source, lanes),
                store_column,
                dtype,
            )

        held = local((lanes * lanes,), dtype, name="square")

        def applied(c: Index, end: Any) -> Stmt:
            def lane(x: Index) -> Stmt:
                def put(node: Expr) -> Expr | None:
                    if isinstance(node, TensorLoad) and equal(node, access):
                        return load(held, int64(c) * lanes + x)
                    return None

                one = vector_functions(substitute(rewrite(value, put), zero))
                return store(target, one, end + int64(c) * along.target + x)

            return vectorized(lanes, lane)

        def moved(begin: Index, end: Any) -> Stmt:
            if value is access:
                return turned(
                    lambda c, v: vector_store(target, v, end + c * along.target, lanes), begin
                )
            return seq(
                allocate(held),
                turned(lambda c, v: vector_store(held, v, c * lanes, lanes), begin),
                loop(lanes, lambda c: applied(c, end)),
            )

        return bound(begin, lambda begin: bound(end, lambda end: moved(begin, end)))

    total = columns * rows * prod(axis.extent for axis in others)
    return share(total, square)


def _moving_load(value: Expr, axes: Sequence[Var]) -> TensorLoad | None:
    """Return the one load that a copy moves.

    None where several move, or axes are used otherwise.
    """
    moving = [access for access in loads(value) if _moves(access, axes)]
    if not moving or any(not equal(access, moving[0]) for access in moving[1:]):
        return None
    if any(used_outside_loads(value, axis) for axis in axes):
        return None
    return moving[0]


def _sides(merged: list[Axis], lanes: int) -> tuple[Axis, Axis] | None:
    """Return the axes along which target and source are contiguous; None where no square fits."""
    if lanes < 4:
        return None
    across = next((a for a in merged if a.target == 1), None)
    along = next((a for a in merged if a.source == 1), None)
    if across is None or along is None or across is along:
        return None
    if across.extent < lanes or along.extent < lanes:
        return None
    return across, along


def _moves(access: TensorLoad, axes: Sequence[Var]) -> bool:
    """Tells whether a load depends on any of the axes."""
    return any(
        isinstance(node, Var) and any(node.same_as(axis) for axis in axes)
        for index in access.indices
        for node in walk(index)
    )


def strides(
    access: TensorLoad, axes: Sequence[Var], extents: Sequence[int], shape: Sequence[int]
) -> list[Axis] | None:
    """Return the copy's axes of more than one element, outermost first; None when not linear."""
    target = 1
    result: list[Axis] = []
    for axis, extent, full in zip(reversed(axes), reversed(extents), reversed(shape), strict=True):
        step = step_of(access, axis)
        if step is None:
            return None
        if extent > 1:
            result.insert(0, Axis(extent, step, target))
        target *= full
    return result


def merge(axes: list[Axis]) -> list[Axis]:
    """Join neighbouring axes that are one run in source and target alike."""
    result: list[Axis] = []
    for axis in axes:
        if result:
            last = result[-1]
            if (
                last.source == axis.source * axis.extent
                and last.target == axis.target * axis.extent
            ):
                result[-1] = Axis(last.extent * axis.extent, axis.source, axis.target)
                continue
        result.append(axis)
    return result


MAXIMUM_PARTS = 32
"""Boxes into which an output is cut at most where conditions change. Chosen: beyond it the code
would grow more than its branches cost."""

# Where conditions change -------------------------------------------------------------------


def breakpoints(value: Expr, axis: Var, size: int) -> list[int]:
    """Return the positions along an axis where a comparison with a constant changes.

    0 and ``size`` are among them.
    """
    points = {0, size}
    for node in walk(value):
        if not isinstance(node, (prim.LT, prim.LE, prim.GT, prim.GE, prim.EQ, prim.NE)):
            continue
        if "int" not in str(node.a.ty.dtype):
            continue
        a, b = coefficient(node.a, axis), coefficient(node.b, axis)
        if a is None or b is None or abs(a - b) != 1:
            continue
        offset = _constant(node.a, axis), _constant(node.b, axis)
        if offset[0] is None or offset[1] is None:
            continue
        # (a-b)·axis + (p-q) changes sign around axis = (q-p)/(a-b).
        at = (offset[1] - offset[0]) * (a - b)
        for point in (at, at + 1):
            if 0 < point < size:
                points.add(point)
    return sorted(points)


def _constant(index: Expr, axis: Var) -> int | None:
    """Return what remains of an index that depends on ``axis`` alone when the axis is 0."""
    if any(isinstance(n, Var) and not n.same_as(axis) for n in walk(index)):
        return None
    value = tvm.sym.Analyzer().simplify(substitute(index, {axis: 0}))
    return int(value.value) if isinstance(value, prim.IntImm) else None


@dataclass(frozen=True)
class Part:
    """A box of the output with its own simplified value over fresh axes that start at 0."""

    axes: tuple[Var, ...]
    starts: tuple[int, ...]
    extents: tuple[int, ...]
    value: Expr


def has_branches(value: Expr) -> bool:
    """Tells whether a value depends on a condition."""
    return any(
        isinstance(n, prim.Select) or (isinstance(n, Call) and call_name(n) == "if_then_else")
        for n in walk(value)
    )


def parts_of(stage: Stage) -> list[Part]:
    """Return the output box cut so that conditions on axes are decided inside each part."""
    cuts = [[0, e] for e in stage.extents]
    if has_branches(stage.value):
        points_of_axes = [
            breakpoints(stage.value, a, e) for a, e in zip(stage.axes, stage.extents, strict=True)
        ]
        if prod(len(points) - 1 for points in points_of_axes) <= MAXIMUM_PARTS:
            cuts = points_of_axes
    result: list[Part] = []

    def cut(depth: int, starts: tuple[int, ...], extents: tuple[int, ...]) -> None:
        if depth < len(cuts):
            for low, high in zip(cuts[depth], cuts[depth][1:], strict=False):
                cut(depth + 1, (*starts, low), (*extents, high - low))
            return
        axes = tuple(tirx.Var(a.name, "int64") for a in stage.axes)
        analyzer = tvm.sym.Analyzer()
        for axis, size in zip(axes, extents, strict=True):
            analyzer.bind(axis, tvm.ir.Range(int64(0), int64(size)))
        values = {
            a: (int64(s) if e == 1 else n + s if s else n)
            for a, n, s, e in zip(stage.axes, axes, starts, extents, strict=True)
        }
        value = analyzer.simplify(substitute(stage.value, values))
        result.append(Part(axes, starts, extents, _decided(value)))

    cut(0, (), ())
    return result


def _decided(value: Expr) -> Expr:
    """Replace branches whose condition is now a constant by what they give."""

    def replace(node: Expr) -> Expr | None:
        if isinstance(node, prim.Select):
            condition, then, otherwise = node.condition, node.true_value, node.false_value
        elif isinstance(node, Call) and call_name(node) == "if_then_else":
            condition, then, otherwise = node.args
        else:
            return None
        if isinstance(condition, prim.IntImm):
            return rewrite(then if int(condition.value) else otherwise, replace)
        return None

    return rewrite(value, replace)


# Writing -----------------------------------------------------------------------------------


def write_stage(stage: Stage, context: Context) -> Stmt:
    """Return a loop nest that computes a plain stage into its output buffer."""
    return seq(*(_write_part(stage, part, context) for part in parts_of(stage)))


def _write_part(stage: Stage, part: Part, context: Context) -> Stmt:
    shape = shape_of(stage.output)
    lanes = lanes_of(context.cpu, part.value, stage.output)
    share = context.share(prod(part.extents))
    flattened = contiguous(part.value, part.axes, part.extents, shape)
    if flattened is None:
        squares = write_squares(
            part.value, part.axes, part.extents, part.starts, stage.output, context, share
        )
        return squares or _write_strided(stage, part, lanes, share)
    outer = part.axes[: len(part.axes) - flattened.axes]
    outer_extents = part.extents[: len(outer)]
    flat_output = context.views.flat(stage.output)

    def target_start(values: Sequence[Index]) -> Any:
        inside = (*values, *[0] * flattened.axes)
        return flat_index([s + v for s, v in zip(part.starts, inside, strict=True)], shape)

    def span(values: Sequence[Index], low: Index, size: int) -> Stmt:
        fixed = dict(zip(outer, values, strict=True))
        base = target_start(values)
        return write_run(part.value, flattened, fixed, context, flat_output, base, low, size, lanes)

    outer_total = prod(outer_extents)
    chunk = flattened.extent
    if share is parallel and outer_total < 4 * context.cpu.threads:
        wanted = max(1, 4 * context.cpu.threads // outer_total)
        chunk = max(lanes * 4, -(-flattened.extent // wanted))
        chunk = -(-chunk // lanes) * lanes
    return in_chunks(outer_extents, flattened.extent, chunk, share, span)


def write_run(
    value: Expr,
    flattened: Flattened,
    fixed: Mapping[Var, Any],
    context: Context,
    output: Any,
    base: Any,
    low: Index,
    size: int,
    lanes: int,
) -> Stmt:
    """Write elements of a contiguous run, in vectors.

    Args:
        value: The value of an element.
        flattened: The run, and how the value's loads follow it.
        fixed: The indices of the other axes.
        context: The context in which the kernel is written.
        output: The flat buffer that is written.
        base: Where the run begins in it.
        low: The first element of the run that is written.
        size: How many elements are written.
        lanes: The lanes of a vector.
    """

    def vector(at: Index, width: int) -> Stmt:
        def lane(x: Index) -> Stmt:
            position = int64(low) + at + x
            element = substitute(flat_value(value, flattened, context.views, position), fixed)
            return store(output, vector_functions(element), base + position)

        return vectorized(width, lane)

    return in_vectors(size, lanes, vector)


def in_chunks(
    outer: Sequence[int],
    size: int,
    chunk: int,
    share: Any,
    span: Callable[[Sequence[Index], Index, int], Stmt],
) -> Stmt:
    """Return ``span(outer indices, first, count)`` over runs, chunk by chunk, then what is left.

    Args:
        outer: The extents of the axes around a run.
        size: The elements of a run.
        chunk: The elements of a chunk.
        share: The kind of loop over all chunks.
        span: Writes some elements of a run.
    """

    def chunks(count: int, first: int, length: int) -> Stmt:
        def task(index: Index) -> Stmt:
            *values, number = split_index(index, (*outer, count))
            return span(values, int64(number) * length + first, length)

        return share(prod(outer) * count, task)

    return seq(*(chunks(*part) for part in spans(size, chunk)))


def _write_strided(stage: Stage, part: Part, lanes: int, share: Any) -> Stmt:
    """Write a stage without a contiguous axis: vectors along the last axis gather operands."""
    extents = part.extents
    outer = extents[:-1]

    def row(task: Index) -> Stmt:
        values = split_index(task, outer)

        def vector(at: Index, width: int) -> Stmt:
            def lane(x: Index) -> Stmt:
                indices = (*values, at + x)
                value = substitute(part.value, dict(zip(part.axes, indices, strict=True)))
                places = [
                    int64(i) + s if s else i for i, s in zip(indices, part.starts, strict=True)
                ]
                return store(stage.output, vector_functions(value), *places)

            return vectorized(width, lane)

        return in_vectors(extents[-1], lanes, vector)

    if not extents:
        return nest((), lambda: store(stage.output, part.value))
    return share(prod(outer), row)
