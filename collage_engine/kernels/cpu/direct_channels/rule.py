"""Decides on direct convolutions with output channels in the vector lanes, and on products.

For data with channels last, and for channels-first images where many products use what moving
the channels into the lanes and back costs. It can write every convolution that is not depthwise.
A product with a constant matrix is a convolution of single points: rows are positions, columns are
output channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.problem import (
    ConvProblem,
    blocked_sum,
    in_blocks,
    taps_of,
)
from collage_engine.kernels.cpu.direct_channels.channel_tiles import LEAST_STEPS, ChannelsPlan, cut
from collage_engine.kernels.cpu.direct_channels.writer import write
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import MOST_VECTORS, block_of, near
from collage_engine.kernels.rule import KernelRule, PlanError, note
from collage_engine.kernels.target import SUMS_IN_FLIGHT, Cpu
from collage_engine.kernels.tir_builder import Index, Stmt, split_index


class DirectChannels(KernelRule[ConvProblem, ChannelsPlan, Cpu]):
    """The rule that writes convolutions with output channels in the vector lanes."""

    name = "conv channels"
    problem_type = ConvProblem
    plan_type = ChannelsPlan

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether it is a convolution that is not depthwise."""
        return bool(problem.kernel) and not problem.depthwise

    def default(self, problem: ConvProblem, machine: Cpu) -> ChannelsPlan:
        """Return the cut by the block that is estimated to cost least."""
        block = block_of(machine, problem.co_group, problem.image) // machine.lanes("float32")
        return cut(problem, machine, block)

    def check(self, problem: ConvProblem, plan: ChannelsPlan, machine: Cpu) -> None:
        """Raise ``PlanError`` where the plan does not suit the sizes."""
        plan.check_tile(problem.co_group, problem.image, machine)
        if problem.ci_group % plan.chunk:
            raise PlanError(f"chunks of {plan.chunk} channels for {problem.ci_group} channels")

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
        """Return the loops, the data made ready where that is needed."""
        return write(problem, plan, epilogue, epilogue.context)


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

    def write(self, problem: ConvProblem, plan: ChannelsPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops: rows of all leading axes are positions of a convolution of points."""
        rows = _Rows(epilogue, epilogue.anchor.extents[:-1])
        return write(problem.of_points(), plan, rows, epilogue.context)


@dataclass(frozen=True)
class _Rows:
    """An epilogue over (row, column) for a product whose rows are several axes."""

    plain: Epilogue
    lead: tuple[int, ...]

    def collapsed(self, first: int, count: int) -> _Rows:
        return self

    def store(
        self, before: Sequence[Index], row: Index, after: Sequence[Index], accumulator: Any
    ) -> Stmt:
        together = self.plain.collapsed(0, len(self.lead)) if self.lead else None
        if together is not None:
            return together.store((), row, after, accumulator)
        places = split_index(row, self.lead) if self.lead else ()
        return self.plain.store((*places, *after), accumulator)
