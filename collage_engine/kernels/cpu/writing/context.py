"""Holds what writers of a kernel have: buffers, functions, and where operands are contiguous."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.ir import Expr, Var
from tvm.ir.expr import StringImm, TensorLoad
from tvm.ir.prim import expr as prim
from tvm.tirx import Buffer

from collage_engine.kernels.expressions import (
    children,
    coefficient,
    loads,
    rewrite,
    substitute,
    walk,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    flat_index,
    int64,
    load,
    loop,
    parallel,
    seq,
    split_index,
)
from collage_engine.records.graph import item_bytes


class Views:
    """One-dimensional aliases of buffers, declared where the kernel starts."""

    def __init__(self) -> None:
        self._views: dict[Var, tuple[Var, Var]] = {}

    def flat(self, buffer: Buffer) -> Any:
        """Return the one-dimensional view of a buffer."""
        if len(buffer.shape) == 1:
            return buffer
        if buffer not in self._views:
            name, size = f"{buffer.name}_flat", int64(prod(shape_of(buffer)))
            view = tirx.decl_buffer([size], str(buffer.dtype), name, layout=None)
            self._views[buffer] = (view, buffer)
        return self._views[buffer][0]

    def declarations(self) -> list[Stmt]:
        """Return the statements that declare all views."""
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
    """Return the longest run of trailing axes along which the value's loads are contiguous.

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
            if step_of(access, axis) != size:
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
    flattened = []
    for number, access in enumerate(all_loads):
        if moving.get(number):
            flattened.append((access, _flat_index(access, inner_axes)))
    return Flattened(run, size, tuple(flattened), tuple(inner_axes))


def step_of(access: TensorLoad, axis: Var) -> int | None:
    """Return by how many elements a load moves with an axis; None when it is not linear in it."""
    steps = [coefficient(index, axis) for index in access.indices]
    shape, step = shape_of(access.source), 0
    for own, extent in zip(steps, shape, strict=True):
        if own is None:
            return None
        step = step * extent + own
    return step


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
    parts = [substitute(part, inner) for part in access.indices]
    return tvm.sym.Analyzer().simplify(flat_index(parts, shape_of(access.source), int64(0)))


def flat_value(value: Expr, flattened: Flattened, views: Views, position: Index) -> Expr:
    """Return the value with its moving loads taken from flat views at ``start + position``."""

    def replace(node: Expr) -> Expr | None:
        if isinstance(node, TensorLoad):
            for access, start in flattened.loads:
                if access.same_as(node):
                    return load(views.flat(node.source), start + position)
        if isinstance(node, Var) and any(node.same_as(a) for a in flattened.inner):
            return int64(0)  # of extent 1, or its load stands still along it
        return None

    return rewrite(value, replace)


HANDING_CYCLES = 10_000
"""Cycles of work from which a kernel, and each loop of it, is shared with threads that spin while
they wait. Measured for whole kernels: anything up to 20,000 is as fast on three convolutional
networks, whether a cache line takes 55 or 350 ns between the processors; 40,000 is 2 to 4 % slower
and 80,000 up to 15 %."""


@dataclass
class Context:
    """The context holds what writing one kernel needs and collects."""

    cpu: Cpu
    views: Views = field(default_factory=Views)
    buffers: list[Any] = field(default_factory=list)
    """Buffers of the whole kernel, allocated where it starts."""
    threads: bool = True
    """Whether loops written now may be shared among threads (not inside such a loop)."""
    functions: list[str] = field(default_factory=list)
    """Functions in LLVM's language that the kernel calls, each with its own name."""
    data: Any = None
    weight: Any = None
    """``data`` and ``weight``: the buffers that the kernel's anchor reads, if there is one; a
    constant weight is packed as the kernel's rule wants it."""

    def share(self, work: float) -> Any:
        """Chooses between a loop that threads share and a serial one.

        Args:
            work: Elements moved, or vectors of multiply-adds: about cycles.

        Returns:
            ``tir_builder.parallel``, or ``loop`` where the work is too little to wake a thread for.
        """
        worth = self.threads and self.cpu.threads > 1 and work >= HANDING_CYCLES
        return parallel if worth else loop

    def share_products(self, count: float, dtype: str = "float32") -> Any:
        """Chooses as ``share`` does where ``count`` products are added up, a vector at a time."""
        return self.share(count // self.cpu.lanes(dtype))

    def over_channels(
        self,
        share: Any,
        spatial: Sequence[int],
        channels: Sequence[int],
        body: Callable[[tuple[Index, ...], tuple[Index, ...]], Stmt],
    ) -> Stmt:
        """Return the body over positions and blocks of output channels.

        Channels are the inner loop where the weight stays in the second-level cache meanwhile.

        Args:
            share: The kind of loop over all of them.
            spatial: Extents of the axes of positions.
            channels: Extents of the axes of channels.
            body: A function of the indices along both.
        """
        weight_bytes = item_bytes(str(self.weight.dtype)) * prod(shape_of(self.weight))
        inside = weight_bytes <= self.cpu.half_l2
        outer, inner = (spatial, channels) if inside else (channels, spatial)

        def task(index: Index) -> Stmt:
            parts = split_index(index, (*outer, *inner))
            first, second = parts[: len(outer)], parts[len(outer) :]
            return body(first, second) if inside else body(second, first)

        return share(prod((*outer, *inner)), task)

    def kernel(self, body: Stmt) -> Stmt:
        """Return the body after the buffers and views it uses."""
        whole = seq(*map(tirx.AllocBuffer, self.buffers), *self.views.declarations(), body)
        for text in dict.fromkeys(self.functions):
            nothing = tirx.const(0, "int32")
            whole = tirx.AttrStmt(nothing, "pragma_import_llvm", StringImm(text), whole)
        return whole


def lanes_of(cpu: Cpu, value: Expr, output: Any) -> int:
    """Return the vector length for the widest type that takes part, at least 1."""
    sizes = [item_bytes(str(output.dtype))]
    sizes += [
        item_bytes(str(node.ty.dtype))
        for node in walk(value)
        if isinstance(node, (TensorLoad, prim.Cast))
    ]
    return max(1, cpu.vector_bytes // max(sizes))
