"""Writes copies whose source runs along another axis than the output, by transposed squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.kernels.cpu.writing.context import step_of, used_outside_loads
from collage_engine.kernels.cpu.writing.register_tile import (
    transposed_tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.expressions import (
    equal,
    loads,
    rewrite,
    substitute,
    walk,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.target import MOST_REGISTERS
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    bound,
    int64,
    load,
    local,
    loop,
    parallel,
    seq,
    split_index,
    store,
    vectorized,
)
from collage_engine.kernels.vector_math import vector_functions
from collage_engine.records.graph import item_bytes

if TYPE_CHECKING:
    from collage_engine.kernels.cpu.writing.context import Context


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
    threads: bool,
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
        threads: Whether threads may share the loops.

    Returns:
        The loops; None where the value is no such copy, or too narrow for squares.
    """
    access = _moving_load(value, axes)
    if access is None:
        return None
    dtype = str(access.source.dtype)
    if item_bytes(dtype) not in (1, 4) or dtype == "bool":
        return None
    pure = value is access
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
    source_start: Expr = _flat_index(
        [substitute(index, zero) for index in access.indices], shape_of(access.source), int64(0)
    )
    target_start = _flat_index(starts, shape_of(output), 0)
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

        if pure:
            return bound(
                begin,
                lambda begin: bound(
                    end,
                    lambda end: turned(
                        lambda c, v: vector_store(target, v, end + c * along.target, lanes), begin
                    ),
                ),
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

        return bound(
            begin,
            lambda begin: bound(
                end,
                lambda end: seq(
                    allocate(held),
                    turned(lambda c, v: vector_store(held, v, c * lanes, lanes), begin),
                    loop(lanes, lambda c: applied(c, end)),
                ),
            ),
        )

    total = columns * rows * prod(axis.extent for axis in others)
    return (parallel if threads else loop)(total, square)


def _flat_index(indices: Sequence[Index], shape: Sequence[int], start: Index) -> Any:
    """Return the place of an element among all of its buffer."""
    for index, extent in zip(indices, shape, strict=True):
        start = start * extent + index
    return start


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
