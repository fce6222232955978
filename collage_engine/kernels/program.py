"""Reads a PrimFunc as stages: what each block computes, without how.

FuseTIR gives a sequence of blocks, one per legalised operator or part of one. A schedule does
not transform those loops: it reads the blocks here and writes a loop nest of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from math import prod
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Call, Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.ir.prim import expr as prim

from collage_engine.kernels.expressions import (
    UnsupportedPattern,
    call_name,
    children,
    equal,
    is_expensive,
    loads,
    nesting,
    rewrite,
    substitute,
    walk,
)
from collage_engine.kernels.rule import Note, read_note
from collage_engine.kernels.vector_math import extreme


@dataclass(frozen=True)
class Stage:
    """A stage is ``output[axes] = value``, or that over ``reduce_axes`` starting from ``init``."""

    name: str
    output: Any
    axes: tuple[Var, ...]
    extents: tuple[int, ...]
    value: Expr
    reduce_axes: tuple[Var, ...] = ()
    reduce_extents: tuple[int, ...] = ()
    combiner: str | None = None
    """sum, max, min, prod or shift of a reduction; None of a plain stage."""
    init: Expr | None = None
    note: Note | None = None
    """The decision by which the stage is to be written, when it is an anchor."""

    @property
    def is_reduction(self) -> bool:
        """Tells whether elements are combined over reduction axes."""
        return self.combiner is not None

    def at(self, indices: list[Any]) -> Expr:
        """Return the value at other indices (plain stages only)."""
        return substitute(self.value, dict(zip(self.axes, indices, strict=True)))


@dataclass(frozen=True)
class Program:
    """A kernel: its parameters in order, which of them it writes, and its stages."""

    parameters: tuple[Any, ...]
    stages: tuple[Stage, ...]

    def is_parameter(self, buffer: Any) -> bool:
        """Tells whether a buffer is a parameter of the kernel."""
        return any(buffer.same_as(p) for p in self.parameters)

    def readers(self, buffer: Any) -> list[Stage]:
        """Return the stages that read a buffer."""
        return [s for s in self.stages if any(v.source.same_as(buffer) for v in loads(s.value))]

    def with_stages(self, stages: list[Stage]) -> Program:
        """Return the same kernel with other stages."""
        return replace(self, stages=tuple(stages))


def extent(value: Any) -> int:
    """Return a size as a number; ``UnsupportedPattern`` where it is not known when compiling."""
    if not isinstance(value, tirx.IntImm):
        raise UnsupportedPattern("a size that is not known when compiling")
    return int(value.value)


def shape_of(buffer: Any) -> tuple[int, ...]:
    """Return the shape of a buffer."""
    return tuple(extent(e) for e in buffer.shape)


def read_program(func: tirx.PrimFunc) -> Program:
    """Return the stages of a legalised, unscheduled PrimFunc. Raises ``UnsupportedPattern``."""
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize):
        raise UnsupportedPattern("a function without blocks")
    root = body.block
    if root.match_buffers or root.init is not None:
        raise UnsupportedPattern("matched buffers")
    statements = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    stages = [_stage(statement) for statement in statements]
    if any(a.output.same_as(b.output) for a, b in combinations(stages, 2)):
        raise UnsupportedPattern("a buffer written by two blocks")
    program = Program(tuple(func.params), tuple(stages))
    return program.with_stages(
        [replace(s, combiner=SHIFT) if _is_shift(program, s) else s for s in stages]
    )


def _is_shift(program: Program, stage: Stage) -> bool:
    """Tell whether a stage is the maximum that a softmax takes off before its exponentials.

    It need not be NaN where a value is: that value's own exponential is, and so is their sum.
    """
    if stage.combiner != "max" or program.is_parameter(stage.output):
        return False
    arguments = (
        node.args[0]
        for reader in program.readers(stage.output)
        for node in walk(reader.value)
        if isinstance(node, Call) and call_name(node) == "exp"
    )
    return any(
        isinstance(x, prim.Sub) and isinstance(x.b, TensorLoad) and x.b.source.same_as(stage.output)
        for x in arguments
    )


def _stage(statement: Any) -> Stage:
    """Return the stage that one block and the loops around it compute."""
    realize, loops, extents = _loops_of(statement)
    block = realize.block
    spatial, reduced, size = _block_axes(realize, loops, extents)
    write = block.body
    axes = _output_axes(write, spatial, size)
    missing = [v for v in spatial if not any(v.same_as(a) for a in axes)]
    if any(size[v] != 1 for v in missing):
        raise UnsupportedPattern("an axis that the output lacks")
    unit_values = {v: 0 for v in missing}
    stage_extents = tuple(size[a] for a in axes)
    if stage_extents != shape_of(write.buffer):
        raise UnsupportedPattern("a block that writes a part of its buffer")
    plain = Stage(
        str(block.name_hint),
        write.buffer,
        tuple(axes),
        stage_extents,
        substitute(write.value, unit_values),
        note=read_note(block.annotations),
    )
    if block.init is None:
        if reduced or any(v.source.same_as(write.buffer) for v in loads(write.value)):
            raise UnsupportedPattern("a block that reads what it writes")
        return plain
    if not isinstance(block.init, tirx.BufferStore):
        raise UnsupportedPattern("an initialisation that is no store")
    combiner, term = _combiner(write, write.value)
    return replace(
        plain,
        value=substitute(term, unit_values),
        reduce_axes=tuple(reduced),
        reduce_extents=tuple(size[v] for v in reduced),
        combiner=combiner,
        init=substitute(block.init.value, unit_values),
    )


def _loops_of(statement: Any) -> tuple[Any, list[Var], list[int]]:
    """Return a block that stores one element, with the variables and extents of its loops."""
    loops: list[Var] = []
    extents: list[int] = []
    while isinstance(statement, tirx.For):
        if not isinstance(statement.min, tirx.IntImm) or int(statement.min.value) != 0:
            raise UnsupportedPattern("a loop that does not start at 0")
        loops.append(statement.loop_var)
        extents.append(extent(statement.extent))
        statement = statement.body
    if not isinstance(statement, s_tir.SBlockRealize):
        raise UnsupportedPattern(f"statement {type(statement).__name__}")
    if not (isinstance(statement.predicate, tirx.IntImm) and int(statement.predicate.value)):
        raise UnsupportedPattern("a predicated block")
    block = statement.block
    if block.match_buffers or block.alloc_buffers:
        raise UnsupportedPattern("a block with buffers of its own")
    if not isinstance(block.body, tirx.BufferStore):
        raise UnsupportedPattern(f"block body {type(block.body).__name__}")
    return statement, loops, extents


def _block_axes(
    realize: Any, loops: list[Var], extents: list[int]
) -> tuple[list[Var], list[Var], dict[Var, int]]:
    """Return a block's spatial axes, its reduction axes, and the extent of each."""
    spatial: list[Var] = []
    reduced: list[Var] = []
    size: dict[Var, int] = {}
    for iter_var, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
        var = iter_var.var
        size[var] = extent(iter_var.dom.extent)
        if isinstance(value, Var):
            position = next((i for i, v in enumerate(loops) if v.same_as(value)), None)
            if position is None or extents[position] != size[var]:
                raise UnsupportedPattern("a block axis that is not its loop")
        elif not (isinstance(value, tirx.IntImm) and int(value.value) == 0 and size[var] == 1):
            raise UnsupportedPattern("a block axis computed from loops")
        if iter_var.iter_type == 0:
            spatial.append(var)
        elif iter_var.iter_type == 2:
            reduced.append(var)
        else:
            raise UnsupportedPattern("an opaque block axis")
    return spatial, reduced, size


