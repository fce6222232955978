"""What every anchor's schedule shares: the register tile, its size, and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    allocate,
    int64,
    load,
    local,
    pieces,
    seq,
    store,
    unrolled,
    vectorized,
)
from collage_engine.toolchains.tvm.expressions import coefficient, loads, rewrite, substitute
from collage_engine.toolchains.tvm.halves import LANES, ROUND, ROUNDING, of_upper_half
from collage_engine.toolchains.tvm.program import Program, Stage, is_identity, shape_of
from collage_engine.toolchains.tvm.schedules import rows
from collage_engine.toolchains.tvm.schedules.contiguous import used_outside_loads
from collage_engine.toolchains.tvm.schedules.pointwise import Context
from collage_engine.toolchains.tvm.schedules.transpose import vector_load, vector_store
from collage_engine.toolchains.tvm.target import Cpu
from collage_engine.toolchains.tvm.vector_math import vector_functions


@dataclass(frozen=True)
class Epilogue:
    """What is done with each element of an anchor before it is stored."""

    stage: Stage
    """The stage that stores, reading the anchor at its own element; the anchor itself without
    one."""
    anchor: Stage
    context: Context

    def store(self, indices: Sequence[Any], accumulator: Expr) -> Stmt:
        """Stores the element at ``indices`` whose accumulated value is given."""
        values: dict[Var, Any] = {
            a: int64(i) for a, i in zip(self.stage.axes, indices, strict=True)
        }
        value = substitute(self._value(self.stage.value, accumulator), values)
        return store(self.stage.output, vector_functions(value), *indices)

    def store_vector(
        self,
        width: int,
        indices: Callable[[Any], Sequence[Any]],
        accumulator: Callable[[Any], Expr],
    ) -> Stmt:
        """Stores elements side by side on the last axis, given by lane."""
        inner = None
        if self.context.cpu.bfloat16 and width == LANES and self.stage is not self.anchor:
            inner = of_upper_half(self.stage.value)
        if inner is None:
            return vectorized(width, lambda x: self.store(indices(x), accumulator(x)))
        rounded_from = inner
        self.context.functions.append(ROUNDING)
        held = local((width,))

        def hold(x: Any) -> Stmt:
            values = {a: int64(i) for a, i in zip(self.stage.axes, indices(x), strict=True)}
            value = substitute(self._value(rounded_from, accumulator(x)), values)
            return store(held, vector_functions(value), x)

        at: Any = int64(0)
        for index, e in zip(indices(int64(0)), self.stage.extents, strict=True):
            at = at * e + index
        halves = tirx.call_pure_extern(f"uint16x{LANES}", ROUND, vector_load(held, 0, LANES))
        output = self.context.views.flat(self.stage.output)
        return seq(allocate(held), vectorized(width, hold), vector_store(output, halves, at, LANES))

    def _value(self, value: Expr, accumulator: Expr) -> Expr:
        if self.stage is self.anchor:
            return accumulator

        def replace(node: Expr) -> Expr | None:
            if isinstance(node, TensorLoad) and node.source.same_as(self.anchor.output):
                return accumulator
            return None

        return rewrite(value, replace)

    def collapsed(self, first: int, count: int) -> CollapsedEpilogue | None:
        """The same with ``count`` neighbouring axes as one, where all operands allow it."""
        stage = self.stage
        axes = stage.axes[first : first + count]
        same: list[TensorLoad] = []
        if stage is not self.anchor:
            if any(used_outside_loads(stage.value, a) for a in axes):
                return None
            for access in loads(stage.value):
                if access.source.same_as(self.anchor.output):
                    continue
                moves = [coefficient(i, a) for i in access.indices for a in axes]
                if not any(m is None or m for m in moves):
                    continue
                if not is_identity(stage, access.indices):
                    return None
                if shape_of(access.source) != stage.extents:
                    return None
                same.append(access)
        return CollapsedEpilogue(self, first, count, tuple(same))


@dataclass(frozen=True)
class CollapsedEpilogue:
    """An epilogue that addresses some neighbouring axes by one position."""

    plain: Epilogue
    first: int
    count: int
    same: tuple[TensorLoad, ...]
    """Loads at the element itself; the others do not move along the collapsed axes."""

    def store(
        self, before: Sequence[Any], position: Any, after: Sequence[Any], accumulator: Expr
    ) -> Stmt:
        """Stores the element at (``before``, ``position``, ``after``)."""
        stage, anchor = self.plain.stage, self.plain.anchor
        views = self.plain.context.views
        end = self.first + self.count
        size = 1
        for e in stage.extents[self.first : end]:
            size *= e
        index: Any = int64(0)
        extents = (*stage.extents[: self.first], size, *stage.extents[end:])
        for i, e in zip((*before, position, *after), extents, strict=True):
            index = index * e + int64(i)
        value = accumulator
        if stage is not anchor:

            def replace(node: Expr) -> Expr | None:
                if not isinstance(node, TensorLoad):
                    return None
                if node.source.same_as(anchor.output):
                    return accumulator
                if any(access.same_as(node) for access in self.same):
                    return load(views.flat(node.source), index)
                return None

            value = rewrite(stage.value, replace)
            fixed = {a: int64(i) for a, i in zip(stage.axes, before, strict=False)}
            fixed.update({a: int64(i) for a, i in zip(stage.axes[end:], after, strict=True)})
            fixed.update({a: int64(0) for a in stage.axes[self.first : end]})
            value = substitute(value, fixed)
        return store(views.flat(stage.output), vector_functions(value), index)


def surround(
    program: Program, anchor: Stage, context: Context, write: Callable[[Epilogue], Stmt]
) -> Stmt:
    """The whole kernel around an anchor: what comes before, the anchor, what cannot be fused."""
    position = next(i for i, s in enumerate(program.stages) if s is anchor)
    before = program.stages[:position]
    after = program.stages[position + 1 :]
    for stage in before:
        context.buffers.append(stage.output)
    first = [rows.write_any(stage, context) for stage in before]
    if not after:
        return seq(*first, write(Epilogue(anchor, anchor, context)))
    if len(after) == 1 and _fuses(after[0], anchor):
        return seq(*first, write(Epilogue(after[0], anchor, context)))
    context.buffers.append(anchor.output)
    middle = write(Epilogue(anchor, anchor, context))
    rest = Program((*program.parameters, anchor.output), after)
    return seq(*first, middle, rows.write_program(rest, context))


def _fuses(stage: Stage, anchor: Stage) -> bool:
    if stage.is_reduction or stage.extents != anchor.extents:
        return False
    return all(
        is_identity(stage, access.indices)
        for access in loads(stage.value)
        if access.source.same_as(anchor.output)
    )


def tile(
    height: int,
    vectors: Sequence[tuple[int, int]],
    reduce: Callable[[Callable[..., Stmt]], Stmt],
    term: Callable[..., Expr],
    finish: Callable[[Any, Any, Expr], Stmt] | None = None,
    columns: Sequence[tuple[int, int]] | None = None,
    start: Callable[[Any, Any], Expr] | None = None,
    dtype: str = "float32",
    finish_vector: Callable[..., Stmt] | None = None,
) -> Stmt:
    """A register tile: ``acc[r, c] = Σ term(r, c, *k)``, then ``finish``.

    ``vectors``: (first column, width) of each vector; ``reduce(body)`` writes the reduction's
    loops around ``body(*k)``; ``term`` is called inside a vector loop over the columns;
    ``finish(r, column, acc)`` stores an element, called inside a vector loop over ``columns``
    (those that exist; by default all), or ``finish_vector(r, first, width, acc)`` that many, where
    ``acc(x)`` is a lane's; ``start(r, column)`` is what the sum starts from (by
    default zero).
    """
    width = sum(w for _, w in vectors)
    acc = local((height * width,), dtype)
    starts = []
    slot = 0
    for _, w in vectors:
        starts.append(slot)
        slot += w

    def each(body: Callable[[Any, int, int, int, Any], Stmt]) -> Stmt:
        return unrolled(
            height,
            lambda r: seq(
                *(
                    vectorized(w, lambda x, c=c, s=s, w=w: body(r, c, s, w, x))
                    for (c, w), s in zip(vectors, starts, strict=True)
                )
            ),
        )

    def place(r: Any, s: int, x: Any) -> Any:
        return int64(r) * width + (int64(s) + x)

    zero = tirx.const(0, dtype)

    def step(*k: Any) -> Stmt:
        return each(
            lambda r, c, s, w, x: store(
                acc,
                load(acc, place(r, s, x)) + term(r, int64(c) + x, *k),
                place(r, s, x),
            )
        )

    def out() -> Stmt:
        kept = vectors if columns is None else columns
        slots: dict[int, int] = {}
        for (c, w), s in zip(vectors, starts, strict=True):
            for i in range(w):
                slots[c + i] = s + i

        def row(r: Any) -> Stmt:
            def vector(c: int, w: int) -> Stmt:
                def lane(x: Any) -> Expr:
                    return load(acc, int64(r) * width + (int64(slots[c]) + x))

                if finish is None:
                    assert finish_vector is not None
                    return finish_vector(r, c, w, lane)
                return vectorized(w, lambda x: finish(r, int64(c) + x, lane(x)))

            return seq(*(vector(c, w) for c, w in kept))

        return unrolled(height, row)

    return seq(
        allocate(acc),
        each(
            lambda r, c, s, w, x: store(
                acc, zero if start is None else start(r, int64(c) + x), place(r, s, x)
            )
        ),
        reduce(step),
        out(),
    )


def columns_below(vectors: Sequence[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
    """The parts of these vectors below a column, as vectors of powers of two."""
    result = []
    for start, width in vectors:
        if start + width <= limit:
            result.append((start, width))
        elif start < limit:
            result += [(start + s, w) for s, w in pieces(limit - start, width)]
    return result


def cycles(cpu: Cpu, height: int, vectors: int) -> float:
    """Per step of the reduction: multiply-adds two a cycle, loads two a cycle, latency, and
    two cycles that every step was seen to cost beside (least squares over nine tiles).

    Where vectors are multiplied in halves the multiply-adds, one a cycle, hide everything else
    (37 tiles on such a processor, within 4 %).
    """
    if cpu.halves:
        return max(height * vectors + 0.4, 3.3)
    loads_ = (height + vectors) / 2 + (0.15 * height if vectors == 1 else 0.0)
    return max(height * vectors / 2, loads_, 4.0) + 2.0


def fits(cpu: Cpu, height: int, vectors: int) -> bool:
    """Whether the accumulators, one row of vectors and a broadcast stay in registers."""
    return height * vectors + vectors + 1 <= cpu.registers


def cost(cpu: Cpu, rows_total: int, vectors_total: int, height: int, vectors: int) -> float:
    """Cycles per reduction step for the whole matrix cut into such tiles and remainders."""
    full_r, rest_r = divmod(rows_total, height)
    full_v, rest_v = divmod(vectors_total, vectors)
    total = full_r * full_v * cycles(cpu, height, vectors)
    if rest_r:
        total += full_v * cycles(cpu, rest_r, vectors)
    if rest_v:
        total += full_r * cycles(cpu, height, rest_v)
    if rest_r and rest_v:
        total += cycles(cpu, rest_r, rest_v)
    return total


def best_tile(
    cpu: Cpu, rows_total: int, vectors_total: int, heights: Sequence[int], widths: Sequence[int]
) -> tuple[int, int]:
    """The tile (rows, vectors) with the least estimated cost; fewer remainders on equality."""
    choices = []
    for v in widths:
        for h in heights:
            if v > vectors_total or h > rows_total or not fits(cpu, h, v):
                continue
            uneven = bool(rows_total % h) + bool(vectors_total % v)
            choices.append(
                (cost(cpu, rows_total, vectors_total, h, v) * (1 + 0.01 * uneven), -v, -h)
            )
    if not choices:
        return 1, 1
    _, v, h = min(choices)
    return -h, -v
