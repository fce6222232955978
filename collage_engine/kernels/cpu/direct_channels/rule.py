"""Decides on direct convolutions with output channels in the vector lanes.

For data with channels last, and for channels-first images where many products use what moving
the channels into the lanes and back costs. It can write every convolution that is not depthwise.
"""

from __future__ import annotations

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.convolution.reference import blocked_sum, in_blocks, taps_of
from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.direct_channels.plan import (
    ByChannels,
    ChannelSizes,
    ChannelsPlan,
)
from collage_engine.kernels.cpu.direct_channels.writer import write
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.note import note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt


class DirectChannels(ByChannels[ConvProblem]):
    """The rule that writes convolutions with output channels in the vector lanes."""

    name = "conv channels"
    problem_type = ConvProblem

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the convolution is not depthwise."""
        return not problem.depthwise

    @staticmethod
    def sizes_of(problem: ConvProblem) -> ChannelSizes:
        """Returns the sizes of a group, and the image of its positions."""
        return ChannelSizes(problem.co_group, problem.ci_group, problem.taps, problem.image)

    def pack(
        self, problem: ConvProblem, plan: ChannelsPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Returns the weight as [groups, blocks, chunks, *kernel, channels of a chunk, block]."""
        split = in_blocks(problem, weight, plan.block * machine.lanes("float32"))
        groups, blocks, block, ci, *kernel = split.shape
        split = split.reshape(groups, blocks, block, ci // plan.chunk, plan.chunk, *kernel)
        return split.transpose(0, 1, 3, *range(5, 5 + problem.dims), 4, 2)

    def reference(
        self, problem: ConvProblem, plan: ChannelsPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Returns the sums of data times packed weight."""
        data, weight = operands
        taps, chunk = taps_of(problem), int(weight.shape[-2])

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            outer, inside = tirx.floordiv(channel, chunk), tirx.floormod(channel, chunk)
            return weight(group, b, outer, *taps, inside, r)

        block = int(weight.shape[-1])
        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: ChannelsPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops, the data made ready where that is needed."""
        return write(ConvShape.of(problem, epilogue.anchor), plan, epilogue, epilogue.context)
