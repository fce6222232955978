"""Writes direct convolutions of channels-first data, positions in the vector lanes.

It is preferred where there are fewer output channels than lanes, or so few products per result
that moving the image's channels into the lanes and back would not pay.

The input is padded, and split into as many phases as the strides skip, so that every tap of the
kernel is one constant offset: output position ``row · pitch + column`` reads phase position
``row · pitch + column + offset``, and a vector of positions is one unaligned load whatever the
image's width (the columns between the output's width and the pitch are computed for nothing).
A register tile is some output channels by some vectors of positions; a band of rows of a block
of channels is gathered in the first-level cache and then stored without the surplus columns.
The weight is packed [groups, blocks, channels in, *kernel, channels of the block].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution import (
    ConvProblem,
    Planes,
    blocked_sum,
    in_blocks,
    layout_of,
    make_planes,
    taps_of,
)
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import in_tiles, tile
from collage_engine.kernels.cpu.writing.tile_choice import REMAINDER, cost, fits, near, spans
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne, KernelRule, Plan, note
from collage_engine.kernels.target import MOST_REGISTERS, Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    by_blocks,
    flat_index,
    in_vectors,
    int64,
    load,
    loop,
    nest,
    seq,
    store,
    vectorized,
    workspace,
)

MOST_CHANNELS = MOST_REGISTERS // 2
"""Output channels of a register tile that are considered: two vectors of each fill the registers.
"""
MOST_VECTORS = MOST_REGISTERS // (1 + 4)
"""Vectors of positions in a register tile that are considered: with more, fewer than four output
channels have sums beside them, and every load serves few products."""


class SpatialPlan(Plan, frozen=True):
    """The parameters of kernels with positions in the vector lanes."""

    block: AtLeastOne
    """Output channels of a register tile, which are a block of the packed weight."""
    vectors: Annotated[int, Meta(ge=1, le=MOST_VECTORS)] | None = None
    """Vectors of positions of a register tile; None: as estimated for each band of rows."""


def channels_of(cpu: Cpu, channels: int, positions: int) -> int:
    """Return the output channels of a register tile that are estimated to cost least."""
    lanes = cpu.lanes("float32")
    vectors = -(-positions // lanes)
    best = None
    for h in range(1, min(MOST_CHANNELS, channels) + 1):
        for v in range(1, min(MOST_VECTORS, vectors) + 1):
            if not fits(cpu, h, v):
                continue
            padded = -(-channels // h) * h
            estimate = (cost(cpu, padded, vectors, h, v), -h)
            if best is None or estimate < best:
                best = estimate
    assert best is not None
    return -best[1]


def vectors_of(cpu: Cpu, height: int, vectors: int) -> int:
    """Return the vectors of a register tile of so many channels, of so many vectors in all."""
    most = min(MOST_VECTORS, vectors)
    widths = [v for v in range(1, most + 1) if fits(cpu, height, v)] or [1]
    return min(widths, key=lambda v: (cost(cpu, height, vectors, height, v), -v))


def positions_of(problem: ConvProblem, cpu: Cpu) -> int:
    """Return how many positions are computed, surplus columns and whole vectors included."""
    lanes = cpu.lanes("float32")
    return -(-span_of(problem.out, layout_of(problem)[1]) // lanes) * lanes


def span_of(out: Sequence[int], pitches: Sequence[int]) -> int:
    """Return the positions from a result's first to its last, with surplus columns between."""
    last: int = flat_index([o - 1 for o in out], pitches)
    return last + 1


