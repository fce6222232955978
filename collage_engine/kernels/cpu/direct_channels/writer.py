"""Writes the loops of a convolution with output channels in the vector lanes.

For data with channels last, and for small channels-first images. The weight is packed
[groups, blocks, chunks, *kernel, channels of the chunk, block] so that a step of the reduction
reads one contiguous row of it; a register tile is some positions by one block of channels.
Products with a packed operand are written the same way: rows are positions.

Where the input channels are many, their weights are used chunk by chunk: a group of tile rows,
as many as fit the first-level cache, adds one chunk after the other to sums in a buffer, and
leaves when all are added; channels first, by transposed squares of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.prepared import prepare
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.direct_channels.channel_tiles import ChannelsPlan, ChannelTiles
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    f32,
    for_range,
    int64,
    load,
    loop,
    nest,
    prefetch,
    seq,
    store,
    vectorized,
    when,
    workspace,
)


def by_chunks(tiles: ChannelTiles) -> Stmt:
    """Return the loops over groups of rows.

    The sums of a group wait in a buffer while all chunks are added.
    """
    chunks = _Chunks(tiles)
    return tiles.spread((chunks.groups,), chunks.group)


@dataclass(frozen=True)
class _Group:
    """Tile rows that share a buffer of sums, for one block of channels; all are expressions."""

    n: Index
    lead: tuple[Index, ...]
    """Indices of the output's axes before the image's rows and columns."""
    g: Index
    b: Index
    """``g`` and ``b``: the group of channels, and the block of output channels in it."""
    first: Index
    """The group's first image row."""
    last: Any
    """Whether the group is the last one of the image."""
    tiles: Any
    """Tile rows of the group that are full."""
    count: Any
    """Image rows of the group."""


