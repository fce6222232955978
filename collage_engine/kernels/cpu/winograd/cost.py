"""Whether a convolution is worth Winograd's method, with tiles of how many outputs, and how it
is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collage_engine.kernels.cpu.winograd.matrices import OUTPUTS, TAPS
from collage_engine.kernels.cpu.writing.tile_choice import best_positions, block_of, spans
from collage_engine.kernels.cpu.writing.tile_cost import cycles
from collage_engine.kernels.target import Cpu

SHARE = 0.5
"""Of the second-level cache, for a group's transformed data and sums."""
LARGE = 4
"""Times that cache: a weight that comes from farther away in every group."""
MANY = 16
"""Tiles of a group that make up for it."""
NARROW = 16
"""Channels in or out below which the transforms take what the products save."""


def takes(
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    channels: tuple[int, int],
    cpu: Cpu,
) -> bool:
    """Whether it can be written so at all; ``channels``: in and out."""
    return (
        tuple(kernel) == (TAPS, TAPS)
        and all(s == 1 for s in (*strides, *dilation))
        and groups == 1
        and min(channels) >= max(NARROW, cpu.lanes("float32"))
    )


def tiles_of(out: Sequence[int], outputs: int) -> tuple[int, int]:
    """Rows and columns of tiles that cover an image."""
    return -(-out[0] // outputs), -(-out[1] // outputs)


def block(cpu: Cpu, channels: int, tiles: int) -> int:
    """Output channels per block."""
    return block_of(cpu, channels, (tiles, 1), chunks=False)


def pitch(cpu: Cpu, channels: int) -> int:
    """Elements from one tile's transformed data to the next: not a multiple of 512 bytes, where
    the rows of a register tile would compete for the same lines of the first-level cache."""
    return channels + (cpu.lanes("float32") if channels % 128 == 0 else 0)


def group_rows(
    cpu: Cpu,
    channels: tuple[int, int],
    block: int,
    tiles: tuple[int, int],
    outputs: int,
    plan: Mapping[str, Any],
) -> int:
    """Tile rows that are transformed, multiplied and brought back together; ``channels``: in
    and out.

    As many as stay in the second-level cache; more where every group would fetch a large weight
    anew (512 channels of 16 × 16: 6.4 ms by groups of 4 tiles, 4.0 ms by 16).
    """
    rows, columns = tiles
    ci, co = channels
    points = (outputs + TAPS - 1) ** 2
    per_row = 4 * points * columns * (pitch(cpu, ci) + block)
    most = max(1, int(SHARE * cpu.l2_bytes) // per_row)
    if 4 * points * ci * co > LARGE * cpu.l2_bytes:
        most = max(most, -(-MANY // columns))
    most = min(rows, most)
    most = max(1, min(rows, int(plan.get("group", most))))
    return -(-rows // -(-rows // most))


def outputs_of(
    cpu: Cpu, co: int, ci: int, out: Sequence[int], plan: Mapping[str, Any] | None = None
) -> int:
    """Outputs along a tile's side: those planned, else those that are estimated to cost least."""
    chosen = int((plan or {}).get("outputs", 0))
    if chosen in OUTPUTS:
        return chosen
    return min(OUTPUTS, key=lambda m: estimate(cpu, co, ci, out, m))


TRANSFORM = {2: 60.0, 4: 190.0}
"""Cycles to transform one tile of one vector of channels, and to bring one back."""
BYTES_PER_CYCLE = 5.0
"""Of weights, from memory."""


def estimate(cpu: Cpu, co: int, ci: int, out: Sequence[int], outputs: int) -> float:
    """Cycles of one image."""
    lanes = cpu.lanes("float32")
    points = (outputs + TAPS - 1) ** 2
    tiles = tiles_of(out, outputs)
    count = tiles[0] * tiles[1]
    columns = block(cpu, co, count)
    vectors = columns // lanes
    rows = group_rows(cpu, (ci, co), columns, tiles, outputs, {})
    products = 0.0
    for groups, _, height in spans(tiles[0], rows):
        tile = best_positions(cpu, vectors, (height * tiles[1], 1))[0]
        for repeat, _, h in spans(height * tiles[1], tile):
            products += groups * repeat * cycles(cpu, h, vectors)
    products *= points * ci * -(-co // columns)
    moved = count * (-(-ci // lanes) + -(-co // lanes)) * TRANSFORM[outputs]
    return max(products, 4 * points * ci * co / BYTES_PER_CYCLE) + moved


def direct(cpu: Cpu, co: int, ci: int, out: Sequence[int]) -> float:
    """Cycles of one image by a direct convolution, output channels in the lanes."""
    columns = block_of(cpu, co, (out[0], out[1]))
    vectors = columns // cpu.lanes("float32")
    height, width = best_positions(cpu, vectors, (out[0], out[1]))
    steps = 0.0
    for count_r, _, h in spans(out[0], height):
        for count_c, _, w in spans(out[1], width):
            steps += count_r * count_c * cycles(cpu, h * w, vectors)
    return max(steps * TAPS**2 * ci * -(-co // columns), 4 * TAPS**2 * ci * co / BYTES_PER_CYCLE)


def worthwhile(cpu: Cpu, co: int, ci: int, out: Sequence[int]) -> bool:
    """Whether the estimates say clearly that it saves time."""
    best = min(estimate(cpu, co, ci, out, outputs) for outputs in OUTPUTS)
    return best < 0.9 * direct(cpu, co, ci, out)


def beats_bfloat16(cpu: Cpu, co: int, ci: int, out: Sequence[int]) -> bool:
    """Whether the estimates say that it saves more than multiplying out in bfloat16, two products
    at once and from half the bytes, does."""
    best = min(estimate(cpu, co, ci, out, outputs) for outputs in OUTPUTS)
    return best < 0.5 * direct(cpu, co, ci, out)
