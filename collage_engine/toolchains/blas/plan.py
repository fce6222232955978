"""A plan in the making: views of memory, and steps that make them.

A value is a view: a buffer, an offset and a stride for every axis. Reshapes and transposes only
make other views; a BLAS reads most of them in place. What follows a product or a convolution
joins its step, so that it is applied while the result is in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from collage_engine.records.errors import UnsupportedError

Ints = tuple[int, ...]

INPUT, OUTPUT, WEIGHTS, ARENA = range(4)
"""Kinds of places; the runtime's ``Place::Kind``."""

ALIGNMENT = 64
FLOAT = 4


@dataclass(eq=False)
class Buffer:
    """Memory of some elements. ``index``: the argument; ``offset``: bytes into weights or arena."""

    kind: int
    elements: int
    index: int = 0
    offset: int = 0
    made_by: int = -1
    """Position of the step that fills it; −1 for inputs and weights."""

    def place(self, elements: int = 0) -> dict[str, int]:
        """As the runtime reads it, ``elements`` further on."""
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
        return all(
            extent == 1 or stride == wanted
            for extent, stride, wanted in zip(
                self.dims, self.strides, row_major(self.dims), strict=True
            )
        )

    def permuted(self, axes: Sequence[int]) -> View:
        return View(
            self.buffer,
            self.offset,
            tuple(self.dims[a] for a in axes),
            tuple(self.strides[a] for a in axes),
        )

    def reshaped(self, dims: Ints) -> View:
        """Only for a contiguous view."""
        return View(self.buffer, self.offset, dims, row_major(dims))

    def broadcast(self, dims: Ints) -> Ints:
        """Strides that repeat it over ``dims``, as NumPy would."""
        lead = len(dims) - len(self.dims)
        return (0,) * lead + tuple(
            0 if extent == 1 else stride
            for extent, stride in zip(self.dims, self.strides, strict=True)
        )

    def place(self) -> dict[str, int]:
        return self.buffer.place(self.offset)


