"""Writes convolutions with output channels in the vector lanes, and products with a matrix.

For data with channels last, and for channels-first images where many products use what moving
the channels into the lanes and back costs. It can write every convolution that is not depthwise.
A product with a constant matrix is a convolution of single points: rows are positions, columns are
output channels.

The weight is packed [groups, blocks, chunks, *kernel, channels of the chunk, block] so that a step
of the reduction reads one contiguous row of it; a register tile is some positions by one block of
channels. Where the input channels are many, their weights are used chunk by chunk: a group of tile
rows, as many as fit the first-level cache, adds one chunk after the other to sums in a buffer, and
leaves when all are added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from msgspec.structs import replace
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution import (
    ConvProblem,
    blocked_sum,
    in_blocks,
    prepare,
    taps_of,
)
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import columns_below, in_tiles, tile
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    TilePlan,
    best_positions,
    block_of,
    near,
    spans,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne, KernelRule, note
from collage_engine.kernels.target import SUMS_IN_FLIGHT, Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    by_blocks,
    divisor,
    f32,
    flat_index,
    for_range,
    int64,
    load,
    loop,
    nest,
    prefetch,
    seq,
    split_index,
    store,
    vectorized,
    when,
    workspace,
)

LEAST_STEPS = 64
"""Steps of the reduction in one chunk below which the default keeps all input channels together.
Chosen: a tile loads and stores its sums once a chunk, which is then little beside 64 steps. Tuning
tries half of them, too."""


class ChannelsPlan(TilePlan, frozen=True):
    """The parameters of kernels with output channels in the vector lanes."""

    chunk: AtLeastOne
    """Input channels whose weights stay in the first-level cache together; all of them when sums
    stay in registers throughout."""


def cut(problem: ConvProblem, cpu: Cpu, block: int) -> ChannelsPlan:
    """Return the plan with blocks of so many vectors, and the tile and chunk that suit them.

    While one chunk's weights lie in the first-level cache, all tiles of a group of positions
    use them; sums wait in a buffer between chunks. So weights come from memory once, in order.
    """
    per_channel = 4 * problem.taps * block * cpu.lanes("float32")
    chunk = problem.ci_group
    if chunk * per_channel > cpu.l1_bytes // 2:
        fitting = divisor(chunk, max(1, cpu.l1_bytes // 2 // per_channel))
        # Short chunks would spend their time on loading and storing sums.
        chunk = fitting if fitting * problem.taps >= LEAST_STEPS else chunk
    return ChannelsPlan(block, *best_positions(cpu, block, problem.image), chunk)


class ChannelTiles:
    """The writer of one convolution over its prepared data, in tiles of channels."""

    def __init__(self, problem: ConvProblem, plan: ChannelsPlan, epilogue: Epilogue) -> None:
        self.is_product = not problem.kernel
        self.problem = problem = problem.of_points()
        self.epilogue, self.context = epilogue, epilogue.context
        context, cpu = self.context, self.context.cpu
        self.data = prepare(problem, context)
        self.lanes = cpu.lanes("float32")
        self.groups, self.blocks, self.chunks, *_, self.chunk, self.block = shape_of(context.weight)
        self.co = problem.co // self.groups
        self.ci = self.chunks * self.chunk
        self.plain = problem.pointwise
        self.flat = self.plain or len(problem.out) == 1
        """Whether positions are one run of rows of one column."""
        self.outer = () if self.flat else problem.out[:-2]
        self.image = problem.image
        self.tile = plan.rows, plan.columns
        self.vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]

    # Where things are --------------------------------------------------------------------------

    def place(self, lead: tuple[Index, ...], row: Index, column: Index) -> tuple[Index, ...]:
        """Return the output position of a row and a column of the image that tiles cover."""
        return (row,) if self.flat else (*lead, row, column)

    def input(self, n: Index, c: Index, position: tuple[Index, ...], k: tuple[Index, ...]) -> Expr:
        """Return the input element that tap ``k`` of the output at ``position`` reads."""
        problem, data = self.problem, self.data
        if self.plain:
            spatial: Any = position[-1]
        else:
            spatial = flat_index(problem.read_at(position, k), data.size)
        return load(data.flat, (int64(n) * prod(data.size) + spatial) * data.pitch + c)

    def give(self, n: Index, position: tuple[Index, ...], channel: Index, value: Expr) -> Stmt:
        """Store a finished output element."""
        if not self.problem.channels_last:
            if self.plain:
                return self.epilogue.store_run((n, channel), position[-1], (), value)
            return self.epilogue.store((n, channel, *position), value)
        if self.plain:
            before = () if self.is_product else (n,)
            return self.epilogue.store_run(before, position[-1], (channel,), value)
        return self.epilogue.store((n, *position, channel), value)

    def block_columns(self, b: Index, body: Callable[[Any], Stmt]) -> Stmt:
        """Return the body for the columns that exist in channel block ``b``."""
        last = columns_below(self.vectors, self.co - (self.blocks - 1) * self.block)
        return by_blocks(b, self.blocks, self.vectors, last, body)

    # Tiles -------------------------------------------------------------------------------------

    def product_tile(
        self,
        n: Index,
        lead: tuple[Index, ...],
        g: Index,
        b: Index,
        chunk: Index,
        corner: tuple[Index, Index],
        size: tuple[int, int],
        finish: Callable[[tuple[Index, Index], Any, Any], Stmt],
        columns: Any = None,
        start: Callable[[tuple[Index, Index], Any], Any] | None = None,
        ahead: Callable[[Index], Stmt] | None = None,
    ) -> Stmt:
        """Write the sums over one chunk of input channels, for some positions and one block."""
        problem, weight = self.problem, self.context.weight

        def position(r: Index) -> tuple[Index, Index]:
            i, j = split_index(r, size)
            return corner[0] + i, corner[1] + j

        def reduce(step: Callable[..., Stmt]) -> Stmt:
            # All taps are in one loop: a loop over only three LLVM would unroll completely.
            def tap(t: Index) -> Stmt:
                k = split_index(t, problem.kernel)
                if ahead is None:
                    return loop(self.chunk, lambda c: step(c, *k))
                return loop(
                    self.chunk, lambda c: seq(ahead(int64(t) * self.chunk + c), step(c, *k))
                )

            return loop(problem.taps, tap)

        def term(r: Index, lane: Index, c: Index, *k: Index) -> Expr:
            channel = g * self.ci + (int64(chunk) * self.chunk + c)
            here = self.input(n, channel, self.place(lead, *position(r)), k)
            return here * load(weight, g, b, chunk, *k, c, lane)

        return tile(
            size[0] * size[1],
            self.vectors,
            reduce,
            term,
            lambda r, lane, value: finish(position(r), lane, value),
            columns,
            None if start is None else lambda r, lane: start(position(r), lane),
        )

    def spread(self, extents: tuple[int, ...], body: Callable[..., Stmt]) -> Stmt:
        """Return the body over batch, outer axes and ``extents``, and over blocks of channels."""
        share = self.context.share_products(self.problem.multiply_adds)
        outer = len(self.outer)

        def task(spatial: tuple[Index, ...], channels: tuple[Index, ...]) -> Stmt:
            n, *rest = spatial
            return body(n, tuple(rest[:outer]), *channels, *rest[outer:])

        spatial = (self.problem.batch, *self.outer, *extents)
        return self.context.over_channels(share, spatial, (self.groups, self.blocks), task)


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

        return in_tiles(columns, width, one)

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


class DirectChannels(KernelRule[ConvProblem, ChannelsPlan, Cpu]):
    """The rule that writes convolutions with output channels in the vector lanes."""

    name = "conv channels"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether it is a convolution that is not depthwise."""
        return bool(problem.kernel) and not problem.depthwise

    def default(self, problem: ConvProblem, machine: Cpu) -> ChannelsPlan:
        """Return the cut by the block that is estimated to cost least."""
        block = block_of(machine, problem.co_group, problem.image) // machine.lanes("float32")
        return cut(problem, machine, block)

    def neighbours(
        self, problem: ConvProblem, plan: ChannelsPlan, machine: Cpu
    ) -> Iterator[ChannelsPlan]:
        """Yield other blocks with what suits them, tiles and chunks."""
        blocks = -(-problem.co_group // machine.lanes("float32"))
        for block in near(plan.block, min(MOST_VECTORS, blocks)):
            yield cut(problem, machine, block)
        yield from plan.other_tiles(problem.image, machine)
        chunks = [
            d
            for d in range(1, problem.ci_group + 1)
            if problem.ci_group % d == 0 and d * problem.taps >= LEAST_STEPS // 2
        ]
        nearest = min(range(len(chunks)), key=lambda i: abs(chunks[i] - plan.chunk), default=0)
        for step in (nearest - 1, nearest + 1, len(chunks) - 1):
            if 0 <= step < len(chunks):
                yield replace(plan, chunk=chunks[step])

    def pack(
        self, problem: ConvProblem, plan: ChannelsPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [groups, blocks, chunks, *kernel, channels of a chunk, block]."""
        split = in_blocks(problem.of_points(), weight, plan.block * machine.lanes("float32"))
        groups, blocks, block, ci, *kernel = split.shape
        split = split.reshape(groups, blocks, block, ci // plan.chunk, plan.chunk, *kernel)
        return split.transpose(0, 1, 3, *range(5, split.ndim), 4, 2)

    def reference(
        self, problem: ConvProblem, plan: ChannelsPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of data times packed weight."""
        data, weight = operands
        taps, chunk = taps_of(problem), int(weight.shape[-2])

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            outer, inside = tirx.floordiv(channel, chunk), tirx.floormod(channel, chunk)
            return weight(group, b, outer, *(taps or [0]), inside, r)

        block = int(weight.shape[-1])
        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: ChannelsPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops, the data made ready where that is needed.

        Rows of all leading axes of a product are positions of a convolution of points.
        """
        tiles = ChannelTiles(problem, plan, epilogue)
        loops = in_registers(tiles) if tiles.chunks == 1 else by_chunks(tiles)
        return seq(tiles.data.loops, loops)


class PackedProduct(DirectChannels):
    """The rule that writes products with a constant matrix; one row is bound by reading that."""

    name = "matmul packed"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether it is a product."""
        return not problem.kernel

    def default(self, problem: ConvProblem, machine: Cpu) -> ChannelsPlan:
        """Return the cut of the convolution of points.

        Of one row, a block has enough sums in flight to hide the latency of a multiply-add.
        """
        if problem.image[0] > 1:
            return super().default(problem, machine)
        vectors = -(-problem.co // machine.lanes("float32"))
        return ChannelsPlan(min(SUMS_IN_FLIGHT, vectors), 1, 1, problem.ci)

    def neighbours(
        self, problem: ConvProblem, plan: ChannelsPlan, machine: Cpu
    ) -> Iterator[ChannelsPlan]:
        """Yield those of the convolution of points; of one row all other blocks."""
        if problem.image[0] > 1:
            yield from super().neighbours(problem, plan, machine)
            return
        vectors = -(-problem.co // machine.lanes("float32"))
        for block in range(1, min(2 * SUMS_IN_FLIGHT, vectors) + 1):
            if block != plan.block:
                yield replace(plan, block=block)
