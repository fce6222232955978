"""Writes tiles of a convolution with output channels in the lanes: where things are, and sums.

A register tile is some positions by one block of channels; a step of the reduction reads one
contiguous row of the packed weight. What is done with the sums of several tiles is for the
writers in ``writer.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.prepared import Prepared
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.register_tile import columns_below, tile
from collage_engine.kernels.cpu.writing.tile_choice import TilePlan, best_positions
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne
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

    def __init__(
        self,
        problem: ConvProblem,
        plan: ChannelsPlan,
        epilogue: Any,
        context: Context,
        data: Prepared,
    ) -> None:
        self.problem, self.epilogue, self.context, self.data = problem, epilogue, context, data
        cpu = context.cpu
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
        self.collapsed = epilogue.collapsed(1 if problem.channels_last else 2, len(problem.out))
        self.channels_inside = 4 * prod(shape_of(context.weight)) <= cpu.half_l2
        """Whether blocks of channels are the inner loop and positions the outer one."""
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
            spatial = int64(0)
            for p, e, s, t, d in zip(
                position, data.size, problem.strides, k, problem.dilation, strict=True
            ):
                spatial = spatial * e + (p * s + t * d)
        return load(data.flat, (int64(n) * prod(data.size) + spatial) * data.pitch + c)

    def give(self, n: Index, position: tuple[Index, ...], channel: Index, value: Expr) -> Stmt:
        """Store a finished output element."""
        problem, collapsed = self.problem, self.collapsed
        if self.plain:
            if collapsed is not None and problem.channels_last:
                return collapsed.store((n,), position[-1], (channel,), value)
            if collapsed is not None:
                return collapsed.store((n, channel), position[-1], (), value)
            position = split_index(position[-1], problem.out)
        last = problem.channels_last
        return self.epilogue.store(
            (n, *position, channel) if last else (n, channel, *position), value
        )

    def block_columns(self, b: Index, body: Callable[[Index], Stmt]) -> Stmt:
        """Return the body for the columns that exist in channel block ``b``."""
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
        spatial = (self.problem.batch, *self.outer, *extents)
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
