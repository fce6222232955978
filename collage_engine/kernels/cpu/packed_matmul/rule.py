"""Decides on products with a constant right operand that is packed by blocks of columns.

The packed operand is the weight of a convolution of single points: rows are positions, columns are
output channels, and the kernel is that of ``direct_channels``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeVar

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.shape import ConvShape, of_points
from collage_engine.kernels.cpu.direct_channels.channel_tiles import ChannelSizes, ChannelsPlan
from collage_engine.kernels.cpu.direct_channels.writer import write
from collage_engine.kernels.cpu.matmul.problem import PackedMatmul
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.expressions import NotUnderstood, loads
from collage_engine.kernels.note import note
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne, KernelRule, Plan, PlanError
from collage_engine.kernels.target import SUMS_IN_FLIGHT, Cpu
from collage_engine.kernels.tir_builder import Index, Stmt, split_index

AnyPlan = TypeVar("AnyPlan", bound=Plan)


class Packed(KernelRule[PackedMatmul, AnyPlan, Cpu]):
    """The base of rules for products with a packed operand: the packing and the kernel."""

    problem_type = PackedMatmul

    @abstractmethod
    def cut(self, problem: PackedMatmul, plan: AnyPlan) -> ChannelsPlan:
        """Returns the plan of the convolution of points that the product is written as."""

    def pack(
        self, problem: PackedMatmul, plan: AnyPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return [depth, columns] as [1, blocks, chunks, 1, chunk's depth, block], zeros behind."""
        cut = self.cut(problem, plan)
        block = cut.block * machine.lanes("float32")
        blocks = -(-problem.columns // block)
        padded = np.zeros((problem.depth, blocks * block), weight.dtype)
        padded[:, : problem.columns] = weight
        split = padded.reshape(problem.depth // cut.chunk, cut.chunk, blocks, block)
        return split.transpose(2, 0, 1, 3)[None, :, :, None]

    def reference(self, problem: PackedMatmul, plan: AnyPlan, *operands: te.Tensor) -> te.Tensor:
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

    def write(self, problem: PackedMatmul, plan: AnyPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops: rows of all leading axes are positions of a convolution of points."""
        anchor, context = epilogue.anchor, epilogue.context
        left, right = operands_of(epilogue)
        lead = anchor.extents[:-1]
        rows, columns, depth = prod(lead), anchor.extents[-1], shape_of(left)[-1]
        points = ConvShape(channels_last=True, **of_points(left, right, rows, depth, columns))
        return write(points, self.cut(problem, plan), _Rows(epilogue, lead), context)


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


class PackedRows(Packed[ChannelsPlan]):
    """The rule that writes products of several rows with a constant matrix."""

    name = "matmul packed"
    plan_type = ChannelsPlan

    def matches(self, problem: PackedMatmul, machine: Cpu) -> bool:
        """Tells whether there are several rows."""
        return problem.rows > 1

    def default(self, problem: PackedMatmul, machine: Cpu) -> ChannelsPlan:
        """Returns the cut of the convolution of points."""
        return sizes_of(problem).default(machine)

    def neighbours(
        self, problem: PackedMatmul, plan: ChannelsPlan, machine: Cpu
    ) -> Iterator[ChannelsPlan]:
        """Returns those of the convolution of points."""
        return sizes_of(problem).neighbours(plan, machine)

    def check(self, problem: PackedMatmul, plan: ChannelsPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the plan does not suit the sizes."""
        sizes_of(problem).check(plan, machine)

    def cut(self, problem: PackedMatmul, plan: ChannelsPlan) -> ChannelsPlan:
        """Returns the plan itself."""
        return plan


def sizes_of(problem: PackedMatmul) -> ChannelSizes:
    """Returns the product as a convolution of points."""
    return ChannelSizes(problem.columns, problem.depth, 1, (problem.rows, 1))


class RowPlan(Plan, frozen=True):
    """The parameter of a product of one row with a constant matrix."""

    block: AtLeastOne
    """Columns per block, counted in vectors."""


class PackedRow(Packed[RowPlan]):
    """Products of one row: bound by reading the operand once."""

    name = "matmul row"
    plan_type = RowPlan

    def matches(self, problem: PackedMatmul, machine: Cpu) -> bool:
        """Tells whether there is one row."""
        return problem.rows == 1

    def default(self, problem: PackedMatmul, machine: Cpu) -> RowPlan:
        """Returns a block with enough sums in flight to hide the latency of a multiply-add."""
        return RowPlan(min(SUMS_IN_FLIGHT, -(-problem.columns // machine.lanes("float32"))))

    def neighbours(self, problem: PackedMatmul, plan: RowPlan, machine: Cpu) -> Iterator[RowPlan]:
        """Yields all other blocks."""
        vectors = -(-problem.columns // machine.lanes("float32"))
        for block in range(1, min(2 * SUMS_IN_FLIGHT, vectors) + 1):
            if block != plan.block:
                yield RowPlan(block)

    def check(self, problem: PackedMatmul, plan: RowPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where a block has more vectors than the row."""
        if plan.block > -(-problem.columns // machine.lanes("float32")):
            raise PlanError(f"blocks of {plan.block} vectors for {problem.columns} columns")

    def cut(self, problem: PackedMatmul, plan: RowPlan) -> ChannelsPlan:
        """Returns one position, the whole depth at once."""
        return ChannelsPlan(plan.block, problem.depth, 1, 1)
