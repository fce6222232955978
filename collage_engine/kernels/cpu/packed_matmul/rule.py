"""Decides on products with a constant right operand that is packed by blocks of columns.

The packed operand is the weight of a convolution of single points: rows are positions, columns are
output channels, and the kernel is that of ``direct_channels``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.shape import ConvShape, of_points
from collage_engine.kernels.cpu.direct_channels.plan import (
    ByChannels,
    ChannelSizes,
    ChannelsPlan,
)
from collage_engine.kernels.cpu.direct_channels.writer import write
from collage_engine.kernels.cpu.matmul.problem import PackedMatmul
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.expressions import NotUnderstood, loads
from collage_engine.kernels.note import note
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.target import SUMS_IN_FLIGHT, Cpu
from collage_engine.kernels.tir_builder import Index, Stmt, split_index


class PackedProduct(ByChannels[PackedMatmul]):
    """The rule that writes products with a constant matrix; one row is bound by reading that."""

    name = "matmul packed"
    problem_type = PackedMatmul

    @staticmethod
    def sizes_of(problem: PackedMatmul) -> ChannelSizes:
        """Returns the product as a convolution of points."""
        return ChannelSizes(problem.columns, problem.depth, 1, (problem.rows, 1))

    def matches(self, problem: PackedMatmul, machine: Cpu) -> bool:
        """Tells that any such product can be written."""
        return True

    def default(self, problem: PackedMatmul, machine: Cpu) -> ChannelsPlan:
        """Returns the cut of the convolution of points.

        Of one row, a block has enough sums in flight to hide the latency of a multiply-add.
        """
        if problem.rows > 1:
            return super().default(problem, machine)
        vectors = -(-problem.columns // machine.lanes("float32"))
        return ChannelsPlan(min(SUMS_IN_FLIGHT, vectors), 1, 1, problem.depth)

    def neighbours(
        self, problem: PackedMatmul, plan: ChannelsPlan, machine: Cpu
    ) -> Iterator[ChannelsPlan]:
        """Yields those of the convolution of points; of one row all other blocks."""
        if problem.rows > 1:
            yield from super().neighbours(problem, plan, machine)
            return
        vectors = -(-problem.columns // machine.lanes("float32"))
        for block in range(1, min(2 * SUMS_IN_FLIGHT, vectors) + 1):
            if block != plan.block:
                yield ChannelsPlan(block, 1, 1, problem.depth)

    def pack(
        self, problem: PackedMatmul, plan: ChannelsPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return [depth, columns] as [1, blocks, chunks, 1, chunk's depth, block], zeros behind."""
        block = plan.block * machine.lanes("float32")
        blocks = -(-problem.columns // block)
        padded = np.zeros((problem.depth, blocks * block), weight.dtype)
        padded[:, : problem.columns] = weight
        split = padded.reshape(problem.depth // plan.chunk, plan.chunk, blocks, block)
        return split.transpose(2, 0, 1, 3)[None, :, :, None]

    def reference(
        self, problem: PackedMatmul, plan: ChannelsPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Returns the sums over the packed operand.

        The left operand may have several leading axes.
        """
        left, right = operands
        _, _, chunks, _, chunk, block = (int(e) for e in right.shape)
        k = te.reduce_axis((0, chunks * chunk), "k")

        def element(*index: Index) -> Expr:
            *lead, n = index
            weight = right(
                0,
                tirx.floordiv(n, block),
                tirx.floordiv(k, chunk),
                0,
                tirx.floormod(k, chunk),
                tirx.floormod(n, block),
            )
            return te.sum(left(*lead, k) * weight, axis=k)

        out = (*left.shape[:-1], problem.columns)
        return te.compute(out, element, name="matmul", attrs=note(self, problem, plan))

    def write(self, problem: PackedMatmul, plan: ChannelsPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops: rows of all leading axes are positions of a convolution of points."""
        anchor, context = epilogue.anchor, epilogue.context
        left, right = operands_of(epilogue)
        lead = anchor.extents[:-1]
        rows, columns, depth = prod(lead), anchor.extents[-1], shape_of(left)[-1]
        points = ConvShape(channels_last=True, **of_points(left, right, rows, depth, columns))
        return write(points, plan, _Rows(epilogue, lead), context)


def operands_of(epilogue: Epilogue) -> tuple[Index, Index]:
    """Returns the buffers of a product's operands.

    Raises:
        NotUnderstood: The block does not read two tensors.
    """
    sources = [access.source for access in loads(epilogue.anchor.value)]
    if len(sources) != 2:
        raise NotUnderstood("a product that does not read two tensors")
    return sources[0], sources[1]


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