class _Spatial:
    """One convolution: its phases, and the tasks that compute bands of blocks of channels."""

    def __init__(self, problem: ConvProblem, plan: SpatialPlan, epilogue: Epilogue) -> None:
        self.problem, self.plan, self.epilogue = problem, plan, epilogue
        self.context = context = epilogue.context
        self.lanes = context.cpu.lanes("float32")
        self.groups, self.blocks, self.ci, *_, self.height = shape_of(context.weight)
        self.co = problem.co // self.groups
        is_run = epilogue.run(2, 2 + len(problem.out)) is not None
        self.phases = make_planes(problem, context, may_alias=is_run)
        self.straight = len(problem.out) == 1 or self.phases.prepare is None
        """Whether there are no surplus columns, so that each tile stores its own results."""

    def write(self) -> Stmt:
        problem, lanes = self.problem, self.lanes
        if self.straight:
            bands = [(0, 1, prod(problem.out))]
        else:
            bands = _bands(problem, self.phases, self.height, lanes, self.context.cpu.l1_bytes)
        statements: list[Stmt | None] = [self.phases.prepare]
        share = self.context.share_products(problem.multiply_adds)
        start = 0
        for rows, count, size in bands:

            def task(
                spatial: tuple[Index, ...],
                channels: tuple[Index, ...],
                rows: int = rows,
                size: int = size,
                start: int = start,
            ) -> Stmt:
                (n, s), (g, b) = spatial, channels
                return self._band(n, g, b, int64(s) * rows + start, rows, size)

            spatial, channels = (problem.batch, count), (self.groups, self.blocks)
            statements.append(self.context.over_channels(share, spatial, channels, task))
            start += rows * count
        return seq(*statements)

    def _band(self, n: Index, g: Index, b: Index, first_row: Any, rows: int, size: int) -> Stmt:
        """Return a band of ``rows`` rows, ``size`` positions, of one block of channels."""
        problem, phases = self.problem, self.phases
        channel = g * self.co + b * self.height
        if self.straight:

            def finish(r: Index, position: Index, value: Expr) -> Stmt:
                statement = self.epilogue.store_run((n, channel + r), position, (), value)
                if self.co % self.height:
                    return tirx.IfThenElse(b * self.height + r < self.co, statement, None)
                return statement

            return self._tiles(n, g, b, int64(0), size, finish)
        vectors = -(-size // self.lanes)
        band = workspace((self.height, vectors * self.lanes), name="band")
        base = first_row * (prod(phases.pitches[1:]) if len(problem.out) > 1 else 1)

        def keep(r: Index, position: Index, value: Expr) -> Stmt:
            return store(band, value, r, position)

        return seq(
            allocate(band),
            self._tiles(n, g, b, base, size, keep),
            by_blocks(
                b,
                self.blocks,
                self.height,
                self.co - (self.blocks - 1) * self.height,
                lambda count: self._give(band, n, channel, first_row, rows, count),
            ),
        )

    def _give(
        self, band: Any, n: Index, channel: Index, first_row: Any, rows: int, count: int
    ) -> Stmt:
        """Store the band's sums of ``count`` channels without surplus columns."""
        problem, phases = self.problem, self.phases
        pitch = phases.pitches[-1]

        def line(r: Index, *position: Index) -> Stmt:
            inner = flat_index(position, phases.pitches[:-1]) * pitch
            row = (first_row + position[0], *position[1:]) if position else ()

            def vector(start: Index, width: int) -> Stmt:
                return vectorized(
                    width,
                    lambda x: self.epilogue.store(
                        (n, channel + r, *row, int64(start) + x),
                        load(band, r, inner + (int64(start) + x)),
                    ),
                )

            return in_vectors(problem.out[-1], self.lanes, vector)

        inner_rows = (rows, *problem.out[1:-1]) if len(problem.out) > 1 else ()
        return nest((count, *inner_rows), line)

    def _tiles(
        self,
        n: Index,
        g: Index,
        b: Index,
        base: Index,
        size: int,
        finish: Callable[[Index, Index, Index], Stmt],
    ) -> Stmt:
        """Return all positions ``base … base + size`` for one channel block."""
        problem, lanes, phases = self.problem, self.lanes, self.phases
        vectors = -(-size // lanes)
        wide = vectors_of(self.context.cpu, self.height, vectors)
        if self.plan.vectors is not None and self.plan.vectors <= vectors:
            wide = self.plan.vectors

        def reduce(step: Callable[..., Stmt]) -> Stmt:
            return loop(self.ci, lambda c: nest(problem.kernel, lambda *k: step(c, *k)))

        def one(first: Index, count: int) -> Stmt:
            """Return the register tile of ``count`` vectors from position ``first`` on."""

            def term(r: Index, column: Index, c: Index, *k: Index) -> Expr:
                at = (int64(n) * problem.ci + g * self.ci + c) * phases.size
                here = load(
                    phases.buffer, at + phases.offset(k, problem.dilation) + base + first + column
                )
                return load(self.context.weight, g, b, c, *k, r) * here

            return tile(
                self.height,
                [(v * lanes, lanes) for v in range(count)],
                reduce,
                term,
                lambda r, column, value: finish(r, first + column, value),
            )

        # Nothing may be stored behind the last position, nor be read behind the input's end: the
        # last vector then starts earlier and computes some positions twice.
        exact = not self.straight or size % lanes == 0
        whole = vectors if exact else size // lanes
        return seq(
            in_tiles(whole * lanes, wide * lanes, lambda first, size: one(first, size // lanes)),
            None if exact else one(int64(size - lanes), 1),
        )


def _bands(
    problem: ConvProblem, phases: Planes, height: int, lanes: int, band_bytes: int
) -> list[tuple[int, int, int]]:
    """Return the bands of rows that cover the first spatial axis.

    Returns:
        For each size of bands: its rows, how many such bands there are, and positions of one.
    """
    total = problem.out[0] if len(problem.out) > 1 else 1

    def positions(rows: int) -> int:
        out = (rows, *problem.out[1:]) if len(problem.out) > 1 else problem.out
        return span_of(out, phases.pitches)

    best = None
    for rows in range(1, total + 1):
        size = positions(rows)
        if rows > 1 and height * size * 4 > band_bytes:
            break
        count, rest = divmod(total, rows)
        vectors = count * -(-size // lanes) + (-(-positions(rest) // lanes) if rest else 0)
        estimate = (vectors * (REMAINDER if rest else 1.0), -rows)
        if best is None or estimate < best[0]:
            best = (estimate, rows)
    assert best is not None
    return [(rows, count, positions(rows)) for count, _, rows in spans(total, best[1])]


SHALLOW = 256
"""Products per result below which channels-first images keep their layout. Chosen: moving the
channels into the lanes and back takes some eight instructions for each vector of results, which
beside fewer multiply-adds than these is more than a few hundredths."""


class DirectSpatial(KernelRule[ConvProblem, SpatialPlan, Cpu]):
    """The rule that writes channels-first convolutions with positions in the vector lanes."""

    name = "conv spatial"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the data is channels first and its positions fill a vector."""
        if problem.depthwise or problem.channels_last:
            return False
        return prod(problem.out) >= machine.lanes("float32")

    def worthwhile(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether output channels do not fill a vector, or results have few products."""
        narrow = problem.co_group < machine.lanes("float32")
        return narrow or problem.depth < SHALLOW

    def default(self, problem: ConvProblem, machine: Cpu) -> SpatialPlan:
        """Return the tile of channels by vectors that is estimated to cost least."""
        return SpatialPlan(channels_of(machine, problem.co_group, positions_of(problem, machine)))

    def neighbours(
        self, problem: ConvProblem, plan: SpatialPlan, machine: Cpu
    ) -> Iterator[SpatialPlan]:
        """Yield other tiles."""
        total = positions_of(problem, machine) // machine.lanes("float32")
        wide = plan.vectors or vectors_of(machine, plan.block, total)
        for height in near(plan.block, min(MOST_CHANNELS, problem.co_group)):
            widths = [v for v in range(1, MOST_VECTORS + 1) if fits(machine, height, v)]
            if widths:
                yield replace(plan, block=height, vectors=min(wide, max(widths)))
        for vectors in near(wide, MOST_VECTORS):
            if fits(machine, plan.block, vectors):
                yield replace(plan, vectors=vectors)

    def pack(
        self, problem: ConvProblem, plan: SpatialPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [groups, blocks, input channels, *kernel, block]."""
        split = in_blocks(problem, weight, plan.block)
        return split.transpose(0, 1, 3, *range(4, 4 + problem.dims), 2)

    def reference(self, problem: ConvProblem, plan: SpatialPlan, *operands: te.Tensor) -> te.Tensor:
        """Return the sums of data times packed weight."""
        data, weight = operands
        taps, block = taps_of(problem), int(weight.shape[-1])

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            return weight(group, b, channel, *taps, r)

        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: SpatialPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops, bands of rows after the image was split into phases."""
        return _Spatial(problem, plan, epilogue).write()