def _output_axes(write: Any, spatial: list[Var], size: dict[Var, int]) -> list[Var]:
    """Return the axes of the output in its order.

    A unit axis that has none gets a new variable.
    """
    axes: list[Var] = []
    for position, index in enumerate(write.indices):
        if isinstance(index, Var) and any(index.same_as(v) for v in spatial):
            axes.append(index)
        elif isinstance(index, tirx.IntImm) and extent(write.buffer.shape[position]) == 1:
            unit = tirx.Var(f"unit{position}", "int64")
            size[unit] = 1
            axes.append(unit)
        else:
            raise UnsupportedPattern("an output index that is not an axis")
    return axes


COMBINERS = {"sum": prim.Add, "max": prim.Max, "min": prim.Min, "prod": prim.Mul}
SHIFT = "shift"
"""The combiner of a softmax's maximum, the larger of two numbers."""


def _combiner(write: Any, value: Expr) -> tuple[str, Expr]:
    """Return what ``C[i] = combine(C[i], term)`` combines with, and the term."""
    for name, kind in COMBINERS.items():
        if type(value) is kind:
            for accumulator, term in ((value.a, value.b), (value.b, value.a)):
                if (
                    isinstance(accumulator, TensorLoad)
                    and accumulator.source.same_as(write.buffer)
                    and all(
                        equal(p, q) for p, q in zip(accumulator.indices, write.indices, strict=True)
                    )
                    and not any(v.source.same_as(write.buffer) for v in loads(term))
                ):
                    return name, term
    raise UnsupportedPattern("a reduction that is no sum, maximum, minimum or product")


