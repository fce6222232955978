"""How a convolution with output channels in the lanes is cut into tiles, blocks and chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collage_engine.kernels.cpu.writing.tile_cost import cycles, fits
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import divisor, product

SINGLE = 0.95
"""Where vectors are multiplied in halves, blocks of one vector, with chunks twice as long, were
5 to 12 % faster on eight of nine convolutions; not on small images."""
MANY = 128
"""Positions from which an image is none of the small ones."""
FLAT_ROWS = 16
"""There, tiles of more positions of a run (far apart in memory) were up to 25 % slower."""


def block_of(cpu: Cpu, channels: int, image: tuple[int, int], chunks: bool = True) -> int:
    """Output channels per block: the number of whole vectors that costs least.

    ``image``: rows and columns of the output (one row when it is walked as one run).
    ``chunks``: whether input channels are cut so that their weights stay in the caches.
    """
    single = SINGLE if chunks and cpu.halves and image[0] * image[1] >= MANY else 1.0
    lanes = cpu.lanes("float32")
    vectors = -(-channels // lanes)

    def price(v: int) -> float:
        blocks = -(-vectors // v)
        # A block with missing channels costs as much as a whole one, and code of its own.
        return (
            tile_cost(cpu, v, image, best_positions(cpu, v, image))
            * blocks
            * (1.02 if channels % (v * lanes) else 1.0)
            * (single if v == 1 else 1.0)
        )

    return min(range(1, min(4, vectors) + 1), key=lambda v: (price(v), -v)) * lanes


DOTS = {1: 1.4, 2: 1.04, 3: 1.02, 4: 1.0}
"""Price of a product by vectors in a block where one instruction takes several channels: with one
vector, every broadcast serves one product only. On eleven convolutions of 1 × 1 in bfloat16, one
vector reached 65 to 82 products a nanosecond, two 69 to 112, four 76 to 108 (Zen 4)."""


def dot_block_of(cpu: Cpu, channels: int, image: tuple[int, int]) -> int:
    """``block_of`` for products of several channels at once."""
    lanes = cpu.lanes("float32")
    vectors = -(-channels // lanes)

    def price(v: int) -> float:
        blocks = -(-vectors // v)
        return tile_cost(cpu, v, image, best_positions(cpu, v, image)) * blocks * DOTS[v]

    return min(range(1, min(4, vectors) + 1), key=lambda v: (price(v), -v)) * lanes


def best_positions(cpu: Cpu, vectors: int, image: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a tile: parts of one row, or several whole rows of a small image."""
    rows, columns = image
    most = FLAT_ROWS if columns == 1 and cpu.halves else rows
    choices = [(1, w) for w in range(1, min(28, columns) + 1) if fits(cpu, w, vectors)]
    choices += [
        (h, columns) for h in range(2, min(rows, most) + 1) if fits(cpu, h * columns, vectors)
    ]
    return min(
        choices or [(1, 1)],
        key=lambda t: (tile_cost(cpu, vectors, image, t), -t[0] * t[1]),
    )


def tile_cost(
    cpu: Cpu, vectors: int, image: tuple[int, int], position_tile: tuple[int, int]
) -> float:
    """Cycles per reduction step for one block of channels over the whole image."""
    (rows, columns), (height, width) = image, position_tile
    full_r, rest_r = divmod(rows, height)
    full_c, rest_c = divmod(columns, width)
    total = 0.0
    for count_r, h in ((full_r, height), (1, rest_r)):
        for count_c, w in ((full_c, width), (1, rest_c)):
            if h and w:
                total += count_r * count_c * cycles(cpu, h * w, vectors)
    # Remainders cost more than their steps: code of their own, and sums that wait.
    return total * (1.03 if rest_r or rest_c else 1.0)


@dataclass(frozen=True)
class Plan:
    """How one convolution is cut: see ``plan_of``."""

    block: int
    """Output channels per block."""
    chunk: int
    """Input channels per chunk; all of them when sums stay in registers throughout."""


def plan_of(cpu: Cpu, channels: int, depth: int, taps: int, image: tuple[int, int]) -> Plan:
    """The block of output channels, and the chunk of input channels whose weights fit.

    While one chunk's weights lie in the first-level cache, all tiles of a group of positions
    use them; sums wait in a buffer between chunks. So weights come from memory once, in order.
    """
    block = block_of(cpu, channels, image)
    per_channel = 4 * taps * block
    if depth * per_channel <= cpu.l1_bytes // 2:
        return Plan(block, depth)
    chunk = divisor(depth, max(1, cpu.l1_bytes // 2 // per_channel))
    # Short chunks would spend their time on loading and storing sums.
    return Plan(block, chunk if chunk * taps >= 64 else depth)


def chosen_plan(
    cpu: Cpu,
    channels: int,
    depth: int,
    taps: int,
    image: tuple[int, int],
    chosen: Mapping[str, Any],
) -> Plan:
    """``plan_of`` with what tuning chose of it: ``block`` in vectors, ``chunk`` in channels."""
    lanes = cpu.lanes("float32")
    plan = plan_of(cpu, channels, depth, taps, image)
    vectors = int(chosen.get("block", 0))
    block = vectors * lanes if 0 < vectors <= -(-channels // lanes) else plan.block
    chunk = int(chosen.get("chunk", plan.chunk))
    return Plan(block, chunk if 0 < chunk <= depth and depth % chunk == 0 else plan.chunk)


def spans(extent: int, size: int) -> list[tuple[int, int, int]]:
    """(count, first, extent) of the whole tiles and of the remainder, those that exist."""
    full, rest = divmod(extent, size)
    found = [(full, 0, size)] if full else []
    return [*found, (1, full * size, rest)] if rest else found


def is_plain(taps: int, padded: bool) -> bool:
    """Whether every output position reads one input position, those skipped left out."""
    return taps == 1 and not padded


def image_of(out: tuple[int, ...], plain: bool) -> tuple[int, int]:
    """Rows and columns that tiles cover; a run of positions is many rows of one column."""
    if plain or len(out) == 1:
        return product(out), 1
    return out[-2], out[-1]
