"""Finds the axes along which the operands of a value lie contiguously in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import TensorLoad
from tvm.tirx import Buffer

from collage_engine.kernels.expressions import (
    children,
    coefficient,
    loads,
    rewrite,
    substitute,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.tir_builder import Index, Stmt, int64, load


class Views:
    """One-dimensional aliases of buffers, declared where the kernel starts."""

    def __init__(self) -> None:
        self._views: dict[Var, tuple[Var, Var]] = {}

    def flat(self, buffer: Buffer) -> Any:
        """Returns the one-dimensional view of a buffer."""
        if len(buffer.shape) == 1:
            return buffer
        if buffer not in self._views:
            name, size = f"{buffer.name}_flat", int64(prod(shape_of(buffer)))
            view = tirx.decl_buffer([size], str(buffer.dtype), name, layout=None)
            self._views[buffer] = (view, buffer)
        return self._views[buffer][0]

    def declarations(self) -> list[Stmt]:
        """Returns the statements that declare all views."""
        return [tirx.DeclBuffer(view, data=b.data) for view, b in self._views.values()]


@dataclass(frozen=True)
class Flattened:
    """A run of trailing axes that are walked as one, and how each load follows along them.

    ``loads`` pairs a load of the value with its start (an expression of the outer axes) in the
    flat buffer; loads that do not move along these axes are not in it.
    """

    axes: int
    extent: int
    loads: tuple[tuple[TensorLoad, Expr], ...]
    inner: tuple[Var, ...]


def contiguous(
    value: Expr, axes: Sequence[Var], extents: Sequence[int], output: Sequence[int] | None
) -> Flattened | None:
    """Returns the longest run of trailing axes along which the value's loads are contiguous.

    Args:
        value: The value of an element.
        axes: The variables of the axes.
        extents: The extent of each axis.
        output: The shape of the buffer that is written at the same axes; None: nothing is written
            along them.

    Returns:
        The run; None when some load is not contiguous along the last axis.
    """
    all_loads = list(loads(value))
    run = 0
    size = 1
    moving: dict[int, bool] = {}
    while run < len(axes):
        axis = axes[len(axes) - 1 - run]
        extent = extents[len(axes) - 1 - run]
        if used_outside_loads(value, axis):
            break
        good = True
        states = dict(moving)
        for number, access in enumerate(all_loads):
            if extent == 1:
                continue
            uses = [coefficient(i, axis) for i in access.indices]
            if any(u is None for u in uses):
                good = False
                break
            if not any(uses):
                # A load may stand still along this axis only if it did so along the inner ones.
                good = good and not states.get(number, False)
                continue
            if number not in states and run > 0 and size > 1:
                good = False
                break
            if not _follows(access, axis, size):
                good = False
                break
            states[number] = True
        if good and output is not None and run > 0:
            good = prod(output[len(output) - run :]) == size
        if not good:
            break
        moving = states
        size *= extent
        run += 1
    if run == 0:
        return None
    inner_axes = {a: 0 for a in axes[len(axes) - run :]}
    found = []
    for number, access in enumerate(all_loads):
        if moving.get(number):
            found.append((access, _flat_index(access, inner_axes)))
    return Flattened(run, size, tuple(found), tuple(inner_axes))


def _follows(access: TensorLoad, axis: Var, stride: int) -> bool:
    """Tells whether one step along the axis moves the load by exactly ``stride`` elements."""
    step = 0
    weight = 1
    for index, extent in zip(
        reversed(list(access.indices)), reversed(shape_of(access.source)), strict=True
    ):
        step += (coefficient(index, axis) or 0) * weight
        weight *= extent
    return step == stride


def used_outside_loads(value: Expr, axis: Var) -> bool:
    """Tells whether the axis itself, not only what is loaded at it, enters the value."""

    def visit(e: Expr) -> bool:
        if isinstance(e, TensorLoad):
            return False
        if isinstance(e, Var) and e.same_as(axis):
            return True
        return any(visit(c) for c in children(e))

    return visit(value)


def _flat_index(access: TensorLoad, inner: dict[Var, int]) -> Expr:
    index: Expr = int64(0)
    for part, extent in zip(access.indices, shape_of(access.source), strict=True):
        index = index * int64(extent) + substitute(part, inner)
    return tvm.sym.Analyzer().simplify(index)


def flat_value(value: Expr, flattened: Flattened, views: Views, position: Index) -> Expr:
    """Returns the value with its moving loads taken from flat views at ``start + position``."""

    def replace(node: Expr) -> Expr | None:
        if isinstance(node, TensorLoad):
            for access, start in flattened.loads:
                if access.same_as(node):
                    return load(views.flat(node.source), start + position)
        if isinstance(node, Var) and any(node.same_as(a) for a in flattened.inner):
            return int64(0)  # of extent 1, or its load stands still along it
        return None

    return rewrite(value, replace)
