"""Defines the tiles of a product on an NVIDIA device, and which one is the default.

A product is ``C[s, m, n] = Σ_k A[s, m, k] B[s, k, n]``. A block of threads computes a tile of C
from slices of A and B that it copies to shared memory, one step of ``k`` after the other. Plain
threads keep a small square of C in registers; with tensor cores a warp keeps fragments. Where the
tiles of C are too few for the device, the sum over k is split between blocks and added afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

PLAIN, F16, S8 = "plain", "f16", "s8"
"""The kinds of arithmetic: plain threads, and tensor cores by the element type that they
multiply."""
FRAGMENT = 16
"""Rows, columns and depth of a fragment, as WMMA has them (CUDA C++ Programming Guide)."""
WARP = 32
"""Threads of a warp (CUDA C++ Programming Guide)."""

FEWEST_STEPS = 4
"""Slices of the sum that a block gets at least when it is split; chosen."""
MOST_SPLITS = 16
"""Blocks between which a sum is split at most; chosen."""


@dataclass(frozen=True)
class Tile:
    """The share of a product that one block of threads computes, and how its threads divide it."""

    m: int
    n: int
    k: int
    """Rows and columns of the tile of C, and the length of a slice of the sum."""
    thread: tuple[int, int] = (0, 0)
    """Rows and columns that a thread computes; with tensor cores those that a warp computes."""
    math: str = PLAIN
    """The arithmetic: plain, or the tensor cores' element type (f16, s8)."""

    @property
    def threads(self) -> int:
        """Returns the number of threads of a block."""
        count = (self.m // self.thread[0]) * (self.n // self.thread[1])
        return count if self.math == PLAIN else count * WARP

    @property
    def item(self) -> int:
        """Returns the bytes of an element in shared memory."""
        return {PLAIN: 4, S8: 1}.get(self.math, 2)

    @property
    def shared_bytes(self) -> int:
        """Returns the bytes of shared memory that a block uses.

        It holds a slice of A and one of B, and the tile of C where fragments pass through it.
        """
        item = self.item
        pad = 0 if self.math in (PLAIN, S8) else 16 // item
        slices = item * (self.m * (self.k + pad) + self.k * (self.n + pad))
        result = 4 * self.m * (self.n + 4)
        if self.math == PLAIN:
            return slices
        return slices + result


PLAIN_TILES = (
    Tile(128, 128, 8, (8, 8)),
    Tile(128, 64, 16, (8, 4)),
    Tile(64, 128, 16, (4, 8)),
    Tile(64, 64, 16, (4, 4)),
    Tile(64, 32, 16, (4, 4)),
    Tile(32, 64, 16, (4, 4)),
    Tile(32, 32, 32, (4, 4)),
    Tile(16, 64, 32, (4, 4)),
    Tile(64, 16, 32, (4, 4)),
)
"""The tiles that are tried on plain threads. What the best one of them takes on nineteen
convolutions and products of float32 stands in ``tests/gpu/RESULTS.md``."""
TENSOR_TILES = (
    (128, 48, 32, (32, 48)),
    (64, 96, 32, (32, 48)),
    (64, 64, 32, (32, 32)),
    (64, 64, 64, (32, 16)),
    (64, 32, 32, (32, 16)),
    (32, 64, 32, (16, 32)),
    (32, 32, 64, (16, 16)),
    (16, 64, 64, (16, 16)),
    (64, 16, 64, (16, 16)),
)
"""The tiles that are tried on tensor cores as (m, n, k, a warp's (m, n)), for 2-byte elements. What
the best one of them takes in float16 stands in ``tests/gpu/RESULTS.md``."""


def widest(item: int) -> int:
    """Return how many elements of ``item`` bytes one load moves.

    That is 16 bytes, but 4 elements of 8 bits, since TVM writes no constants of more.
    """
    return 4 if item == 1 else 16 // item


def tiles_for(math_: str) -> tuple[Tile, ...]:
    """Return every tile of a kind of arithmetic."""
    if math_ == PLAIN:
        return PLAIN_TILES
    # Integers have twice as many elements in the same bytes.
    item = Tile(0, 0, 0, math=math_).item
    return tuple(Tile(m, n, 2 * k // item, thread, math_) for m, n, k, thread in TENSOR_TILES)


@dataclass(frozen=True)
class ProductPlan:
    """A tile, and the number of blocks between which each sum is split."""

    tile: Tile
    split: int = 1


@dataclass(frozen=True)
class ProductSizes:
    """The sizes of ``s`` products of ``m`` rows, ``n`` columns and sums of ``k`` terms."""

    s: int
    m: int
    n: int
    k: int

    def blocks(self, tile: Tile) -> int:
        """Return the number of tiles that cover the result."""
        return self.s * -(-self.m // tile.m) * -(-self.n // tile.n)


def plans(sizes: ProductSizes, math_: str, count: int) -> Iterator[ProductPlan]:
    """Yield the plans that are worth trying: each tile, unsplit and split to fill the device.

    Args:
        sizes: The sizes of the product.
        math_: The arithmetic: plain, or the tensor cores' element type.
        count: Multiprocessors of the device.
    """
    for tile in tiles_for(math_):
        yield ProductPlan(tile)
        split = _split(sizes, tile, count)
        # Integers are made small again in the kernel that sums them.
        if split > 1 and math_ != S8:
            yield ProductPlan(tile, split)


def _split(sizes: ProductSizes, tile: Tile, count: int) -> int:
    """Return the power of two that gives each multiprocessor a block.

    It is smaller where the sum is too short for so many parts.
    """
    steps = -(-sizes.k // tile.k)
    wanted = count / sizes.blocks(tile)
    if wanted <= 1:
        return 1
    most = min(MOST_SPLITS, max(1, steps // FEWEST_STEPS))
    return int(min(2 ** math.floor(math.log2(wanted) + 0.5), 2 ** int(math.log2(most))))


def chosen(sizes: ProductSizes, math_: str, count: int) -> ProductPlan:
    """Return the plan that is expected to be fastest on so many multiprocessors.

    In this rough model a multiprocessor works off its blocks' products and what they read, from
    memory and from shared memory. Where that is less, it waits for memory, with as many blocks at
    once as it holds. The extra pass over the partial sums of a split is counted in bytes.
    """
    candidates = plans(sizes, math_, count)
    return min(candidates, key=lambda plan: _ticks(sizes, plan, count))


_LATENCY, SETUP, _LAUNCH = 600.0, 1500.0, 4000.0
"""Clock ticks of a step, of a block besides its steps, and of the second kernel of a split sum,
which nothing else hides; chosen."""
L2_BYTES = 64.0
"""Bytes that a multiprocessor gets from the second-level cache in a clock tick; chosen."""
_BANKS = 128.0
"""Bytes that a multiprocessor gets from its shared memory in a clock tick: 32 banks of 4 bytes
(CUDA C++ Programming Guide, shared memory)."""
_TOGETHER = 1500.0
"""Bytes that the whole device gets from memory in a clock tick: in the middle between an A100's
1,100 (1.56 TB/s at 1.41 GHz) and an H100's 1,900 (3.35 TB/s at 1.76 GHz), by NVIDIA's data
sheets."""


def _ticks(sizes: ProductSizes, plan: ProductPlan, count: int) -> float:
    """Return an estimate of the clock ticks that a product takes."""
    tile = plan.tile
    blocks = sizes.blocks(tile) * plan.split
    steps = math.ceil(math.ceil(sizes.k / tile.k) / plan.split)
    rate = {PLAIN: 128.0, S8: 2048.0}.get(tile.math, 1024.0)
    item = tile.item
    rows, columns = tile.thread
    products = tile.m * tile.n * tile.k
    shared = products * item * (rows + columns) / (rows * columns) / _BANKS
    if tile.math == PLAIN:
        shared /= 4  # half of a warp's threads read the same words, the others in fours
    read = (tile.m + tile.n) * tile.k * item / L2_BYTES
    each = math.ceil(blocks / count)
    resident = min(each, 2048 // tile.threads, (200 << 10) // tile.shared_bytes)
    busy = each * steps * (products / rate + shared + read)
    waiting = math.ceil(each / max(1, resident)) * (steps * _LATENCY + SETUP)
    ticks = max(busy, waiting) + SETUP
    if plan.split > 1:
        ticks += _LAUNCH + 4.0 * sizes.s * sizes.m * sizes.n * (plan.split + 1) / _TOGETHER
    return ticks
