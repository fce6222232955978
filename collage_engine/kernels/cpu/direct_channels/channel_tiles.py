"""Writes tiles of a convolution with output channels in the lanes: where things are, and sums.

A register tile is some positions by one block of channels; a step of the reduction reads one
contiguous row of the packed weight. What is done with the sums of several tiles is for the
writers in ``writer.py``. The plan says how a convolution or product is cut into tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from msgspec.structs import replace
from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.shape import ConvShape, Prepared
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.register_tile import columns_below, tile
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_POSITIONS,
    MOST_VECTORS,
    best_positions,
    block_of,
    fits,
    image_of,
    near,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne, Plan, PlanError
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    divisor,
    int64,
    load,
    loop,
    seq,
    split_index,
)

LEAST_STEPS = 64
"""Steps of the reduction in one chunk below which the default keeps all input channels together.
Chosen: a tile loads and stores its sums once a chunk, which is then little beside 64 steps. Tuning
tries half of them, too."""


class ChannelsPlan(Plan, frozen=True):
    """The parameters of kernels with output channels in the vector lanes."""

    block: AtLeastOne
    """Output channels per block, counted in vectors."""
    chunk: AtLeastOne
    """Input channels whose weights stay in the first-level cache together; all of them when sums
    stay in registers throughout."""
    rows: AtLeastOne
    columns: AtLeastOne
    """Positions of a register tile: parts of one row, or several whole rows of an image."""
    inside: bool | None = None
    """Whether blocks of channels are the inner loop and positions the outer one; None: where the
    weight fits half the second-level cache."""
    group: AtLeastOne | None = None
    """Rows of tiles whose sums wait together while all chunks are added; None: as many as fit
    two thirds of the first-level cache."""


@dataclass(frozen=True)
class ChannelSizes:
    """The sizes on which a plan with output channels in the lanes depends."""

    channels: int
    """Output channels that one group has."""
    depth: int
    """Input channels that one group has."""
    taps: int
    image: tuple[int, int]
    """Rows and columns of positions; a run of positions is one column."""

    def default(self, cpu: Cpu) -> ChannelsPlan:
        """Returns the block of output channels and the chunk of input channels whose weights fit.

        While one chunk's weights lie in the first-level cache, all tiles of a group of positions
        use them; sums wait in a buffer between chunks. So weights come from memory once, in order.
        """
        lanes = cpu.lanes("float32")
        vectors = block_of(cpu, self.channels, self.image) // lanes
        per_channel = 4 * self.taps * vectors * lanes
        chunk = self.depth
        if self.depth * per_channel > cpu.l1_bytes // 2:
            fitting = divisor(self.depth, max(1, cpu.l1_bytes // 2 // per_channel))
            # Short chunks would spend their time on loading and storing sums.
            chunk = fitting if fitting * self.taps >= LEAST_STEPS else self.depth
        rows, columns = best_positions(cpu, vectors, self.image)
        return ChannelsPlan(vectors, chunk, rows, columns)

    def check(self, plan: ChannelsPlan, cpu: Cpu) -> None:
        """Checks a plan against these sizes.

        Raises:
            PlanError: A block or tile is larger than what there is or does not fit the registers,
                or a chunk does not divide the input channels.
        """
        rows, columns = self.image
        if plan.block > -(-self.channels // cpu.lanes("float32")):
            raise PlanError(f"blocks of {plan.block} vectors for {self.channels} channels")
        if self.depth % plan.chunk:
            raise PlanError(f"chunks of {plan.chunk} channels for {self.depth} channels")
        if plan.rows > rows or plan.columns > columns:
            raise PlanError(f"tiles of {plan.rows} × {plan.columns} for {rows} × {columns}")
        if plan.rows > 1 and plan.columns != columns:
            raise PlanError("tiles of several rows that are not whole")
        positions = plan.rows * plan.columns
        if positions > 1 and not fits(cpu, positions, plan.block):
            raise PlanError(f"{positions} positions by {plan.block} vectors do not fit")

    def neighbours(self, plan: ChannelsPlan, cpu: Cpu) -> Iterator[ChannelsPlan]:
        """Yields plans that differ in one respect, the respects that matter most first."""
        yield from self._other_blocks(plan, cpu)
        yield from self._other_tiles(plan, cpu)
        chunks = [
            d
            for d in range(1, self.depth + 1)
            if self.depth % d == 0 and d * self.taps >= LEAST_STEPS // 2
        ]
        place = min(range(len(chunks)), key=lambda i: abs(chunks[i] - plan.chunk), default=0)
        for step in (place - 1, place + 1, len(chunks) - 1):
            if 0 <= step < len(chunks):
                yield replace(plan, chunk=chunks[step])
        for inside in (False, True):
            yield replace(plan, inside=inside)
        yield from self._other_groups(plan, cpu)

    def _other_blocks(self, plan: ChannelsPlan, cpu: Cpu) -> Iterator[ChannelsPlan]:
        """Yields other blocks, each with the tile and the chunk that suit it."""
        lanes = cpu.lanes("float32")
        for block in near(plan.block, min(MOST_VECTORS, -(-self.channels // lanes))):
            rows, columns = best_positions(cpu, block, self.image)
            per_channel = 4 * self.taps * block * lanes
            chunk = divisor(self.depth, max(1, cpu.l1_bytes // 2 // per_channel))
            chunk = chunk if chunk * self.taps >= LEAST_STEPS // 2 else self.depth
            yield replace(plan, block=block, chunk=chunk, rows=rows, columns=columns)

    def _other_tiles(self, plan: ChannelsPlan, cpu: Cpu) -> Iterator[ChannelsPlan]:
        """Yields other numbers of positions."""
        rows, columns = self.image
        if columns == 1:
            for height in near(plan.rows, min(rows, MOST_POSITIONS)):
                if fits(cpu, height, plan.block):
                    yield replace(plan, rows=height)
            return
        for width in near(plan.columns, min(columns, MOST_POSITIONS)):
            if fits(cpu, width, plan.block):
                yield replace(plan, rows=1, columns=width)
        for height in range(1, rows + 1):
            if fits(cpu, height * columns, plan.block):
                yield replace(plan, rows=height, columns=columns)

    def _other_groups(self, plan: ChannelsPlan, cpu: Cpu) -> Iterator[ChannelsPlan]:
        """Yields plans in which more or fewer rows of tiles wait together."""
        if plan.group is None:
            sums = 4 * plan.rows * self.image[1] * plan.block * cpu.lanes("float32")
            usual = max(1, cpu.l1_bytes * 2 // 3 // sums)
            sizes = [usual // 2, usual * 2, usual * 8]
        else:
            sizes = [plan.group // 2, plan.group * 2]
        for size in sizes:
            if size >= 1:
                yield replace(plan, group=size)


class ChannelTiles:
    """The writer of one convolution over its prepared data, in tiles of channels."""

    def __init__(
        self,
        shape: ConvShape,
        plan: ChannelsPlan,
        epilogue: Any,
        context: Context,
        data: Prepared,
    ) -> None:
        self.shape, self.epilogue, self.context, self.data = shape, epilogue, context, data
        self.plan = plan
        cpu = context.cpu
        self.lanes = cpu.lanes("float32")
        self.groups, self.blocks, self.chunks, *_, self.chunk, self.block = shape_of(shape.weight)
        self.co = shape.co // self.groups
        self.ci = self.chunks * self.chunk
        self.plain = shape.pointwise
        self.flat = self.plain or len(shape.out) == 1
        """Whether positions are one run of rows of one column."""
        self.outer = () if self.flat else shape.out[:-2]
        self.image = image_of(shape.out, self.plain)
        self.tile = plan.rows, plan.columns
        self.collapsed = epilogue.collapsed(1 if shape.channels_last else 2, len(shape.out))
        inside = 4 * prod(shape_of(shape.weight)) <= cpu.l2_bytes // 2
        self.channels_inside = inside if plan.inside is None else plan.inside
        self.vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]

    # Where things are --------------------------------------------------------------------------

    def place(self, lead: tuple[Index, ...], row: Index, column: Index) -> tuple[Index, ...]:
        """Returns the output position of a row and a column of the image that tiles cover."""
        return (row,) if self.flat else (*lead, row, column)

    def input(self, n: Index, c: Index, place: tuple[Index, ...], k: tuple[Index, ...]) -> Expr:
        """Returns the input element that tap ``k`` of the output at ``place`` reads."""
        shape, data = self.shape, self.data
        if self.plain:
            spatial: Any = place[-1]
        else:
            spatial = int64(0)
            for p, e, s, t, d in zip(
                place, data.size, shape.strides, k, shape.dilation, strict=True
            ):
                spatial = spatial * e + (p * s + t * d)
        return load(data.flat, (int64(n) * prod(data.size) + spatial) * data.pitch + c)

    def give(self, n: Index, place: tuple[Index, ...], channel: Index, value: Expr) -> Stmt:
        """Stores a finished output element."""
        shape, collapsed = self.shape, self.collapsed
        if self.plain:
            if collapsed is not None and shape.channels_last:
                return collapsed.store((n,), place[-1], (channel,), value)
            if collapsed is not None:
                return collapsed.store((n, channel), place[-1], (), value)
            place = split_index(place[-1], shape.out)
        return self.epilogue.store(shape.index(n, channel, place), value)

    def block_columns(self, b: Index, body: Callable[[Index], Stmt]) -> Stmt:
        """Returns the body for the columns that exist in channel block ``b``."""
        rest = self.co - (self.blocks - 1) * self.block
        if rest == self.block:
            return body(self.vectors)
        last = body(columns_below(self.vectors, rest))
        if self.blocks == 1:
            return last
        return tirx.IfThenElse(b < self.blocks - 1, body(self.vectors), last)

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
        """Writes the sums over one chunk of input channels, for some positions and one block."""
        shape, weight = self.shape, self.shape.weight

        def position(r: Index) -> tuple[Index, Index]:
            i, j = split_index(r, size)
            return corner[0] + i, corner[1] + j

        def reduce(step: Callable[..., Stmt]) -> Stmt:
            # All taps are in one loop: a loop over only three LLVM would unroll completely.
            def tap(t: Index) -> Stmt:
                k = split_index(t, shape.kernel)
                if ahead is None:
                    return loop(self.chunk, lambda c: step(c, *k))
                return loop(
                    self.chunk, lambda c: seq(ahead(int64(t) * self.chunk + c), step(c, *k))
                )

            return loop(shape.taps, tap)

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

    def turns_back(self) -> bool:
        """Tells whether sums leave channels first by transposed squares."""
        return (
            not self.shape.channels_last
            and self.collapsed is not None
            and self.lanes >= 4
            and prod(self.image) >= self.lanes
        )

    def spread(self, extents: tuple[int, ...], body: Callable[..., Stmt]) -> Stmt:
        """Returns the body over batch, outer axes and ``extents``, and over blocks of channels."""
        share = self.context.share(self.shape.work)
        spatial = (self.shape.batch, *self.outer, *extents)
        channels = (self.groups, self.blocks)
        count = len(spatial)

        def task(index: Index) -> Stmt:
            if self.channels_inside:
                parts = split_index(index, (*spatial, *channels))
                where, (g, b) = parts[:count], parts[count:]
            else:
                parts = split_index(index, (*channels, *spatial))
                (g, b), where = parts[:2], parts[2:]
            n, rest = where[0], where[1:]
            lead = rest[: len(self.outer)]
            return body(n, lead, g, b, *rest[len(self.outer) :])

        return share(prod((*spatial, *channels)), task)