def row_major(dims: Sequence[int]) -> Ints:
    strides = [1] * len(dims)
    for axis in range(len(dims) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * dims[axis + 1]
    return tuple(strides)


@dataclass(frozen=True)
class Post:
    """One function applied to a result; ``view``: the other operand, None for none."""

    fn: str
    a: float = 0.0
    b: float = 0.0
    view: View | None = None


@dataclass
class Posted:
    """A post-op at its step; ``strides`` of the operand over the step's axes."""

    post: Post
    strides: Ints = ()

    def as_json(self, strides: Sequence[int]) -> dict[str, Any]:
        if self.post.view is None:
            return {"fn": self.post.fn, "a": self.post.a, "b": self.post.b}
        return {"fn": self.post.fn, "place": self.post.view.place(), "strides": list(strides)}


@dataclass(eq=False)
class Step:
    """One step of the runtime: ``describe`` turns it into JSON once buffers have their places."""

    op: str
    dims: Ints
    """Of the result, in the step's own order of axes."""
    out: Buffer
    strides: Ints
    """Of the result, over ``dims``."""
    reads: list[View]
    describe: Callable[[Step], dict[str, Any]]
    groups: tuple[Ints, ...]
    """Axes of ``dims`` that the runtime sees as one: an operand's strides must agree on them."""
    position: int
    name: str = ""
    posts: list[Posted] = field(default_factory=list)

    def takes(self, posts: Sequence[Post], order: Ints) -> bool:
        """Whether the operands are there in time and the runtime can step through them."""
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
        """Strides over the step's axes of an operand given in the order ``order`` of them."""
        given = view.broadcast(tuple(self.dims[a] for a in order))
        strides = [0] * len(self.dims)
        for axis, stride in zip(order, given, strict=True):
            strides[axis] = stride
        return tuple(strides)

    def add(self, posts: Sequence[Post], order: Ints) -> None:
        for post in posts:
            strides = () if post.view is None else self.own_strides(post.view, order)
            self.posts.append(Posted(post, strides))

    def views(self) -> list[View]:
        return [*self.reads, *(p.post.view for p in self.posts if p.post.view is not None)]


def _collapses(group: Ints, dims: Ints, strides: Ints) -> bool:
    """Whether several axes of an operand step like one."""
    kept = [axis for axis in group if dims[axis] != 1]
    return all(strides[outer] == strides[inner] * dims[inner] for outer, inner in pairwise(kept))


def collapsed(group: Ints, dims: Ints, strides: Ints) -> int:
    """The stride of several axes seen as one."""
    kept = [axis for axis in group if dims[axis] != 1]
    return strides[kept[-1]] if kept else 0


@dataclass(frozen=True)
class Made:
    """The step whose result a value is; ``order``: the step's axis for each axis of the value."""

    step: Step
    order: Ints


class BlasProgram:
    """Buffers and steps of one function."""

    def __init__(self, constants: Callable[[int], np.ndarray]) -> None:
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.blob = bytearray()
        self._constants = constants

    def input(self, position: int, dims: Ints) -> View:
        buffer = Buffer(INPUT, math.prod(dims), index=position)
        return View(buffer, 0, dims, row_major(dims))

    def constant(self, array: np.ndarray) -> View:
        """Weights of these values, 64-byte aligned."""
        self.blob.extend(bytes(-len(self.blob) % ALIGNMENT))
        buffer = Buffer(WEIGHTS, array.size, offset=len(self.blob))
        self.blob.extend(np.ascontiguousarray(array, dtype=np.float32).tobytes())
        return View(buffer, 0, array.shape, row_major(array.shape))

    def value(self, index: int) -> np.ndarray:
        return self._constants(index)

    def emit(
        self,
        op: str,
        dims: Ints,
        reads: list[View],
        describe: Callable[[Step], dict[str, Any]],
        groups: tuple[Ints, ...] = (),
    ) -> tuple[View, Step]:
        """Append a step whose result lies row-major in a fresh buffer."""
        if math.prod(dims) >= 2**31:
            raise UnsupportedError("the BLAS counts with 32 bits: a tensor is too large")
        position = len(self.steps)
        buffer = Buffer(ARENA, math.prod(dims), made_by=position)
        self.buffers.append(buffer)
        step = Step(op, dims, buffer, row_major(dims), reads, describe, groups, position)
        self.steps.append(step)
        return View(buffer, 0, dims, step.strides), step

    def copy(self, view: View) -> tuple[View, Step]:
        """The same values, row-major in a buffer of their own."""
        return self.emit("copy", view.dims, [view], describe_copy)

    def dense(self, view: View) -> View:
        return view if view.contiguous else self.copy(view)[0]

    def finish(self, outputs: Sequence[View]) -> None:
        """Give outputs the caller's memory, and the rest places in the arena."""
        for number, view in enumerate(outputs):
            buffer = view.buffer
            whole = view.offset == 0 and view.contiguous and math.prod(view.dims) == buffer.elements
            if buffer.kind != ARENA or not whole:
                buffer = self.copy(view)[0].buffer
            buffer.kind, buffer.index = OUTPUT, number
        self.arena_bytes = self._place()

    def _place(self) -> int:
        """First fit over lifetimes; the arena's bytes."""
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
        return {
            "arena_bytes": self.arena_bytes,
            "steps": [{"op": s.op, "name": s.name, **s.describe(s)} for s in self.steps],
        }


def _bytes(buffer: Buffer) -> int:
    return -(-buffer.elements * FLOAT // ALIGNMENT) * ALIGNMENT


def describe_copy(step: Step) -> dict[str, Any]:
    """Axes that all operands step through alike become one."""
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
    """The runtime wants a row's stride too; a copy's rows are all batches."""
    return (*strides[:-1], 0, strides[-1])


def merge_axes(dims: Ints, strides: Sequence[Ints]) -> tuple[Ints, list[Ints]]:
    """Fewest axes that step through all these tensors; at least one."""
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
