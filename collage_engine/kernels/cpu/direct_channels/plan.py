"""Says how a convolution with output channels in the lanes is cut into tiles, blocks and chunks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    best_positions,
    block_of,
    near,
)
from collage_engine.kernels.cpu.writing.tile_plan import TilePlan
from collage_engine.kernels.rule import AtLeastOne, KernelRule, PlanError, ProblemT
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import divisor

LEAST_STEPS = 64
"""Steps of the reduction in one chunk below which the default keeps all input channels together.
Chosen: a tile loads and stores its sums once a chunk, which is then little beside 64 steps. Tuning
tries half of them, too."""


class ChannelsPlan(TilePlan, frozen=True):
    """The parameters of kernels with output channels in the vector lanes."""

    chunk: AtLeastOne
    """Input channels whose weights stay in the first-level cache together; all of them when sums
    stay in registers throughout."""
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

    def cut(self, cpu: Cpu, block: int) -> ChannelsPlan:
        """Returns the plan with blocks of so many vectors, and the tile and chunk that suit them.

        While one chunk's weights lie in the first-level cache, all tiles of a group of positions
        use them; sums wait in a buffer between chunks. So weights come from memory once, in order.
        """
        per_channel = 4 * self.taps * block * cpu.lanes("float32")
        chunk = self.depth
        if self.depth * per_channel > cpu.l1_bytes // 2:
            fitting = divisor(self.depth, max(1, cpu.l1_bytes // 2 // per_channel))
            # Short chunks would spend their time on loading and storing sums.
            chunk = fitting if fitting * self.taps >= LEAST_STEPS else self.depth
        return ChannelsPlan(block, *best_positions(cpu, block, self.image), chunk)


class ByChannels(KernelRule[ProblemT, ChannelsPlan, Cpu]):
    """The base of rules with output channels in the lanes: how their kernels are cut."""

    plan_type = ChannelsPlan

    @staticmethod
    @abstractmethod
    def sizes_of(problem: ProblemT) -> ChannelSizes:
        """Returns what of a problem the plan depends on."""

    def default(self, problem: ProblemT, machine: Cpu) -> ChannelsPlan:
        """Returns the cut by the block that is estimated to cost least."""
        sizes = self.sizes_of(problem)
        block = block_of(machine, sizes.channels, sizes.image) // machine.lanes("float32")
        return sizes.cut(machine, block)

    def check(self, problem: ProblemT, plan: ChannelsPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the plan does not suit the sizes."""
        sizes = self.sizes_of(problem)
        plan.check_tile(sizes.channels, sizes.image, machine)
        if sizes.depth % plan.chunk:
            raise PlanError(f"chunks of {plan.chunk} channels for {sizes.depth} channels")

    def neighbours(
        self, problem: ProblemT, plan: ChannelsPlan, machine: Cpu
    ) -> Iterator[ChannelsPlan]:
        """Yields other blocks with what suits them, tiles, chunks, loop orders and groups."""
        sizes, lanes = self.sizes_of(problem), machine.lanes("float32")
        for block in near(plan.block, min(MOST_VECTORS, -(-sizes.channels // lanes))):
            cut = sizes.cut(machine, block)
            yield replace(cut, inside=plan.inside, group=plan.group)
        yield from plan.other_tiles(sizes.image, machine)
        chunks = [
            d
            for d in range(1, sizes.depth + 1)
            if sizes.depth % d == 0 and d * sizes.taps >= LEAST_STEPS // 2
        ]
        place = min(range(len(chunks)), key=lambda i: abs(chunks[i] - plan.chunk), default=0)
        for step in (place - 1, place + 1, len(chunks) - 1):
            if 0 <= step < len(chunks):
                yield replace(plan, chunk=chunks[step])
        for inside in (False, True):
            yield replace(plan, inside=inside)
        sums = 4 * plan.rows * sizes.image[1] * plan.block * lanes
        usual = plan.group or max(1, machine.l1_bytes * 2 // 3 // sums)
        for group in (usual // 2, usual * 2, usual * 8):
            if group >= 1:
                yield replace(plan, group=group)
