"""Decides on depthwise convolutions, in which every channel (times a multiplier) is by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.convolution.reference import input_at, taps_of
from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.depthwise.plan import (
    MOST_VECTORS,
    DepthwiseFirstPlan,
    DepthwiseLastPlan,
)
from collage_engine.kernels.cpu.depthwise.writer import write_first, write_last
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import near
from collage_engine.kernels.note import note
from collage_engine.kernels.rule import KernelRule, PlanError
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt

TILE_ROWS = 4
"""Image rows of a register tile, at most, by default. Chosen: every further row shares fewer of its
taps' loads with the rows before."""
SUMS_IN_FLIGHT = 8
"""Sums of a register tile by default. Chosen: a multiply-add takes four or five cycles and up to
two start in each, so eight keep the pipes busy on every processor with vectors."""
MOST_ROWS = 8
"""Image rows of a register tile that tuning tries. Chosen: with one vector, ``SUMS_IN_FLIGHT``."""
MOST_COLUMNS = 14
"""Positions of a row that tuning tries, channels last. Chosen: the widths of images are mostly
multiples of seven, and two vectors of so many fit 32 registers."""
SPARE_REGISTERS = 2
"""Vector registers that hold no sums: one for the weight and one for the data."""
PLANES = (1, 2, 4, 8, 16)
"""Numbers of planes made together that tuning tries; chosen."""
BANDS = (2, 8, 32)
"""Numbers of rows padded together that tuning tries, channels last; chosen."""


class DepthwiseFirst(KernelRule[ConvProblem, DepthwiseFirstPlan, Cpu]):
    """The rule that writes depthwise convolutions of channels-first data."""

    name = "conv depthwise"
    problem_type = ConvProblem
    plan_type = DepthwiseFirstPlan

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the convolution is depthwise and its data channels first."""
        return problem.depthwise and not problem.channels_last

    def default(self, problem: ConvProblem, machine: Cpu) -> DepthwiseFirstPlan:
        """Returns the widest tile that keeps enough sums in flight."""
        vectors = min(MOST_VECTORS, -(-problem.out[-1] // machine.lanes("float32")))
        most = min(TILE_ROWS, SUMS_IN_FLIGHT // vectors, self._rows(problem))
        return DepthwiseFirstPlan(vectors, max(1, most))

    @staticmethod
    def _rows(problem: ConvProblem) -> int:
        return problem.out[-2] if problem.dims > 1 else 1

    def neighbours(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, machine: Cpu
    ) -> Iterator[DepthwiseFirstPlan]:
        """Yields other rows, vectors and numbers of planes."""
        wide = min(MOST_VECTORS, -(-problem.out[-1] // machine.lanes("float32")))
        registers = machine.registers - SPARE_REGISTERS
        for rows in near(plan.rows, min(MOST_ROWS, self._rows(problem))):
            if rows * plan.vectors <= registers:
                yield replace(plan, rows=rows)
        for vectors in near(plan.vectors, wide):
            if plan.rows * vectors <= registers:
                yield replace(plan, vectors=vectors)
        for planes in PLANES:
            yield replace(plan, planes=planes)

    def check(self, problem: ConvProblem, plan: DepthwiseFirstPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the tile is larger than the image or does not fit."""
        if plan.vectors > -(-problem.out[-1] // machine.lanes("float32")):
            raise PlanError(f"tiles of {plan.vectors} vectors for rows of {problem.out[-1]}")
        if plan.rows > self._rows(problem):
            raise PlanError(f"tiles of {plan.rows} rows for {self._rows(problem)} rows")
        if plan.rows > 1 and plan.rows * plan.vectors > machine.registers - SPARE_REGISTERS:
            raise PlanError(f"{plan.rows} rows by {plan.vectors} vectors do not fit the registers")

    def pack(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [channels, *kernel]."""
        return weight.astype(np.float32).reshape(problem.co, *problem.kernel)

    def reference(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Returns the sums of data times packed weight."""
        data, weight = operands
        taps = taps_of(problem)

        def element(*index: Index) -> Expr:
            c = index[1]
            source = c if problem.co == problem.ci else tirx.floordiv(c, problem.co // problem.ci)
            x = input_at(problem, data, index, taps, source)
            return te.sum(x * weight(c, *taps), axis=taps)

        return te.compute(problem.out_shape, element, name="conv", attrs=note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: DepthwiseFirstPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops, planes padded some at a time."""
        return write_first(ConvShape.of(problem, epilogue.anchor), plan, epilogue, epilogue.context)


class DepthwiseLast(KernelRule[ConvProblem, DepthwiseLastPlan, Cpu]):
    """The rule that writes depthwise convolutions of channels-last data."""

    name = "conv depthwise last"
    problem_type = ConvProblem
    plan_type = DepthwiseLastPlan

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the convolution is depthwise and its data channels last."""
        return problem.depthwise and problem.channels_last

    def default(self, problem: ConvProblem, machine: Cpu) -> DepthwiseLastPlan:
        """Returns two vectors by as many positions as divide the row, or as many as fit.

        At most eight positions are taken, and no more than the registers hold the sums of.
        """
        width = problem.out[-1]
        most = min(SUMS_IN_FLIGHT, (machine.registers - SPARE_REGISTERS) // 2, width)
        columns = max(c for c in range(1, most + 1) if width % c == 0)
        return DepthwiseLastPlan(2, most if 2 * columns < most else columns)

    def neighbours(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, machine: Cpu
    ) -> Iterator[DepthwiseLastPlan]:
        """Yields other positions, vectors and bands."""
        registers = machine.registers - SPARE_REGISTERS
        for columns in near(plan.columns, min(MOST_COLUMNS, problem.out[-1])):
            if columns * plan.vectors <= registers:
                yield replace(plan, columns=columns)
        for vectors in near(plan.vectors, MOST_VECTORS):
            if plan.columns * vectors <= registers:
                yield replace(plan, vectors=vectors)
        for band in BANDS:
            yield replace(plan, band=band)

    def check(self, problem: ConvProblem, plan: DepthwiseLastPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the tile is longer than a row or does not fit."""
        if plan.columns > problem.out[-1]:
            raise PlanError(f"tiles of {plan.columns} positions for rows of {problem.out[-1]}")
        most = max(SUMS_IN_FLIGHT * 2, machine.registers - SPARE_REGISTERS)
        if plan.columns * plan.vectors > most:
            raise PlanError(f"{plan.columns} positions by {plan.vectors} vectors do not fit")

    def pack(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [*kernel, channels]."""
        flat = weight.astype(np.float32).reshape(problem.co, *problem.kernel)
        return flat.transpose(*range(1, problem.dims + 1), 0)

    def reference(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Returns the sums of data times packed weight."""
        data, weight = operands
        taps = taps_of(problem)

        def element(*index: Index) -> Expr:
            x = input_at(problem, data, index, taps, index[-1])
            return te.sum(x * weight(*taps, index[-1]), axis=taps)

        return te.compute(problem.out_shape, element, name="conv", attrs=note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: DepthwiseLastPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops, images padded some rows at a time."""
        return write_last(ConvShape.of(problem, epilogue.anchor), plan, epilogue, epilogue.context)
