"""Says how a convolution or product with output channels in the lanes is cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_POSITIONS,
    MOST_VECTORS,
    best_positions,
    block_of,
    near,
)
from collage_engine.kernels.cpu.writing.tile_cost import fits
from collage_engine.kernels.rule import Plan, PlanError, parameter
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import divisor

LEAST_STEPS = 64
"""Steps of the reduction in one chunk below which the default keeps all input channels together.
Chosen: a tile loads and stores its sums once a chunk, which is then little beside 64 steps."""
LEAST_TRIED_STEPS = 32
"""Steps of the reduction that a chunk has at least where tuning tries it. Chosen: half of
``LEAST_STEPS``."""


@dataclass(frozen=True)
class ChannelsPlan(Plan):
    """The parameters of kernels with output channels in the vector lanes."""

    block: int = parameter(least=1, most=16)
    """Output channels per block, counted in vectors."""
    chunk: int = parameter(least=1)
    """Input channels whose weights stay in the first-level cache together; all of them when sums
    stay in registers throughout."""
    rows: int = parameter(least=1)
    columns: int = parameter(least=1)
    """Positions of a register tile: parts of one row, or several whole rows of an image."""
    turn: Literal["group", "whole"] | None = None
    """Whether channels-first data becomes channels last group by group of positions, or as a whole
    before; None: group by group where that stays in the second-level cache."""
    inside: bool | None = None
    """Whether blocks of channels are the inner loop and positions the outer one; None: where the
    weight fits half the second-level cache."""
    ahead: Literal["tile", "step"] | None = None
    """Whether the next chunk's weights are fetched before each tile or a little in every step;
    None: in every step at one thread."""
    group: int | None = parameter(None, least=1)
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
    turns: bool = False
    """Whether channels-first data can be turned group by group."""

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
        if self.turns:
            for turn in ("group", "whole"):
                yield replace(plan, turn=turn)
        yield from self._other_blocks(plan, cpu)
        yield from self._other_tiles(plan, cpu)
        chunks = [
            d
            for d in range(1, self.depth + 1)
            if self.depth % d == 0 and d * self.taps >= LEAST_TRIED_STEPS
        ]
        place = min(range(len(chunks)), key=lambda i: abs(chunks[i] - plan.chunk), default=0)
        for step in (place - 1, place + 1, len(chunks) - 1):
            if 0 <= step < len(chunks):
                yield replace(plan, chunk=chunks[step])
        for inside in (False, True):
            yield replace(plan, inside=inside)
        if cpu.threads == 1:
            yield replace(plan, ahead="tile" if plan.ahead != "tile" else "step")
        yield from self._other_groups(plan, cpu)

    def _other_blocks(self, plan: ChannelsPlan, cpu: Cpu) -> Iterator[ChannelsPlan]:
        """Yields other blocks, each with the tile and the chunk that suit it."""
        lanes = cpu.lanes("float32")
        for block in near(plan.block, min(MOST_VECTORS, -(-self.channels // lanes))):
            rows, columns = best_positions(cpu, block, self.image)
            per_channel = 4 * self.taps * block * lanes
            chunk = divisor(self.depth, max(1, cpu.l1_bytes // 2 // per_channel))
            chunk = chunk if chunk * self.taps >= LEAST_TRIED_STEPS else self.depth
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
