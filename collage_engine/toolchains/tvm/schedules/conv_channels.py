"""Convolution with output channels in the vector lanes.

For data with channels last, and for small channels-first images. The weight is packed
[groups, blocks, *kernel, channels in, block] so that a step of the reduction reads one
contiguous row of it; a register tile is some positions by one block of output channels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    int64,
    load,
    loop,
    nest,
    parallel,
    seq,
    split_index,
)
from collage_engine.toolchains.tvm.program import shape_of
from collage_engine.toolchains.tvm.schedules.anchor import (
    Epilogue,
    columns_below,
    cost,
    fits,
    tile,
)
from collage_engine.toolchains.tvm.schedules.conv_shape import ConvShape, product, write_padded
from collage_engine.toolchains.tvm.schedules.pointwise import Context
from collage_engine.toolchains.tvm.target import Cpu


def block_of(cpu: Cpu, channels: int, positions: int) -> int:
    """Output channels per block: the number of whole vectors that wastes least."""
    lanes = cpu.lanes("float32")
    vectors = -(-channels // lanes)
    best = min(
        range(1, min(4, vectors) + 1),
        key=lambda v: (
            min(
                cost(cpu, positions, -(-vectors // v) * v, h, v)
                for h in range(1, 30)
                if fits(cpu, h, v) or h == 1
            ),
            -v,
        ),
    )
    return best * lanes


def height_of(cpu: Cpu, vectors: int, positions: int) -> int:
    """Positions per tile."""
    heights = [h for h in range(1, min(28, positions) + 1) if fits(cpu, h, vectors)] or [1]
    return min(heights, key=lambda h: (cost(cpu, positions, vectors, h, vectors), -h))


def write(shape: ConvShape, epilogue: Epilogue, context: Context) -> Stmt:
    cpu = context.cpu
    lanes = cpu.lanes("float32")
    groups, blocks, *_, ci, block = shape_of(shape.weight)
    co = shape.co // groups
    data, prepare = write_padded(shape, context)
    padded = shape.padded
    weight = shape.weight
    plain = shape.taps == 1 and all(s == 1 for s in shape.strides) and not shape.has_padding
    rows = (1,) if plain else shape.out[:-1]
    positions = product(shape.out) if plain else shape.out[-1]
    height = height_of(cpu, block // lanes, positions)
    collapsed = epilogue.collapsed(1 if shape.channels_last else 2, len(shape.out))
    weight_bytes = 4 * product(shape_of(weight))
    channels_inside = weight_bytes <= cpu.l2_bytes // 2

    def address(n: Any, c: Any, place: tuple[Any, ...]) -> Any:
        """Flat index into the padded data."""
        if plain:
            spatial: Any = place[-1]
            size = product(shape.size)
        else:
            spatial, size = int64(0), product(padded)
            for p, e in zip(place, padded, strict=True):
                spatial = spatial * e + p
        if shape.channels_last:
            return (int64(n) * size + spatial) * shape.ci + c
        return (int64(n) * shape.ci + c) * size + spatial

    def one(n: Any, row: tuple[Any, ...], g: Any, b: Any, first: Any, count: int) -> Stmt:
        """The tile of ``count`` positions from ``first`` on in a row, for one channel block."""

        def reduce(step: Callable[..., Stmt]) -> Stmt:
            if shape.channels_last:
                return nest(shape.kernel, lambda *k: loop(ci, lambda c: step(c, *k)))
            return loop(ci, lambda c: nest(shape.kernel, lambda *k: step(c, *k)))

        def scalar(r: Any, c: Any, *k: Any) -> Any:
            place = (first + r,) if plain else (*row, first + r)
            if not plain:
                place = tuple(
                    p * s + t * d
                    for p, s, t, d in zip(place, shape.strides, k, shape.dilation, strict=True)
                )
            return load(data, address(n, g * ci + c, place))

        def term(r: Any, column: Any, c: Any, *k: Any) -> Any:
            return scalar(r, c, *k) * load(weight, g, b, *k, c, column)

        def finish(r: Any, column: Any, value: Any) -> Stmt:
            channel = g * co + b * block + column
            if plain:
                position = first + r
                if collapsed is not None and shape.channels_last:
                    return collapsed.store((n,), position, (channel,), value)
                if collapsed is not None:
                    return collapsed.store((n, channel), position, (), value)
                return epilogue.store(
                    shape.index(n, channel, split_index(position, shape.out)), value
                )
            return epilogue.store(shape.index(n, channel, (*row, first + r)), value)

        vectors = [(i * lanes, lanes) for i in range(block // lanes)]
        if co % block == 0:
            return tile(count, vectors, reduce, term, finish)
        rest = columns_below(vectors, co - (blocks - 1) * block)
        if blocks == 1:
            return tile(count, vectors, reduce, term, finish, rest)
        from tvm import tirx

        return tirx.IfThenElse(
            b < blocks - 1,
            tile(count, vectors, reduce, term, finish),
            tile(count, vectors, reduce, term, finish, rest),
        )

    def cover(tiles: int, offset: int, count: int) -> Stmt | None:
        """All tiles of one height."""
        if tiles == 0:
            return None
        spatial = (shape.batch, *rows, tiles)
        channels = (groups, blocks)
        extents = (*spatial, *channels) if channels_inside else (*channels, *spatial)

        def task(index: Any) -> Stmt:
            parts = split_index(index, extents)
            if channels_inside:
                n, *row, t, g, b = parts
            else:
                g, b, n, *row, t = parts
            return one(n, tuple(row), g, b, int64(t) * height + offset, count)

        share = parallel if context.threads and cpu.threads > 1 else loop
        return share(product(extents), task)

    full, rest = divmod(positions, height)
    return seq(prepare, cover(full, 0, height), cover(1 if rest else 0, full * height, rest))
