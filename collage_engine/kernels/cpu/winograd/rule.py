"""Decides on 3×3 convolutions by Winograd's method (Winograd 1980; Lavin and Gray 2016).

For data with channels last. Fewer products than multiplying out, for transforms of the data, the
weight and the results. It is preferred where both are estimated and it clearly saves time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace
from tvm import te
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.problem import ConvProblem, blocked_sum
from collage_engine.kernels.cpu.winograd import cost, matrices
from collage_engine.kernels.cpu.winograd.matrices import OUTPUTS, Outputs
from collage_engine.kernels.cpu.winograd.writer import WinogradPlan, write
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    near,
)
from collage_engine.kernels.rule import KernelRule, PlanError, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt


class Winograd(KernelRule[ConvProblem, WinogradPlan, Cpu]):
    """The rule that writes 3×3 convolutions by Winograd's method."""

    name = "conv winograd"
    problem_type = ConvProblem
    plan_type = WinogradPlan

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether it is a plain 3×3 convolution of enough channels, which are last."""
        return cost.takes(problem, machine)

    def worthwhile(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the estimates say clearly that it saves time."""
        return cost.worthwhile(machine, problem.co, problem.ci, problem.out)

    def default(self, problem: ConvProblem, machine: Cpu) -> WinogradPlan:
        """Return the size of tiles that is estimated to cost least."""
        outputs = cost.outputs_of(machine, problem.co, problem.ci, problem.out)
        return self._of_outputs(problem, machine, outputs)

    def _of_outputs(self, problem: ConvProblem, machine: Cpu, outputs: Outputs) -> WinogradPlan:
        tiles = cost.tiles_of(problem.out, outputs)
        block = cost.block(machine, problem.co, tiles[0] * tiles[1])
        group = cost.group_rows(machine, (problem.ci, problem.co), block, tiles, outputs)
        return WinogradPlan(outputs, block // machine.lanes("float32"), group)

    def neighbours(
        self, problem: ConvProblem, plan: WinogradPlan, machine: Cpu
    ) -> Iterator[WinogradPlan]:
        """Yield other sizes of tiles, blocks and groups."""
        for outputs in OUTPUTS:
            if outputs != plan.outputs:
                yield self._of_outputs(problem, machine, outputs)
        tile_rows, _ = cost.tiles_of(problem.out, plan.outputs)
        blocks = -(-problem.co // machine.lanes("float32"))
        for block in near(plan.block, min(MOST_VECTORS, blocks)):
            yield replace(plan, block=block)
        for group in (plan.group // 2, plan.group * 2, tile_rows):
            if 1 <= group <= tile_rows:
                yield replace(plan, group=group)

    def check(self, problem: ConvProblem, plan: WinogradPlan, machine: Cpu) -> None:
        """Raise ``PlanError`` where a block or group is too large or a tile does not fit."""
        tile_rows, _ = cost.tiles_of(problem.out, plan.outputs)
        if plan.block > -(-problem.co // machine.lanes("float32")):
            raise PlanError(f"blocks of {plan.block} vectors for {problem.co} channels")
        if plan.group > tile_rows:
            raise PlanError(f"groups of {plan.group} rows for {tile_rows} rows of tiles")

    def pack(
        self, problem: ConvProblem, plan: WinogradPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the transformed weight as [blocks, points, input channels, block]."""
        block = plan.block * machine.lanes("float32")
        return matrices.pack(weight.astype(np.float32), plan.outputs, block)

    def reference(
        self, problem: ConvProblem, plan: WinogradPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of data times the weight's elements, restored from transformed ones."""
        data, weight = operands
        taps, block = matrices.axes(), int(weight.shape[-1])

        def weight_at(_: Index, b: Index, channel: Index, r: Index) -> Expr:
            return matrices.tap(weight, b, r, channel, taps)

        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: WinogradPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops: transform, multiply and bring back, group by group of rows of tiles."""
        return write(problem, plan, epilogue, epilogue.context)
