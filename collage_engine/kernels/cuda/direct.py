"""Writes convolutions with few channels a group, without matrix tiles.

Depthwise convolutions and those of small groups have too few rows for matrix tiles. A block of
threads computes a rectangle of pixels of some groups. It copies the part of the image that these
pixels read, with the border that the taps reach, and the filters to shared memory once. A thread
keeps a few rows of a few neighbouring pixels in registers; what follows the convolution is done
there before results are stored. Images have three axes (z, y, x); absent axes have size 1.

The plain computation is ``C[image, group, row, z, y, x] = Σ A[image, group · channels + c, …]
W[group, c, taps, row]`` over a padded image A that whole tiles cover. Sums are float32, or int32
for 8-bit values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tvm import te, tirx
from tvm.ir import Expr
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import NOTE, OUT, epilogue
from collage_engine.kernels.cuda.problems import FEWEST, Window, where
from collage_engine.kernels.cuda.product.plan import L2_BYTES, SETUP, widest
from collage_engine.kernels.tir_builder import Index

MOST_SHARED = 48 << 10
"""Bytes of shared memory that a block may use, which every device allows without opting in (CUDA
C++ Programming Guide, table of compute capabilities)."""
MOST_SUMS = (64 << 10) // 2048
"""Sums that a thread may keep in registers: its part of a multiprocessor's 64 K registers where
that is full of threads, 2,048 of them (CUDA C++ Programming Guide, same table)."""

Three = tuple[int, int, int]


@dataclass(frozen=True)
class DirectProblem:
    """The sizes of a convolution on which its plans depend."""

    batch: int
    groups: int
    rows: int
    """Output channels that one group has."""
    channels: int
    """Input channels that one group has."""
    image: Three
    out: Three
    taps: Three
    strides: Three
    dilation: Three
    before: Three
    """Elements of padding in front of each axis."""
    dtype: str

    @property
    def item(self) -> int:
        """Returns the bytes of an element of the image."""
        return {"float32": 4, "int8": 1, "uint8": 1}.get(self.dtype, 2)

    def reach(self, axis: int, pixels: int) -> int:
        """Return how many elements of the padded image neighbouring pixels of the result read.

        Args:
            axis: The axis: 0 for z, 1 for y, 2 for x.
            pixels: The number of neighbouring pixels of the result along that axis.
        """
        return (pixels - 1) * self.strides[axis] + (self.taps[axis] - 1) * self.dilation[axis] + 1


@dataclass(frozen=True)
class DirectPlan:
    """The division of the work: a block has ``groups · (rows / row) · down · across`` threads."""

    groups: int
    """Groups of channels that one block of threads computes."""
    row: int
    """Rows (output channels) that a thread computes; a block computes all rows of its groups."""
    down: int
    across: int
    """Threads of a block along y and along x."""
    high: int
    wide: int
    """Pixels that a thread computes along y and along x."""
    deep: int
    """Input channels that shared memory holds at once."""

    def threads(self, shape: DirectProblem) -> int:
        """Return the number of threads of a block."""
        return self.groups * (shape.rows // self.row) * self.down * self.across

    @property
    def tile(self) -> tuple[int, int]:
        """Return the pixels of a block along y and x."""
        return self.down * self.high, self.across * self.wide

    def tiles(self, shape: DirectProblem) -> tuple[int, int]:
        """Return the blocks along y and x."""
        return tuple(-(-e // t) for e, t in zip(shape.out[1:], self.tile, strict=True))  # type: ignore[return-value]

    def vector(self, shape: DirectProblem) -> int:
        """Return how many elements of the image one load reads.

        No element of such a vector may lie outside the image alone.
        """
        width = widest(shape.item)
        step = self.tile[1] * shape.strides[2] if self.tiles(shape)[1] > 1 else width
        return math.gcd(width, shape.image[2], step)

    def shift(self, shape: DirectProblem) -> int:
        """Return the further padding in front of x that aligns vectors of the padded image.

        With it they are the vectors of the image itself.
        """
        return -shape.before[2] % self.vector(shape)

    def patch(self, shape: DirectProblem) -> int:
        """Return how many elements of the image a block keeps in shared memory."""
        tile_y, tile_x = self.tile
        vector = self.vector(shape)
        along = -(-(shape.reach(2, tile_x) + self.shift(shape)) // vector) * vector
        return self.groups * self.deep * shape.reach(0, 1) * shape.reach(1, tile_y) * along

    def filters(self, shape: DirectProblem) -> int:
        """Return how many weights a block keeps in shared memory."""
        return self.groups * self.deep * math.prod(shape.taps) * shape.rows

    def shared_bytes(self, shape: DirectProblem) -> int:
        """Return the bytes of shared memory that a block uses."""
        return shape.item * (self.patch(shape) + self.filters(shape))

    def blocks(self, shape: DirectProblem) -> tuple[int, int, int]:
        """Return the grid: numbers of tiles of pixels, of groups, and of images times planes."""
        down, across = self.tiles(shape)
        return down * across, shape.groups // self.groups, shape.batch * shape.out[0]

    def fits(self, shape: DirectProblem) -> bool:
        """Return whether the plan stays within the limits of a block and of the grid."""
        _, grid_y, grid_z = self.blocks(shape)
        return (
            32 <= self.threads(shape) <= 512
            and self.shared_bytes(shape) <= MOST_SHARED
            and self.row * self.high * self.wide <= MOST_SUMS
            and max(grid_y, grid_z) < 1 << 16
        )


def direct_plans(shape: DirectProblem) -> Iterator[DirectPlan]:
    """Yield the plans that are worth trying, each once."""
    seen = set()
    for threads in (128, 256):
        for wide in _lengths(shape.out[2]):
            for high in _lengths(shape.out[1]):
                for row in _divisors(shape.rows, 8):
                    plan = _plan(shape, threads, row, high, wide)
                    if plan is not None and plan not in seen:
                        seen.add(plan)
                        yield plan


def _plan(shape: DirectProblem, threads: int, row: int, high: int, wide: int) -> DirectPlan | None:
    """Return the plan with as many threads as wanted.

    Threads are first laid along x, then along y, then over groups.
    """
    beside = shape.rows // row
    across = _evenly(shape.out[2], wide, min(32, threads))
    down = _evenly(shape.out[1], high, max(1, threads // (across * beside)))
    left = max(1, threads // (across * down * beside))
    for groups in _divisors(shape.groups, left)[::-1]:
        for deep in _divisors(shape.channels, shape.channels)[::-1]:
            plan = DirectPlan(groups, row, down, across, high, wide, deep)
            if plan.fits(shape):
                return plan
    return None


def _evenly(size: int, each: int, most: int) -> int:
    """Return the fewest threads along an axis that make as few blocks as ``most`` would."""
    wanted = -(-size // each)
    blocks = -(-wanted // most)
    return -(-wanted // blocks)


def _lengths(size: int) -> list[int]:
    """Return the pixels of a thread along an axis."""
    return sorted({n for n in (1, 2, 4, size) if n <= min(size, 8)})


def _divisors(size: int, most: int) -> list[int]:
    return [d for d in range(1, min(size, most) + 1) if size % d == 0]


def direct_chosen(shape: DirectProblem, count: int) -> DirectPlan | None:
    """Return the plan expected to be fastest on so many multiprocessors; None where none fits."""
    return min(direct_plans(shape), key=lambda p: (_ticks(shape, p, count), str(p)), default=None)


_SLICE = 800.0
"""Clock ticks that bringing a slice to shared memory takes, where nothing else on the
multiprocessor hides them; chosen."""
_MEMORY = L2_BYTES / 2
"""Bytes that a multiprocessor reads from memory in a clock tick, since every image is read but
once: half of what the second-level cache gives."""


def _ticks(shape: DirectProblem, plan: DirectPlan, count: int) -> float:
    """Return an estimate of the kernel's clock ticks.

    The estimate counts a multiprocessor's arithmetic, and its reads of shared and of other memory.
    """
    threads = plan.threads(shape)
    warps = -(-threads // 32)
    taps = math.prod(shape.taps)
    products = shape.channels * taps * plan.row * plan.high * plan.wide
    pixels = shape.taps[0] * math.prod(
        min(shape.reach(axis, n), n * shape.taps[axis])
        for axis, n in ((1, plan.high), (2, plan.wide))
    )
    words = shape.channels * (pixels + taps * plan.row)
    # Neighbouring threads lie ``wide`` pixels apart: that many turns of the banks.
    turns = math.gcd(plan.wide * shape.strides[2], 32) if plan.across > 1 else 1
    arithmetic = warps * 32 * products / 128.0
    shared = warps * shape.channels * (pixels * min(turns, 4) + taps * plan.row)
    slices = shape.channels // plan.deep
    moved = slices * plan.patch(shape) * shape.item + plan.filters(shape) * slices * shape.item
    copied = slices * -(-plan.patch(shape) // (threads * plan.vector(shape))) * warps * 8.0
    written = threads * plan.row * plan.high * plan.wide * shape.item
    blocks = math.prod(plan.blocks(shape))
    each = math.ceil(blocks / count)
    resident = max(1, min(each, 2048 // threads, (200 << 10) // plan.shared_bytes(shape)))
    busy = each * (
        max(arithmetic, shared, words * warps / 4) + copied + (moved + written) / _MEMORY
    )
    return max(busy, math.ceil(each / resident) * (SETUP + slices * _SLICE)) + SETUP


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
        kind = "int32" if shape.item == 1 else "float32"
        return te.sum(pixel.astype(kind) * weight.astype(kind), axis=[channel, *axes])

    c = te.compute(
        (shape.batch, shape.groups, shape.rows, *whole),
        total,
        name="direct_c",
        attrs={NOTE: msgspec.json.encode(note).decode()},
    )
    return te.compute(note.out, lambda *at: c(*note.place(*at)).astype(dtype), name=OUT)


UNROLLED = 49
"""Taps up to which all loops over taps are unrolled; above it only the loop along x is. Chosen:
7 × 7."""


def schedule_direct(schedule: Schedule, noted: NotedDirect) -> None:
    """Schedules a function that holds such a convolution.

    Raises:
        ToolchainError: The function holds more than one kernel can take in.
    """
    last = epilogue(schedule, ("direct_a", "direct_c"), noted.out, noted.place)
    shape, plan = noted.shape, noted.plan
    c = schedule.get_sblock("direct_c")
    a = schedule.get_sblock("direct_a")
    schedule.set_scope(c, 0, "local")
    schedule.set_scope(a, 0, "shared")
    n, g, r, z, y, x, channel, tap_z, tap_y, tap_x = schedule.get_loops(c)
    g0, g1 = schedule.split(g, [None, plan.groups])
    r0, r1 = schedule.split(r, [None, plan.row])
    y0, y1, y2 = schedule.split(y, [None, plan.down, plan.high])
    x0, x1, x2 = schedule.split(x, [None, plan.across, plan.wide])
    c0, c1 = schedule.split(channel, [None, plan.deep])
    inside = (c1, tap_z, tap_y, tap_x, r1, y2, x2)
    schedule.reorder(y0, x0, g0, n, z, g1, r0, y1, x1, c0, *inside)
    schedule.bind(schedule.fuse(y0, x0), "blockIdx.x")
    schedule.bind(g0, "blockIdx.y")
    schedule.bind(schedule.fuse(n, z), "blockIdx.z")
    thread = schedule.fuse(g1, r0, y1, x1)
    schedule.bind(thread, "threadIdx.x")
    threads = plan.threads(shape)
    filters = schedule.cache_read(c, 1, "shared")
    outside = len(schedule.get_loops(c)) - len(inside)
    for copy, vector in (
        (a, plan.vector(shape)),
        (filters, math.gcd(shape.rows, widest(shape.item))),
    ):
        schedule.compute_at(copy, c0)
        *outer, last_axis = schedule.get_loops(copy)[outside:]
        # Vectors come first: no test and no address may depend on the place in a vector.
        across, inner = schedule.split(last_axis, [None, vector])
        _, bound = schedule.split(schedule.fuse(*outer, across), [None, threads])
        schedule.bind(bound, "threadIdx.x")
        if vector > 1:
            schedule.vectorize(inner)
    schedule.reverse_compute_at(last, thread, preserve_unit_loops=True)
    first = schedule.decompose_reduction(c, c0)
    for loop in schedule.get_loops(first)[-3:]:
        schedule.unroll(loop)
    taps = math.prod(shape.taps)
    for loop in (tap_z, tap_y) if taps <= UNROLLED else ():
        schedule.unroll(loop)
    for loop in (tap_x, r1, y2, x2):
        schedule.unroll(loop)
    *_, rows, high, wide = schedule.get_loops(last)
    schedule.unroll(rows)
    schedule.unroll(high)
    whole = shape.out[2] % plan.wide == 0 and plan.wide in (2, 4)
    (schedule.vectorize if whole else schedule.unroll)(wide)
