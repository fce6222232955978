"""Decides on direct convolutions of channels-first data, positions in the vector lanes.

It is preferred where there are fewer output channels than lanes, or so few products per result
that moving the image's channels into the lanes and back would not pay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np
from tvm import te
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.packing import in_blocks
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.convolution.reference import blocked_sum, taps_of
from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.direct_spatial.plan import (
    MOST_CHANNELS,
    MOST_VECTORS,
    SpatialPlan,
    band_bytes,
)
from collage_engine.kernels.cpu.direct_spatial.tile import channels_of, positions_of, vectors_of
from collage_engine.kernels.cpu.direct_spatial.writer import write
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import near
from collage_engine.kernels.cpu.writing.tile_cost import fits
from collage_engine.kernels.note import note
from collage_engine.kernels.rule import KernelRule, PlanError
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt

SHALLOW = 256
"""Products per result below which channels-first images keep their layout. Chosen: moving the
channels into the lanes and back takes some eight instructions for each vector of results, which
beside fewer multiply-adds than these is more than a few hundredths."""
LEAST_BAND, MOST_BAND = 1 / 8, 1 / 2
"""The smallest band that tuning tries as a share of the first-level cache, and the largest one as a
share of the second level; chosen."""


class DirectSpatial(KernelRule[ConvProblem, SpatialPlan, Cpu]):
    """The rule that writes channels-first convolutions with positions in the vector lanes."""

    name = "conv spatial"
    problem_type = ConvProblem
    plan_type = SpatialPlan

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
        """Returns the tile of channels by vectors that is estimated to cost least."""
        return SpatialPlan(channels_of(machine, problem.co_group, positions_of(problem, machine)))

    def neighbours(
        self, problem: ConvProblem, plan: SpatialPlan, machine: Cpu
    ) -> Iterator[SpatialPlan]:
        """Yields other tiles, bands and loop orders."""
        total = positions_of(problem, machine) // machine.lanes("float32")
        wide = plan.vectors or vectors_of(machine, plan.block, total)
        for height in near(plan.block, min(MOST_CHANNELS, problem.co_group)):
            widths = [v for v in range(1, MOST_VECTORS + 1) if fits(machine, height, v)]
            if widths:
                yield replace(plan, block=height, vectors=min(wide, max(widths)))
        for vectors in near(wide, MOST_VECTORS):
            if fits(machine, plan.block, vectors):
                yield replace(plan, vectors=vectors)
        now = band_bytes(plan, machine)
        for band in (now // 2, now * 2):
            if LEAST_BAND * machine.l1_bytes <= band <= MOST_BAND * machine.l2_bytes:
                yield replace(plan, band=band)
        for inside in (False, True):
            yield replace(plan, inside=inside)

    def check(self, problem: ConvProblem, plan: SpatialPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the tile has more channels than the group, or does not fit."""
        if plan.block > problem.co_group:
            raise PlanError(f"tiles of {plan.block} channels for {problem.co_group} channels")
        if plan.vectors is not None and not fits(machine, plan.block, plan.vectors):
            raise PlanError(f"{plan.block} channels by {plan.vectors} vectors do not fit")

    def pack(
        self, problem: ConvProblem, plan: SpatialPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Returns the weight as [groups, blocks, input channels, *kernel, block]."""
        split = in_blocks(problem, weight, plan.block)
        return split.transpose(0, 1, 3, *range(4, 4 + problem.dims), 2)

    def reference(self, problem: ConvProblem, plan: SpatialPlan, *operands: te.Tensor) -> te.Tensor:
        """Returns the sums of data times packed weight."""
        data, weight = operands
        taps, block = taps_of(problem), int(weight.shape[-1])

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            return weight(group, b, channel, *taps, r)

        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: SpatialPlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops, bands of rows after the image was split into phases."""
        return write(ConvShape.of(problem, epilogue.anchor), plan, epilogue, epilogue.context)
