"""Decides on batched products of two values that are known only at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tvm import te
from tvm.ir import Expr

from collage_engine.kernels.cpu.matmul.problem import RuntimeMatmul
from collage_engine.kernels.cpu.packed_matmul.rule import operands_of
from collage_engine.kernels.cpu.runtime_matmul.plan import RuntimePlan
from collage_engine.kernels.cpu.runtime_matmul.writer import write
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_POSITIONS,
    MOST_VECTORS,
    block_of,
    near,
)
from collage_engine.kernels.cpu.writing.tile_cost import cost, fits
from collage_engine.kernels.note import note
from collage_engine.kernels.rule import KernelRule, PlanError
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt

PACK_ROWS = 32
"""Rows from which copying a right operand that exceeds the first-level cache pays by default.
Chosen: a copy reads and writes each element once, little beside 32 uses of it."""


class RuntimeProduct(KernelRule[RuntimeMatmul, RuntimePlan, Cpu]):
    """The rule that writes products of two values that are known only at run time."""

    name = "matmul runtime"
    problem_type = RuntimeMatmul
    plan_type = RuntimePlan

    def matches(self, problem: RuntimeMatmul, machine: Cpu) -> bool:
        """Tells whether both operands are matrices."""
        return min(len(problem.left), len(problem.right)) >= 2

    def default(self, problem: RuntimeMatmul, machine: Cpu) -> RuntimePlan:
        """Returns the block and the tile that are estimated to cost least."""
        lanes = machine.lanes("float32")
        block = block_of(machine, problem.columns, (problem.rows, 1), chunks=False) // lanes
        large = 4 * problem.depth * problem.columns > machine.l1_bytes
        pack = problem.rows >= PACK_ROWS and large
        return RuntimePlan(block, height_of(machine, problem.rows, block), pack)

    def neighbours(
        self, problem: RuntimeMatmul, plan: RuntimePlan, machine: Cpu
    ) -> Iterator[RuntimePlan]:
        """Yields the other way to read the right operand, other blocks and tiles."""
        yield replace(plan, pack=not plan.pack)
        vectors = -(-problem.columns // machine.lanes("float32"))
        for block in near(plan.block, min(MOST_VECTORS, vectors)):
            rows = height_of(machine, problem.rows, block)
            yield replace(plan, block=block, rows=rows)
        for rows in near(plan.rows, min(problem.rows, MOST_POSITIONS)):
            if fits(machine, rows, plan.block):
                yield replace(plan, rows=rows)

    def check(self, problem: RuntimeMatmul, plan: RuntimePlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the tile is larger than the matrices or does not fit."""
        if plan.block > -(-problem.columns // machine.lanes("float32")):
            raise PlanError(f"blocks of {plan.block} vectors for {problem.columns} columns")
        if plan.rows > problem.rows:
            raise PlanError(f"tiles of {plan.rows} rows for {problem.rows} rows")
        if plan.rows > 1 and not fits(machine, plan.rows, plan.block):
            raise PlanError(f"{plan.rows} rows by {plan.block} vectors do not fit the registers")

    def reference(
        self, problem: RuntimeMatmul, plan: RuntimePlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Returns the sums of products, leading axes broadcast."""
        left, right = operands
        k = te.reduce_axis((0, int(left.shape[-1])), "k")

        def element(*index: Index) -> Expr:
            *batch, m, n = index

            def of(tensor: Any, *last: Index) -> Any:
                lead = [int(e) for e in tensor.shape[:-2]]
                places = batch[len(batch) - len(lead) :]
                return tensor(
                    *(p if e > 1 else 0 for p, e in zip(places, lead, strict=True)), *last
                )

            return te.sum(of(left, m, k) * of(right, k, n), axis=k)

        return te.compute(problem.out, element, name="matmul", attrs=note(self, problem, plan))

    def write(self, problem: RuntimeMatmul, plan: RuntimePlan, epilogue: Epilogue) -> Stmt:
        """Returns the loops, after a copy of the right operand where the plan says so."""
        return write(problem, plan, epilogue, *operands_of(epilogue))


def height_of(cpu: Cpu, rows: int, vectors: int) -> int:
    """Returns the rows of a register tile of so many vectors that are estimated to cost least."""
    most = min(MOST_POSITIONS, rows)
    heights = [h for h in range(1, most + 1) if fits(cpu, h, vectors)] or [1]
    return min(heights, key=lambda h: (cost(cpu, rows, vectors, h, vectors), -h))
