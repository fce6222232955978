"""Writes the plain computation of a convolution with few channels a group, before scheduling.

``C[image, group, row, z, y, x] = Σ A[image, group · channels + c, …] W[group, c, taps, row]`` over
a padded image A that whole tiles cover. Sums are float32, or int32 for 8-bit values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cuda.direct.plan import DirectPlan, DirectProblem, Three
from collage_engine.kernels.cuda.epilogue import NOTE, OUT
from collage_engine.kernels.cuda.problems import FEWEST, Window, where
from collage_engine.kernels.tir_builder import Index

Read = Callable[..., Any]


@dataclass(frozen=True)
class NotedDirect:
    """The note on the block of a convolution with few channels a group."""

    shape: DirectProblem
    plan: DirectPlan
    out: tuple[int, ...]

    def place(self, image: Any, channel: Any, *pixel: Any) -> tuple[Any, ...]:
        """Return the indices in C of an element of the result."""
        zero = tirx.const(0)
        if self.shape.groups == 1:
            group, row = zero, channel
        elif self.shape.rows == 1:
            group, row = channel, zero
        else:
            rows = self.shape.rows
            group, row = tirx.floordiv(channel, rows), tirx.floormod(channel, rows)
        return image, group, row, *[zero] * (3 - len(pixel)), *pixel


def few_rows(window: Window) -> bool:
    """Return whether a convolution has too few output channels a group for matrix tiles.

    It must also have at least ``FEWEST`` pixels.
    """
    return window.weight[0] // window.groups < FEWEST and int(np.prod(window.out[2:])) >= FEWEST


def shape_of_direct(window: Window, dtype: str) -> DirectProblem:
    """Return the problem of a convolution; absent axes in front get size 1."""
    dims = len(window.strides)

    def three(values: Sequence[int], absent: int) -> Three:
        z, y, x = (*[absent] * (3 - dims), *values)
        return z, y, x

    return DirectProblem(
        window.shape[0],
        window.groups,
        window.weight[0] // window.groups,
        window.weight[1],
        three(window.shape[2:], 1),
        three(window.out[2:], 1),
        three(window.weight[2:], 1),
        three(window.strides, 1),
        three(window.dilation, 1),
        three(window.padding[:dims], 0),
        dtype,
    )


def packed_filters(weight: np.ndarray, shape: DirectProblem) -> np.ndarray:
    """Return the weight as an array of shape [group, channel, taps (three axes), row]."""
    split = weight.reshape(shape.groups, shape.rows, shape.channels, *shape.taps)
    return np.ascontiguousarray(np.moveaxis(split, 1, -1))


def summed(shape: DirectProblem) -> str:
    """Return the element type of the sums."""
    return "int32" if shape.item == 1 else "float32"


def direct_result(
    image: Read, filters: Any, note: NotedDirect, dtype: str, outside: int = 0
) -> Any:
    """Return the tensor of the result, made of C, whose block carries the note.

    Args:
        image: ``image(n, channel, …, y, x)`` reads an element; it is called inside the borders
            only.
        filters: The packed filters W.
        note: The sizes of the convolution, and how the work is divided.
        dtype: The element type of the result.
        outside: The value with which the image is padded.
    """
    shape, plan, absent = note.shape, note.plan, 5 - len(note.out)
    vector, shift = plan.vector(shape), plan.shift(shape)
    tiles, tile = plan.tiles(shape), plan.tile
    whole = (shape.out[0], tiles[0] * tile[0], tiles[1] * tile[1])
    deep, high, wide = (shape.reach(axis, whole[axis]) for axis in range(3))
    vectors = -(-(wide + shift) // vector)
    front = (shape.before[0], shape.before[1], shape.before[2] + shift)

    def padded(n: Index, c: Index, z: Index, y: Index, j: Index, v: Index) -> Expr:
        tests = []
        for axis, (at, length) in enumerate(((z, deep), (y, high))):
            if front[axis]:
                tests.append(at >= front[axis])
            if length > front[axis] + shape.image[axis]:
                tests.append(at < front[axis] + shape.image[axis])
        # The test is for a whole vector, so that its elements are read together.
        if front[2]:
            tests.append(j * vector >= front[2])
        if vectors * vector > front[2] + shape.image[2]:
            tests.append(j * vector < front[2] + shape.image[2])
        pixel = (z - front[0], y - front[1], j * vector + v - front[2])
        value = image(n, c, *pixel[absent:])
        return where(tests, value, outside)

    a = te.compute(
        (shape.batch, shape.groups * shape.channels, deep, high, vectors, vector),
        padded,
        name="direct_a",
    )
    axes = [te.reduce_axis((0, e), n) for n, e in zip("zyx", shape.taps, strict=True)]
    channel = te.reduce_axis((0, shape.channels), "c")

    def total(n: Index, g: Index, r: Index, z: Index, y: Index, x: Index) -> Expr:
        at_z, at_y, at_x = (
            p * s + t * d
            for p, s, t, d in zip((z, y, x), shape.strides, axes, shape.dilation, strict=True)
        )
        at_x = at_x + shift
        pixel = a(
            n,
            g * shape.channels + channel,
            at_z,
            at_y,
            tirx.floordiv(at_x, vector) if vector > 1 else at_x,
            tirx.floormod(at_x, vector) if vector > 1 else 0,
        )
        weight = filters(g, channel, *axes, r)
        kind = summed(shape)
        return te.sum(pixel.astype(kind) * weight.astype(kind), axis=[channel, *axes])

    c = te.compute(
        (shape.batch, shape.groups, shape.rows, *whole),
        total,
        name="direct_c",
        attrs={NOTE: msgspec.json.encode(note).decode()},
    )
    return te.compute(note.out, lambda *at: c(*note.place(*at)).astype(dtype), name=OUT)
