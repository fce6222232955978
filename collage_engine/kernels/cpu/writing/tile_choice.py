"""Chooses the register tile and the block of output channels that are estimated to cost least.

The estimates order tiles by their cycles. They give a plan to start from; what a
processor really prefers is found by tuning. The factors below only decide between tiles whose
cycles are alike, so that none of them is a figure of one processor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Self

from msgspec.structs import replace

from collage_engine.kernels.rule import AtLeastOne, Plan
from collage_engine.kernels.target import MOST_REGISTERS, SUMS_IN_FLIGHT, Cpu


def cycles(cpu: Cpu, height: int, vectors: int) -> float:
    """Return the cycles of one step of the reduction of a register tile.

    Multiply-adds start two a cycle and so do loads; a sum waits four cycles for the one before.
    What every step takes beside is two cycles, by least squares over nine tiles. Where vectors are
    multiplied in halves (``Cpu.halves``) the multiply-adds, one a cycle, hide everything else (37
    tiles on such a processor, within 4 %). Only the order of tiles matters, which these ratios of
    instructions give on processors of any clock; tuning corrects it.

    Args:
        cpu: The processor.
        height: Rows of the tile, whose elements are broadcast.
        vectors: Vectors of columns.
    """
    if cpu.halves:
        return max(height * vectors + 0.4, 3.3)
    loads_ = (height + vectors) / 2 + (0.15 * height if vectors == 1 else 0.0)
    return max(height * vectors / 2, loads_, 4.0) + 2.0


def fits(cpu: Cpu, height: int, vectors: int) -> bool:
    """Tells whether the accumulators, one row of vectors and a broadcast stay in registers."""
    return height * vectors + vectors + 1 <= cpu.registers


def cost(cpu: Cpu, rows_total: int, vectors_total: int, height: int, vectors: int) -> float:
    """Return the cycles per reduction step of a whole matrix, its remainders included.

    Args:
        cpu: The processor.
        rows_total: Rows of the matrix.
        vectors_total: Columns of the matrix, counted in vectors.
        height: Rows of a register tile.
        vectors: Vectors of a register tile.
    """
    total = 0.0
    for count_v, _, wide in spans(vectors_total, vectors):
        for count_r, _, high in spans(rows_total, height):
            total += count_r * count_v * cycles(cpu, high, wide)
    return total


ACCURACY = 0.04
"""Share by which ``cycles`` is off at most: measured on 37 tiles (see there)."""
REMAINDER = 1 + 3 * ACCURACY / 4
"""Factor for blocks, bands or tiles of which the last one is not full: it has code of its own. A
tie-breaker: it is less than the cycles may be off."""
FLAT_ROWS = 16
"""Most positions in a tile of a run where vectors are multiplied in halves. The positions of a run
lie far apart in memory; tiles of more were up to 25 % slower on Zen 4, the one kind of processor
with that property. Tuning tries more."""
MOST_VECTORS = SUMS_IN_FLIGHT // 2
"""Vectors of output channels in a block that are considered: two positions of so many keep a
processor busy, and sixteen registers, as before AVX-512, hold hardly more."""
MOST_POSITIONS = MOST_REGISTERS - 4
"""Positions of a tile that are considered: beside the sums of so many, by one vector, there are
registers for a weight and a broadcast, each in use and in advance."""


def block_of(cpu: Cpu, channels: int, image: tuple[int, int]) -> int:
    """Return the output channels per block that are estimated to cost least: whole vectors.

    Args:
        cpu: The processor.
        channels: Output channels that are cut into blocks.
        image: Rows and columns of the output (one column when it is walked as one run).
    """
    lanes = cpu.lanes("float32")
    vectors = -(-channels // lanes)

    def factor(v: int) -> float:
        # A block with missing channels costs as much as a whole one, and code of its own.
        return REMAINDER if channels % (v * lanes) else 1.0

    return cheapest_block(cpu, vectors, image, factor) * lanes


def cheapest_block(
    cpu: Cpu, vectors: int, image: tuple[int, int], factor: Callable[[int], float]
) -> int:
    """Return the vectors of a block that are estimated to cost least.

    Args:
        cpu: The processor.
        vectors: Vectors of output channels that are cut into blocks.
        image: Rows and columns of the output.
        factor: What a block of so many vectors costs beside its tiles.
    """

    def price(v: int) -> float:
        tiles = tile_cost(cpu, v, image, best_positions(cpu, v, image))
        return tiles * -(-vectors // v) * factor(v)

    return min(range(1, min(MOST_VECTORS, vectors) + 1), key=lambda v: (price(v), -v))


@cache  # the layers of a model repeat each other, and every cover asks again
def best_positions(cpu: Cpu, vectors: int, image: tuple[int, int]) -> tuple[int, int]:
    """Choose rows and columns of a tile: parts of one row, or whole rows of a small image."""
    rows, columns = image
    most = FLAT_ROWS if columns == 1 and cpu.halves else rows
    choices = [(1, w) for w in range(1, min(MOST_POSITIONS, columns) + 1) if fits(cpu, w, vectors)]
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
    """Return the cycles per reduction step for one block of channels over the whole image.

    Args:
        cpu: The processor.
        vectors: Output channels of the block, counted in vectors.
        image: Rows and columns of the output.
        position_tile: Rows and columns of a tile.
    """
    even = not any(extent % size for extent, size in zip(image, position_tile, strict=True))
    return steps_cycles(cpu, vectors, image, position_tile) * (1.0 if even else REMAINDER)


def steps_cycles(
    cpu: Cpu, vectors: int, image: tuple[int, int], position_tile: tuple[int, int]
) -> float:
    """Return what ``tile_cost`` does, without its price for tiles that are not full."""
    (rows, columns), (height, width) = image, position_tile
    total = 0.0
    for count_r, _, h in spans(rows, height):
        for count_c, _, w in spans(columns, width):
            total += count_r * count_c * cycles(cpu, h * w, vectors)
    return total


def spans(extent: int, size: int) -> list[tuple[int, int, int]]:
    """Yield (count, first, extent) of the whole tiles and of the remainder, those that exist."""
    full, rest = divmod(extent, size)
    pieces = [(full, 0, size)] if full else []
    return [*pieces, (1, full * size, rest)] if rest else pieces


NEAREST = 6
"""Sizes next to the present one that tuning tries at once. Chosen: three on either side."""


def near(value: int, most: int) -> list[int]:
    """Return other sizes from 1 up to a limit, the nearest to a value first."""
    others = (size for size in range(1, most + 1) if size != value)
    return sorted(others, key=lambda size: abs(size - value))[:NEAREST]


class TilePlan(Plan, frozen=True):
    """A block of output channels, and a register tile of positions by one block."""

    block: AtLeastOne
    """Output channels per block, counted in vectors."""
    rows: AtLeastOne
    columns: AtLeastOne
    """Positions of a register tile: parts of one row, or several whole rows of an image."""

    def other_tiles(self, image: tuple[int, int], cpu: Cpu) -> Iterator[Self]:
        """Yield plans of other numbers of positions."""
        rows, columns = image
        if columns == 1:
            for height in near(self.rows, min(rows, MOST_POSITIONS)):
                if fits(cpu, height, self.block):
                    yield replace(self, rows=height)
            return
        for width in near(self.columns, min(columns, MOST_POSITIONS)):
            if fits(cpu, width, self.block):
                yield replace(self, rows=1, columns=width)
        for height in range(1, rows + 1):
            if fits(cpu, height * columns, self.block):
                yield replace(self, rows=height, columns=columns)
