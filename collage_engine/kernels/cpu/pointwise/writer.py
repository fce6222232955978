"""Writes plain stages: elementwise ones, broadcasts, and everything that only moves elements.

The output's box is cut where a condition changes (the parts of a concatenation, the rim of a
padding), so that inside a part there are no branches. Trailing axes that every operand walks
through contiguously become one long axis, which vectors then cover; the rest is shared among
threads. An operand that runs along another axis is read through 16 × 16 transposed tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Call, Expr, Var
from tvm.ir.prim import expr as prim

from collage_engine.kernels.cpu.pointwise.transposed_copies import write_squares
from collage_engine.kernels.cpu.writing.context import (
    Context,
    Flattened,
    contiguous,
    flat_value,
    lanes_of,
)
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.expressions import (
    call_name,
    coefficient,
    rewrite,
    substitute,
    walk,
)
from collage_engine.kernels.program import Stage, shape_of
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    in_vectors,
    int64,
    loop,
    nest,
    parallel,
    seq,
    split_index,
    store,
    vectorized,
)
from collage_engine.kernels.vector_math import vector_functions

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
    threads = context.share(prod(part.extents)) is parallel
    flattened = contiguous(part.value, part.axes, part.extents, shape)
    if flattened is None:
        squares = write_squares(
            part.value, part.axes, part.extents, part.starts, stage.output, context, threads
        )
        return squares or _write_strided(stage, part, lanes, threads)
    outer = part.axes[: len(part.axes) - flattened.axes]
    outer_extents = part.extents[: len(outer)]
    flat_output = context.views.flat(stage.output)

    def target_start(values: Sequence[Index]) -> Any:
        index: Index = int64(0)
        for position, (start, extent) in enumerate(zip(part.starts, shape, strict=True)):
            value = int64(start)
            if position < len(outer):
                value = value + values[position]
            index = index * extent + value
        return index

    def span(values: Sequence[Index], low: Index, size: int) -> Stmt:
        fixed = dict(zip(outer, values, strict=True))
        base = target_start(values)
        return write_run(part.value, flattened, fixed, context, flat_output, base, low, size, lanes)

    outer_total = prod(outer_extents)
    share = parallel if threads else loop
    chunk = flattened.extent
    if threads and outer_total < 4 * context.cpu.threads:
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


def _write_strided(stage: Stage, part: Part, lanes: int, threads: bool) -> Stmt:
    """Write a stage without a contiguous axis: vectors along the last axis gather operands."""
    extents = part.extents
    share = parallel if threads else loop
    outer = extents[:-1]

    def row(task: Index) -> Stmt:
        values = split_index(task, outer)

        def vector(at: Index, width: int) -> Stmt:
            def lane(x: Index) -> Stmt:
                indices = (*values, at + x)
                value = substitute(
                    part.value,
                    {a: int64(i) for a, i in zip(part.axes, indices, strict=True)},
                )
                places = [
                    int64(i) + s if s else i for i, s in zip(indices, part.starts, strict=True)
                ]
                return store(stage.output, vector_functions(value), *places)

            return vectorized(width, lane)

        return in_vectors(extents[-1], lanes, vector)

    if not extents:
        return nest((), lambda: store(stage.output, part.value))
    return share(prod(outer), row)