class _Chunks:
    def __init__(self, tiles: ChannelTiles) -> None:
        self.tiles = tiles
        (self.rows, self.columns), (self.height, self.width) = tiles.image, tiles.tile
        self.full_rows, self.rest_rows = divmod(self.rows, self.height)
        self.per_group, self.groups, self.last_rows = self._groups()
        group_rows = self.per_group * self.height
        self.most = max(group_rows if self.groups > 1 else 0, self.last_rows)
        self.sums = workspace((self.most * self.columns * tiles.block,), name="sums")

    def _groups(self) -> tuple[int, int, int]:
        """Return how the image's rows are cut into groups.

        Groups are even, and as large as their sums fit the first-level cache beside the weights.

        Returns:
            Tile rows per group, the number of groups, and image rows of the last group.
        """
        cpu, full = self.tiles.context.cpu, self.full_rows
        row_bytes = 4 * self.height * self.columns * self.tiles.block
        most = max(1, min(full, cpu.l1_bytes * 2 // 3 // row_bytes))
        per_group = -(-full // -(-full // most))
        groups = -(-full // per_group)
        return per_group, groups, self.rows - (groups - 1) * per_group * self.height

    # One group ---------------------------------------------------------------------------------

    def group(self, n: Index, lead: tuple[Index, ...], g: Index, b: Index, number: Any) -> Stmt:
        """Clear the sums of a group, add all chunks to them, and have them leave."""
        groups, per_group = self.groups, self.per_group
        last = number == groups - 1 if groups > 1 else True
        if self.full_rows % per_group:
            tiles = tirx.Select(
                last, int64(self.full_rows - (groups - 1) * per_group), int64(per_group)
            )
        else:
            tiles = int64(per_group)
        group_rows = per_group * self.height
        count: Any = int64(group_rows)
        if groups == 1 or self.last_rows != group_rows:
            count = (
                tirx.Select(last, int64(self.last_rows), count) if groups > 1 else self.last_rows
            )
            count = int64(count)
        group = _Group(n, lead, g, b, int64(number) * group_rows, last, tiles, count)
        return seq(
            allocate(self.sums),
            for_range(count, self._clear),
            loop(self.tiles.chunks, lambda chunk: self._add(group, chunk)),
            self.tiles.block_columns(
                b, lambda kept: for_range(count, lambda i: self._finish(group, i, kept))
            ),
        )

    def _clear(self, i: Index) -> Stmt:
        """Set row ``i`` of the sums to zero."""
        block, lanes = self.tiles.block, self.tiles.lanes
        return nest(
            (self.columns, len(self.tiles.vectors)),
            lambda j, v: vectorized(
                lanes,
                lambda x: store(
                    self.sums, f32(0.0), (i * self.columns + j) * block + v * lanes + x
                ),
            ),
        )

    def _add(self, group: _Group, chunk: Index) -> Stmt:
        """Return the chunk's products, added to the sums of all tiles."""
        height = self.height
        full = for_range(
            group.tiles, lambda i: self._across(group, chunk, group.first + i * height, height)
        )
        if not self.rest_rows:
            return seq(full)
        rest = self._across(group, chunk, int64(self.full_rows * height), self.rest_rows)
        return seq(full, when(group.last, rest) or seq())

    def _across(self, group: _Group, chunk: Index, row: Index, height: int) -> Stmt:
        """Return a row of tiles.

        While this chunk is used, the next one is fetched, a little in every step.
        """
        tiles, columns, width = self.tiles, self.columns, self.width
        block = tiles.block
        steps = tiles.problem.taps * tiles.chunk
        across = -(-columns // width)
        stride = -(-block // (self.per_group * across))
        weight = tiles.context.views.flat(tiles.context.weight)
        number = (row - group.first) // self.height * across
        next_chunk = ((int64(group.g) * tiles.blocks + group.b) * tiles.chunks + chunk + 1) * (
            steps * block
        )

        def at(position: tuple[Index, Index], lane: Index) -> Any:
            row, column = position
            return ((row - group.first) * columns + column) * block + lane

        def one(column: Index, w: int) -> Stmt:
            begin = next_chunk + (number + column // width) * (steps * stride)

            def ahead(step: Index) -> Stmt:
                at = begin + step * stride
                return seq(*(prefetch(weight, at + o) for o in range(0, stride, 16)))

            return tiles.product_tile(
                group.n,
                group.lead,
                group.g,
                group.b,
                chunk,
                (row, column),
                (height, w),
                lambda position, lane, value: store(self.sums, value, at(position, lane)),
                None,
                lambda position, lane: load(self.sums, at(position, lane)),
                ahead,
            )

        return seq(
            *(
                loop(count, lambda j, w=w, f=f: one(int64(j) * w + f, w))
                for count, f, w in spans(columns, width)
            )
        )

    # Sums leave --------------------------------------------------------------------------------

    def _finish(self, group: _Group, i: Index, kept: Any) -> Stmt:
        """Store row ``i`` of the group, channels in the lanes."""
        tiles = self.tiles
        channels = group.g * tiles.co + group.b * tiles.block

        def point(j: Index) -> Stmt:
            position = tiles.place(group.lead, group.first + i, j)
            sums = (i * self.columns + j) * tiles.block

            def vector(c: int, w: int) -> Stmt:
                return vectorized(
                    w,
                    lambda x: tiles.give(
                        group.n,
                        position,
                        channels + (int64(c) + x),
                        load(self.sums, sums + (int64(c) + x)),
                    ),
                )

            return seq(*(vector(c, w) for c, w in kept))

        return loop(self.columns, point)


def write(problem: ConvProblem, plan: ChannelsPlan, epilogue: Any, context: Context) -> Stmt:
    """Return the loops of a convolution, its data made ready where that is needed.

    ``epilogue`` offers what an ``Epilogue`` does.
    """
    prepared = prepare(problem, context)
    tiles = ChannelTiles(problem, plan, epilogue, context, prepared)
    return seq(prepared.loops, in_registers(tiles) if tiles.chunks == 1 else by_chunks(tiles))


def in_registers(tiles: ChannelTiles) -> Stmt:
    """Return loops in which each tile's sums stay in registers until they are finished."""
    (rows, columns), (height, width) = tiles.image, tiles.tile
    statements = []
    for count_r, first_r, h in spans(rows, height):
        for count_c, first_c, w in spans(columns, width):

            def body(
                n: Index,
                lead: Any,
                g: Index,
                b: Index,
                i: Index,
                j: Index,
                h: int = h,
                w: int = w,
                first_r: int = first_r,
                first_c: int = first_c,
            ) -> Stmt:
                corner = (int64(i) * h + first_r, int64(j) * w + first_c)

                def finish(position: tuple[Index, Index], lane: Index, value: Expr) -> Stmt:
                    channel = g * tiles.co + b * tiles.block + lane
                    return tiles.give(n, tiles.place(lead, *position), channel, value)

                return tiles.block_columns(
                    b,
                    lambda kept: tiles.product_tile(
                        n, lead, g, b, int64(0), corner, (h, w), finish, kept
                    ),
                )

            statements.append(tiles.spread((count_r, count_c), body))
    return seq(*statements)
