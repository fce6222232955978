"""Estimates what Winograd's method costs beside multiplying out, and how its work is cut.

All estimates are in cycles of the tile model (``writing/tile_choice.py``), so that only the ratio
of a transform to a multiply-add and of memory to arithmetic is assumed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage_engine.kernels.cpu.convolution import ConvProblem
from collage_engine.kernels.cpu.winograd.matrices import OUTPUTS, TAPS, Outputs
from collage_engine.kernels.cpu.writing.tile_choice import (
    ACCURACY,
    best_positions,
    block_of,
    cycles,
    spans,
    steps_cycles,
)
from collage_engine.kernels.target import BYTES_PER_CYCLE, MOST_LANES, Cpu

LARGE_WEIGHT = 4
"""A weight of more than so many second-level caches comes from memory anew in every group. Chosen:
it is more than such a core's part of any third-level cache."""
TRANSFORM = {2: 60.0, 4: 190.0}
"""Cycles to transform one tile of one vector of channels and to bring one back, by outputs. Chosen:
about 110 and 390 loads, stores and additions of vectors, two a cycle."""
WORTHWHILE = 1 - 2 * ACCURACY
"""Winograd's method is taken where it is estimated below this share of multiplying out: by the
accuracy of both estimates."""


def takes(problem: ConvProblem, cpu: Cpu) -> bool:
    """Tells whether a convolution can be written so at all."""
    return (
        problem.channels_last
        and problem.dims == 2
        and problem.kernel == (TAPS, TAPS)
        and all(s == 1 for s in (*problem.strides, *problem.dilation))
        and problem.groups == 1
        and min(problem.ci, problem.co) >= max(MOST_LANES, cpu.lanes("float32"))
    )


def tiles_of(out: Sequence[int], outputs: int) -> tuple[int, int]:
    """Return the rows and columns of tiles that cover an image."""
    return -(-out[0] // outputs), -(-out[1] // outputs)


def pitch(cpu: Cpu, channels: int) -> int:
    """Return the elements from one tile's transformed data to the next.

    Not a multiple of 512 bytes, where the rows of a register tile would compete for the same lines
    of the first-level cache.
    """
    return channels + (cpu.lanes("float32") if channels % 128 == 0 else 0)


def group_rows(
    cpu: Cpu, channels: tuple[int, int], block: int, tiles: tuple[int, int], outputs: int
) -> int:
    """Return the rows of tiles that are transformed, multiplied and brought back together.

    As many as stay in the second-level cache; more where every group would fetch a large weight
    anew (512 channels of 16 × 16: 6.4 ms by groups of 4 tiles, 4.0 ms by 16).

    Args:
        cpu: The processor.
        channels: Channels in and out.
        block: Output channels per block.
        tiles: Rows and columns of tiles.
        outputs: Results along the side of a tile.
    """
    rows, columns = tiles
    ci, co = channels
    points = (outputs + TAPS - 1) ** 2
    per_row = 4 * points * columns * (pitch(cpu, ci) + block)
    most = max(1, cpu.half_l2 // per_row)
    if 4 * points * ci * co > LARGE_WEIGHT * cpu.l2_bytes:
        # So many multiply-adds take the time in which a vector of the weight arrives.
        least = math.ceil(cpu.vector_bytes / BYTES_PER_CYCLE)
        most = max(most, -(-least // columns))
    return evened(rows, min(rows, most))


def evened(rows: int, most: int) -> int:
    """Return the size of the fewest groups of at most ``most`` rows, all as large as each other."""
    return -(-rows // -(-rows // most))


def outputs_of(cpu: Cpu, co: int, ci: int, out: Sequence[int]) -> Outputs:
    """Return the outputs along a tile's side that are estimated to cost least."""
    return min(OUTPUTS, key=lambda m: estimate(cpu, co, ci, out, m))


def estimate(cpu: Cpu, co: int, ci: int, out: Sequence[int], outputs: int) -> float:
    """Estimates the cycles of one image by Winograd's method.

    Args:
        cpu: The processor.
        co: Output channels.
        ci: Input channels.
        out: Rows and columns of the result.
        outputs: Results along the side of a tile.
    """
    lanes = cpu.lanes("float32")
    points = (outputs + TAPS - 1) ** 2
    tiles = tiles_of(out, outputs)
    count = tiles[0] * tiles[1]
    columns = block_of(cpu, co, (count, 1))
    vectors = columns // lanes
    rows = group_rows(cpu, (ci, co), columns, tiles, outputs)
    products = 0.0
    for groups, _, height in spans(tiles[0], rows):
        tile = best_positions(cpu, vectors, (height * tiles[1], 1))[0]
        for repeat, _, h in spans(height * tiles[1], tile):
            products += groups * repeat * cycles(cpu, h, vectors)
    products *= points * ci * -(-co // columns)
    moved = count * (-(-ci // lanes) + -(-co // lanes)) * TRANSFORM[outputs]
    return max(products, 4 * points * ci * co / BYTES_PER_CYCLE) + moved


def direct(cpu: Cpu, co: int, ci: int, out: Sequence[int]) -> float:
    """Estimates the cycles of one image by a direct convolution, output channels in the lanes.

    Args:
        cpu: The processor.
        co: Output channels.
        ci: Input channels.
        out: Rows and columns of the result.
    """
    image = (out[0], out[1])
    columns = block_of(cpu, co, image)
    vectors = columns // cpu.lanes("float32")
    steps = steps_cycles(cpu, vectors, image, best_positions(cpu, vectors, image))
    return max(steps * TAPS**2 * ci * -(-co // columns), 4 * TAPS**2 * ci * co / BYTES_PER_CYCLE)


def worthwhile(cpu: Cpu, co: int, ci: int, out: Sequence[int], products_at_once: int = 1) -> bool:
    """Tells whether the estimates say clearly that it saves time.

    Multiplying out in bfloat16 multiplies two products at once, from half the bytes.
    """
    best = min(estimate(cpu, co, ci, out, outputs) for outputs in OUTPUTS)
    return best < WORTHWHILE * direct(cpu, co, ci, out) / products_at_once
