"""Says how a convolution with output channels in the lanes is cut into tiles, blocks and chunks."""

from __future__ import annotations

from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.writing.tile_choice import best_positions
from collage_engine.kernels.cpu.writing.tile_plan import TilePlan
from collage_engine.kernels.rule import AtLeastOne
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


def cut(problem: ConvProblem, cpu: Cpu, block: int) -> ChannelsPlan:
    """Returns the plan with blocks of so many vectors, and the tile and chunk that suit them.

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
