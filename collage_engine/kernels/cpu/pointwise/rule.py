"""Decides on kernels without an anchor: elementwise stages, broadcasts, moves, and reductions."""

from __future__ import annotations

from typing import Any

from tvm import te

from collage_engine.kernels.cpu.reductions import write_program
from collage_engine.kernels.program import Program
from collage_engine.kernels.rule import KernelRule, NoPlan
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Stmt


class Pointwise(KernelRule[Program, NoPlan, Cpu]):
    """The rule that writes programs of plain stages, stage by stage or row by row."""

    name = "pointwise"
    problem_type = Program

    def matches(self, problem: Program, machine: Cpu) -> bool:
        """Return whether it is a program without a reduction."""
        return not any(stage.is_reduction for stage in problem.stages)

    def default(self, problem: Program, machine: Cpu) -> NoPlan:
        """Returns the empty plan: the rule has nothing to choose."""
        return NoPlan()

    def reference(self, problem: Program, plan: NoPlan, *operands: te.Tensor) -> Program:
        """Returns the program itself."""
        return problem

    def write(self, problem: Program, plan: NoPlan, epilogue: Any) -> Stmt:
        """Returns the loops.

        ``epilogue`` is the context alone, since nothing follows a whole program.
        """
        return write_program(problem, epilogue)


class RowChains(Pointwise):
    """The rule that writes reductions row by row where stages agree on leading axes.

    They are softmax, normalisations, means and pools.
    """

    name = "rows"

    def matches(self, problem: Program, machine: Cpu) -> bool:
        """Return whether it is a program with a reduction."""
        return not super().matches(problem, machine)
