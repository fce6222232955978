"""Defines the plans of a convolution with few channels a group, and which one is the default.

Depthwise convolutions and those of small groups have too few rows for matrix tiles. A block of
threads computes a rectangle of pixels of some groups. It copies the part of the image that these
pixels read, with the border that the taps reach, and the filters to shared memory once. A thread
keeps a few rows of a few neighbouring pixels in registers. Images have three axes (z, y, x); absent
axes have size 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from collage_engine.kernels.cuda.product.plan import L2_BYTES, SETUP, widest

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