def combine(name: str, total: Expr, term: Expr) -> Expr:
    """Return two values combined: added, multiplied, or the larger or smaller of them."""
    if name == SHIFT:
        return prim.Max(total, term)
    kind = COMBINERS[name]
    return extreme(kind, term, total) if name in ("max", "min") else kind(total, term)


def is_identity(stage: Stage, indices: Any) -> bool:
    """Tells whether a load's indices are the reading stage's own axes, in order."""
    return len(indices) == len(stage.axes) and all(
        _is_axis(i, a, e) for i, a, e in zip(indices, stage.axes, stage.extents, strict=True)
    )


def _is_axis(index: Expr, axis: Var, size: int) -> bool:
    if isinstance(index, Var) and index.same_as(axis):
        return True
    return size == 1 and isinstance(index, tirx.IntImm) and int(index.value) == 0


def inline(program: Program) -> Program:
    """Put plain stages into their readers, as long as that repeats nothing expensive.

    Kept apart are reductions, anchors and outputs; expensive values that are read by more than one
    stage, by a reduction more than once per element, or at other places than the reader's own
    element; and what would put one function of selects within another.
    """
    stages = list(program.stages)
    for output in [stage.output for stage in stages]:
        stage = next(s for s in stages if s.output.same_as(output))
        if stage.is_reduction or stage.note or program.is_parameter(output):
            continue
        readers = program.with_stages(stages).readers(output)
        if any(r.note for r in readers):
            continue
        if is_expensive(stage.value) and not _read_once(stage, readers):
            continue

        def put(node: Expr, stage: Stage = stage) -> Expr | None:
            if isinstance(node, TensorLoad) and node.source.same_as(stage.output):
                return rewrite(stage.at(list(node.indices)), put)
            return None

        put_in = {id(r): rewrite(_naming_what_repeats(r.value, stage), put) for r in readers}
        before = max(1, nesting(stage.value), *(nesting(r.value) for r in readers))
        if any(nesting(value) > before for value in put_in.values()):
            continue
        left = [s for s in stages if s is not stage]
        stages = [replace(s, value=put_in[id(s)]) if id(s) in put_in else s for s in left]
    return program.with_stages(stages)


def _naming_what_repeats(value: Expr, stage: Stage) -> Expr:
    """Return a reader's value with each element of a stage that it reads twice bound to a name.

    Otherwise the element's computation would be repeated: four functions that read their argument
    three times, one after the other, would make a tree of 81 copies.
    """
    elements: list[list[TensorLoad]] = []
    for access in loads(value):
        if access.source.same_as(stage.output):
            same = next((e for e in elements if equal(e[0], access)), None)
            if same is None:
                elements.append([access])
            else:
                same.append(access)
    for first, *others in elements:
        if others and children(stage.value):
            name = tirx.Var("repeated", first.ty)

            def named(node: Expr, first: Expr = first, name: Var = name) -> Expr | None:
                return name if isinstance(node, TensorLoad) and equal(node, first) else None

            value = prim.Let(name, first, rewrite(value, named))
    return value


def _read_once(stage: Stage, readers: list[Stage]) -> bool:
    if len(readers) != 1:
        return False
    reads = [v for v in loads(readers[0].value) if v.source.same_as(stage.output)]
    if len(reads) != 1:
        return False
    reader = readers[0]
    return prod((*reader.extents, *reader.reduce_extents)) <= prod(stage.extents)
