"""Decides on convolutions with few channels a group, which matrix tiles would waste."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collage_engine.kernels.cuda.cuda_rule import CudaRule
from collage_engine.kernels.cuda.direct.plan import (
    DirectPlan,
    DirectProblem,
    direct_chosen,
    direct_plans,
)
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.rule import PlanError


class DirectConvolution(CudaRule[DirectProblem, DirectPlan]):
    """The rule by which a block of threads computes pixels of some groups from shared memory."""

    name = "Direct"
    problem_type = DirectProblem
    plan_type = DirectPlan

    def matches(self, problem: DirectProblem, machine: Gpu) -> bool:
        """Tells whether any plan fits a block of threads."""
        return next(direct_plans(problem), None) is not None

    def default(self, problem: DirectProblem, machine: Gpu) -> DirectPlan:
        """Returns the plan that the model of the device expects to be fastest."""
        plan = direct_chosen(problem, machine)
        if plan is None:
            raise PlanError(f"no plan fits {problem}")
        return plan

    def neighbours(
        self, problem: DirectProblem, plan: DirectPlan, machine: Gpu
    ) -> Iterator[DirectPlan]:
        """Returns all other plans: there are some twenty."""
        return (other for other in direct_plans(problem) if other != plan)

    def check(self, problem: DirectProblem, plan: DirectPlan, machine: Gpu) -> None:
        """Raises ``PlanError`` where a block cannot hold the plan or the work is not divided."""
        divided = (
            problem.rows % plan.row == 0
            and problem.groups % plan.groups == 0
            and problem.channels % plan.deep == 0
        )
        if not divided or not plan.fits(problem):
            raise PlanError(f"{plan.name} does not fit {problem}")

    def bare_operands(self, problem: DirectProblem) -> tuple[Any, ...]:
        """Returns the image and the filters."""
        from tvm import te

        image = (problem.batch, problem.groups * problem.channels, *problem.image)
        filters = (problem.groups, problem.channels, *problem.taps, problem.rows)
        return (
            te.placeholder(image, problem.dtype, name="image"),
            te.placeholder(filters, problem.dtype, name="filters"),
        )

    def reference(self, problem: DirectProblem, plan: DirectPlan, *operands: Any) -> Any:
        """Returns the convolution of plain arrays; of 8-bit values the sums."""
        from collage_engine.kernels.cuda.direct.reference import direct_out, noted_direct, summed

        image, filters = operands
        out = (problem.batch, problem.groups * problem.rows, *problem.out)
        whole = noted_direct(lambda *at: image(*at), filters, problem, plan, out)
        given = problem.dtype if problem.item > 1 else summed(problem)
        return direct_out(whole, problem, out, given)

    def write(self, problem: DirectProblem, plan: DirectPlan, epilogue: Any) -> Any:
        """Returns the schedule of the function that holds the convolution and what follows it."""
        from collage_engine.kernels.cuda.direct.schedule import scheduled_direct

        return scheduled_direct(epilogue)
