"""Finishes each element of an anchor where it is computed, and stores it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod

from tvm import tirx
from tvm.ir import Expr
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
    flat_index,
    int64,
    load,
    local,
    seq,
    split_index,
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
    runs: dict[tuple[int, int], list[TensorLoad] | None] = field(default_factory=dict)
    """What ``run`` said of axes that were asked for."""

    def store(self, indices: Sequence[Index], accumulator: Expr) -> Stmt:
        """Store the element at ``indices`` whose accumulated value is given."""
        values = dict(zip(self.stage.axes, indices, strict=True))
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
            values = dict(zip(self.stage.axes, indices(x), strict=True))
            value = substitute(self._value(rounded_from, accumulator(x)), values)
            return store(held, vector_functions(value), x)

        at = flat_index(indices(int64(0)), self.stage.extents)
        halves = tirx.call_pure_extern(f"uint16x{LANES}", ROUND, vector_load(held, 0, LANES))
        output = self.context.views.flat(self.stage.output)
        return seq(allocate(held), vectorized(width, hold), vector_store(output, halves, at, LANES))

    def _value(
        self,
        value: Expr,
        accumulator: Expr,
        others: Callable[[TensorLoad], Expr | None] | None = None,
    ) -> Expr:
        """Return a value of the stage with what is loaded of the anchor, and others, replaced."""
        if self.stage is self.anchor:
            return accumulator

        def replace(node: Expr) -> Expr | None:
            if not isinstance(node, TensorLoad):
                return None
            if node.source.same_as(self.anchor.output):
                return accumulator
            return others(node) if others is not None else None

        return rewrite(value, replace)

    def run(self, first: int, end: int) -> list[TensorLoad] | None:
        """Return the loads at the element itself where the axes between can be one position.

        All others must not move along these axes; None where some do.
        """
        stage, same = self.stage, list[TensorLoad]()
        if stage is self.anchor:
            return same
        axes = stage.axes[first:end]
        if any(used_outside_loads(stage.value, a) for a in axes):
            return None
        for access in loads(stage.value):
            if access.source.same_as(self.anchor.output):
                continue
            moves = [coefficient(i, a) for i in access.indices for a in axes]
            if not any(m is None or m for m in moves):
                continue
            if shape_of(access.source) != stage.extents or not is_identity(stage, access.indices):
                return None
            same.append(access)
        return same

    def store_run(
        self, before: Sequence[Index], position: Index, after: Sequence[Index], accumulator: Expr
    ) -> Stmt:
        """Store the element at (``before``, ``position``, ``after``).

        The position stands for all axes between; it is taken apart where operands need that.
        """
        stage, views = self.stage, self.context.views
        key = first, end = len(before), len(stage.axes) - len(after)
        if key not in self.runs:
            self.runs[key] = self.run(first, end) if first < end else None
        same, between = self.runs[key], stage.extents[first:end]
        if same is None:
            places = split_index(position, between) if between else ()
            return self.store((*before, *places, *after), accumulator)
        extents = (*stage.extents[:first], prod(between), *stage.extents[end:])
        index = flat_index((*before, position, *after), extents)

        def flat(node: TensorLoad) -> Expr | None:
            at_element = any(access.same_as(node) for access in same)
            return load(views.flat(node.source), index) if at_element else None

        places = (*before, *[0] * len(between), *after)
        fixed = dict(zip(stage.axes, places, strict=True))
        value = substitute(self._value(stage.value, accumulator, flat), fixed)
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
    context.buffers += [stage.output for stage in before]
    first = [rows.write_any(stage, context) for stage in before]
    if not after or (len(after) == 1 and _fuses(after[0], anchor)):
        return seq(*first, write(Epilogue(after[0] if after else anchor, anchor, context)))
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
