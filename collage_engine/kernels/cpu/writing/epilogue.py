"""Finishes each element of an anchor where it is computed, and stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad

from collage_engine.kernels.bfloat16_numbers import LANES, ROUND, ROUNDING, of_upper_half
from collage_engine.kernels.cpu import reductions as rows
from collage_engine.kernels.cpu.writing.context import Context, used_outside_loads
from collage_engine.kernels.cpu.writing.register_tile import vector_load, vector_store
from collage_engine.kernels.expressions import coefficient, loads, rewrite, substitute
from collage_engine.kernels.program import Program, Stage, is_identity, shape_of
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    int64,
    load,
    local,
    seq,
    store,
    vectorized,
)
from collage_engine.kernels.vector_math import vector_functions


@dataclass(frozen=True)
class Epilogue:
    """The work that is done with each element of an anchor before it is stored."""

    stage: Stage
    """The stage that stores, reading the anchor at its own element; the anchor itself without
    one."""
    anchor: Stage
    context: Context

    def store(self, indices: Sequence[Index], accumulator: Expr) -> Stmt:
        """Store the element at ``indices`` whose accumulated value is given."""
        values: dict[Var, Any] = {
            a: int64(i) for a, i in zip(self.stage.axes, indices, strict=True)
        }
        value = substitute(self._value(self.stage.value, accumulator), values)
        return store(self.stage.output, vector_functions(value), *indices)

    def store_vector(
        self,
        width: int,
        indices: Callable[[Index], Sequence[Index]],
        accumulator: Callable[[Index], Expr],
    ) -> Stmt:
        """Store elements side by side on the last axis, given by lane."""
        inner = None
        if self.context.cpu.bfloat16 and width == LANES and self.stage is not self.anchor:
            inner = of_upper_half(self.stage.value)
        if inner is None:
            return vectorized(width, lambda x: self.store(indices(x), accumulator(x)))
        rounded_from = inner
        self.context.functions.append(ROUNDING)
        held = local((width,))

        def hold(x: Index) -> Stmt:
            values = {a: int64(i) for a, i in zip(self.stage.axes, indices(x), strict=True)}
            value = substitute(self._value(rounded_from, accumulator(x)), values)
            return store(held, vector_functions(value), x)

        at: Index = int64(0)
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
        """Return the same with ``count`` neighbouring axes as one, where all operands allow it."""
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
        self, before: Sequence[Index], position: Index, after: Sequence[Index], accumulator: Expr
    ) -> Stmt:
        """Store the element at (``before``, ``position``, ``after``)."""
        stage, anchor = self.plain.stage, self.plain.anchor
        views = self.plain.context.views
        end = self.first + self.count
        size = prod(stage.extents[self.first : end])
        index: Index = int64(0)
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
    """Write the whole kernel around an anchor.

    Args:
        program: All stages of the kernel.
        anchor: The stage that a rule writes.
        context: The context in which the kernel is written.
        write: A function that writes the anchor's loops, given what is done with each element.

    Returns:
        The stages before the anchor, the anchor with the one stage that can be fused to it, and the
        stages behind that cannot.
    """
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
