"""Describes a program of the BLAS runtime while it is generated: views of memory, and steps.

A value is a view: a buffer, an offset and a stride for every axis. Reshapes and transposes only
make other views, and a BLAS reads most of them in place. What follows a product or a convolution
becomes part of its step, so that it is applied while the result is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from collage_engine.records.errors import UnsupportedError
from collage_engine.toolchains.runtime.per_axis import row_major

Ints = tuple[int, ...]

INPUT, OUTPUT, WEIGHTS, ARENA = range(4)
"""Kinds of places; they are the runtime's ``Place::Kind``."""

ALIGNMENT = 64
"""Bytes to which buffers are aligned; chosen: a cache line and the widest vector of x86-64."""
FLOAT = 4
"""Bytes of an element; the runtime computes in float32 only."""


@dataclass(eq=False)
class Buffer:
    """A piece of memory that holds float32 elements."""

    kind: int
    elements: int
    index: int = 0
    """Number of the argument, for inputs and outputs."""
    offset: int = 0
    """Bytes from the beginning of the weights or the arena."""
    made_by: int = -1
    """Position of the step that writes it; −1 for inputs and weights."""

    def place(self, elements: int = 0) -> dict[str, int]:
        """Returns the place, ``elements`` from its beginning, as JSON values for the runtime."""
        found = {"kind": self.kind, "offset": self.offset // FLOAT + elements}
        return found | {"index": self.index} if self.kind in (INPUT, OUTPUT) else found


@dataclass(frozen=True)
class View:
    """A tensor in a buffer; offset and strides count elements."""

    buffer: Buffer
    offset: int
    dims: Ints
    strides: Ints

    @property
    def contiguous(self) -> bool:
        """Tell whether its elements lie row-major without gaps."""
        return all(
            extent == 1 or stride == wanted
            for extent, stride, wanted in zip(
                self.dims, self.strides, row_major(self.dims), strict=True
            )
        )

    def permuted(self, axes: Sequence[int]) -> View:
        """Returns the same memory with its axes in another order."""
        return View(
            self.buffer,
            self.offset,
            tuple(self.dims[a] for a in axes),
            tuple(self.strides[a] for a in axes),
        )

    def reshaped(self, dims: Ints) -> View:
        """Returns the same memory with another shape; the view must be contiguous."""
        return View(self.buffer, self.offset, dims, row_major(dims))

    def broadcast(self, dims: Ints) -> Ints:
        """Returns strides that repeat it over ``dims``, by NumPy's rules."""
        lead = len(dims) - len(self.dims)
        return (0,) * lead + tuple(
            0 if extent == 1 else stride
            for extent, stride in zip(self.dims, self.strides, strict=True)
        )

    def place(self) -> dict[str, int]:
        """Returns the place of the first element as JSON values for the runtime."""
        return self.buffer.place(self.offset)


@dataclass(frozen=True)
class Post:
    """A function that is applied to a step's result."""

    fn: str
    a: float = 0.0
    b: float = 0.0
    """``a`` and ``b``: parameters of the function."""
    view: View | None = None
    """The other operand; None where the function has none."""


@dataclass
class Posted:
    """A post-op of a step, with its other operand's place."""

    post: Post
    strides: Ints = ()
    """Strides of the other operand over the step's axes."""

    def as_json(self, strides: Sequence[int]) -> dict[str, Any]:
        """Returns the post-op as JSON values for the runtime.

        Args:
            strides: The strides of the other operand over the axes that the runtime sees.
        """
        if self.post.view is None:
            return {"fn": self.post.fn, "a": self.post.a, "b": self.post.b}
        return {"fn": self.post.fn, "place": self.post.view.place(), "strides": list(strides)}


@dataclass(eq=False)
class Step:
    """One step of the runtime, which writes one result.

    ``describe`` returns its JSON values once buffers have their places.
    """

    op: str
    dims: Ints
    """Sizes of the result, in the step's own order of axes."""
    out: Buffer
    strides: Ints
    """Elements from one place to the next along each of ``dims`` of the result."""
    reads: list[View]
    describe: Callable[[Step], dict[str, Any]]
    groups: tuple[Ints, ...]
    """Axes of ``dims`` that the runtime sees as one; an operand's strides must agree on them."""
    position: int
    name: str = ""
    posts: list[Posted] = field(default_factory=list)

    def takes(self, posts: Sequence[Post], order: Ints) -> bool:
        """Returns whether post-ops can join the step.

        Their operands have to be computed before it, and the runtime has to be able to step through
        them.

        Args:
            posts: The post-ops.
            order: The step's axis for each axis of the value to which they are applied.
        """
        for post in posts:
            if post.view is None:
                continue
            if post.view.buffer.made_by >= self.position:
                return False
            strides = self.own_strides(post.view, order)
            for group in self.groups:
                if not _collapses(group, self.dims, strides):
                    return False
        return True

    def own_strides(self, view: View, order: Ints) -> Ints:
        """Returns an operand's strides over the step's axes.

        Args:
            view: The operand.
            order: The step's axis for each axis of the value that the operand is combined with.
        """
        given = view.broadcast(tuple(self.dims[a] for a in order))
        strides = [0] * len(self.dims)
        for axis, stride in zip(order, given, strict=True):
            strides[axis] = stride
        return tuple(strides)

    def add(self, posts: Sequence[Post], order: Ints) -> None:
        """Adds post-ops to the step; ``order`` is the step's axis for each axis of the value."""
        for post in posts:
            strides = () if post.view is None else self.own_strides(post.view, order)
            self.posts.append(Posted(post, strides))

    def views(self) -> list[View]:
        """Returns all views that the step reads, those of its post-ops included."""
        return [*self.reads, *(p.post.view for p in self.posts if p.post.view is not None)]


def _collapses(group: Ints, dims: Ints, strides: Ints) -> bool:
    """Returns whether one stride is enough to step through several axes of an operand."""
    kept = [axis for axis in group if dims[axis] != 1]
    return all(strides[outer] == strides[inner] * dims[inner] for outer, inner in pairwise(kept))


def collapsed(group: Ints, dims: Ints, strides: Ints) -> int:
    """Returns the stride of several axes that the runtime sees as one."""
    kept = [axis for axis in group if dims[axis] != 1]
    return strides[kept[-1]] if kept else 0


@dataclass(frozen=True)
class Made:
    """The step that computes a value, and how the value's axes lie in it."""

    step: Step
    order: Ints
    """The axis of the step for each axis of the value."""


class BlasProgram:
    """The buffers and steps of one function while they are collected."""

    def __init__(self, constants: Callable[[int], np.ndarray]) -> None:
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.blob = bytearray()
        self._constants = constants

    def input(self, position: int, dims: Ints) -> View:
        """Returns a view of the function's argument at a position."""
        buffer = Buffer(INPUT, math.prod(dims), index=position)
        return View(buffer, 0, dims, row_major(dims))

    def constant(self, array: np.ndarray) -> View:
        """Adds an array to the weights, aligned to ``ALIGNMENT`` bytes; returns a view of it."""
        self.blob.extend(bytes(-len(self.blob) % ALIGNMENT))
        buffer = Buffer(WEIGHTS, array.size, offset=len(self.blob))
        self.blob.extend(np.ascontiguousarray(array, dtype=np.float32).tobytes())
        return View(buffer, 0, array.shape, row_major(array.shape))

    def value(self, index: int) -> np.ndarray:
        """Returns the values of a constant node."""
        return self._constants(index)

    def emit(
        self,
        op: str,
        dims: Ints,
        reads: list[View],
        describe: Callable[[Step], dict[str, Any]],
        groups: tuple[Ints, ...] = (),
    ) -> tuple[View, Step]:
        """Appends a step whose result lies row-major in a new buffer.

        It returns the result and the step.

        Raises:
            UnsupportedError: The result has more elements than a BLAS counts with 32 bits.
        """
        if math.prod(dims) >= 2**31:
            raise UnsupportedError("the BLAS counts with 32 bits: a tensor is too large")
        position = len(self.steps)
        buffer = Buffer(ARENA, math.prod(dims), made_by=position)
        self.buffers.append(buffer)
        step = Step(op, dims, buffer, row_major(dims), reads, describe, groups, position)
        self.steps.append(step)
        return View(buffer, 0, dims, step.strides), step

    def copy(self, view: View) -> tuple[View, Step]:
        """Appends a step that copies a view to a buffer of its own.

        It returns the result and the step.
        """
        return self.emit("copy", view.dims, [view], describe_copy)

    def dense(self, view: View) -> View:
        """Returns the view where it is contiguous, else a contiguous copy."""
        return view if view.contiguous else self.copy(view)[0]

    def finish(self, outputs: Sequence[View]) -> None:
        """Places outputs in the caller's memory and all other results in the arena."""
        for number, view in enumerate(outputs):
            buffer = view.buffer
            whole = view.offset == 0 and view.contiguous and math.prod(view.dims) == buffer.elements
            if buffer.kind != ARENA or not whole:
                buffer = self.copy(view)[0].buffer
            buffer.kind, buffer.index = OUTPUT, number
        self.arena_bytes = self._place()

    def _place(self) -> int:
        """Place the buffers by first fit over their lifetimes; return the arena's bytes."""
        last: dict[int, int] = {id(b): b.made_by for b in self.buffers}
        for step in self.steps:
            for view in step.views():
                last[id(view.buffer)] = step.position
        placed: list[Buffer] = []
        total = 0
        for buffer in self.buffers:
            if buffer.kind != ARENA:
                continue
            live = sorted(
                (b.offset, b.offset + _bytes(b)) for b in placed if last[id(b)] >= buffer.made_by
            )
            start = 0
            for begin, end in live:
                if begin - start >= _bytes(buffer):
                    break
                start = max(start, end)
            buffer.offset = start
            placed.append(buffer)
            total = max(total, start + _bytes(buffer))
        return total

    def as_json(self) -> dict[str, Any]:
        """Returns the program as JSON values for the runtime."""
        return {
            "arena_bytes": self.arena_bytes,
            "steps": [{"op": s.op, "name": s.name, **s.describe(s)} for s in self.steps],
        }


def _bytes(buffer: Buffer) -> int:
    return -(-buffer.elements * FLOAT // ALIGNMENT) * ALIGNMENT


def describe_copy(step: Step) -> dict[str, Any]:
    """Returns the JSON values of a copy for the runtime.

    Axes that all operands step through alike are merged.
    """
    (view,) = step.reads
    strides = [view.strides, *(p.strides for p in step.posts if p.post.view is not None)]
    dims, found = merge_axes(step.dims, strides)
    operands = iter(found[1:])
    return {
        "dims": list(dims),
        "x": view.place() | {"strides": list(found[0])},
        "y": step.out.place(),
        "post": [
            p.as_json([] if p.post.view is None else _with_row(next(operands))) for p in step.posts
        ],
    }


def _with_row(strides: Ints) -> Ints:
    """Returns the strides with one for rows, which the runtime expects; a copy has batches only."""
    return (*strides[:-1], 0, strides[-1])


def merge_axes(dims: Ints, strides: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Returns the fewest axes that step through all these tensors, and their strides."""
    kept = [axis for axis, extent in enumerate(dims) if extent != 1]
    merged: list[int] = []
    taken: list[list[int]] = [[] for _ in strides]
    for axis in kept:
        joins = bool(merged) and all(
            t[-1] == s[axis] * dims[axis] for t, s in zip(taken, strides, strict=True)
        )
        if joins:
            merged[-1] *= dims[axis]
        else:
            merged.append(dims[axis])
        for t, s in zip(taken, strides, strict=True):
            if joins:
                t[-1] = s[axis]
            else:
                t.append(s[axis])
    if not merged:
        return (1,), [(1,) if n == 0 else (0,) for n in range(len(strides))]
    return tuple(merged), [tuple(t) for t in taken]
