"""Decides on products of matrices by tiles, on plain threads or on tensor cores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from collage_engine.kernels.cuda.cuda_rule import CudaRule
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.indices import worthwhile
from collage_engine.kernels.cuda.product.fragments import ELEMENTS, SUMS
from collage_engine.kernels.cuda.product.plan import (
    PLAIN,
    S8,
    ProductPlan,
    chosen,
    plans,
    tiles_for,
)
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.rule import PlanError

LAUNCH_S = 2e-6
"""Seconds of one more kernel launch; chosen. It decides only between plans that are then measured
as candidates."""
BYTES_PER_S = 1e12
"""Bytes per second at which parts of sums are read and written; chosen, a round number below what
data-centre devices reach. It decides only between plans that are then measured as candidates."""


class TiledProduct(CudaRule[ProductProblem, ProductPlan]):
    """A block of threads computes a tile of the result from slices in shared memory."""

    name = "Product"
    problem_type = ProductProblem
    plan_type = ProductPlan

    def matches(self, problem: ProductProblem, machine: Gpu) -> bool:
        """Tells whether the product is large enough for tiles."""
        return worthwhile(problem.sizes)

    def default(self, problem: ProductProblem, machine: Gpu) -> ProductPlan:
        """Returns the plan that the model of the device expects to be fastest."""
        return chosen(problem.sizes, problem.math, machine)

    def neighbours(
        self, problem: ProductProblem, plan: ProductPlan, machine: Gpu
    ) -> Iterator[ProductPlan]:
        """Returns all other plans: there are some twenty."""
        return (other for other in plans(problem.sizes, problem.math, machine) if other != plan)

    def check(self, problem: ProductProblem, plan: ProductPlan, machine: Gpu) -> None:
        """Raises ``PlanError`` for a tile of other arithmetic, and for split integers."""
        if plan.tile not in tiles_for(problem.math):
            raise PlanError(f"there is no tile {plan.tile} for {problem.math} arithmetic")
        if plan.split > 1 and problem.math == S8:
            raise PlanError("sums of integers are not split")

    def gives_parts(self, plan: ProductPlan) -> bool:
        """Tells whether the sums are split."""
        return plan.split > 1

    def adding_s(self, problem: ProductProblem, plan: ProductPlan) -> float:
        """Returns a launch, and the time to move the parts."""
        if plan.split == 1:
            return 0.0
        size = problem.sizes
        return LAUNCH_S + 4.0 * size.s * size.m * size.n * (plan.split + 1) / BYTES_PER_S

    def bare_operands(self, problem: ProductProblem) -> tuple[Any, ...]:
        """Returns a and B."""
        from tvm import te

        size, element = problem.sizes, ELEMENTS.get(problem.math, "float32")
        return (
            te.placeholder((size.s, size.m, size.k), element, name="a"),
            te.placeholder((size.s, size.k, size.n), element, name="b"),
        )

    def reference(self, problem: ProductProblem, plan: ProductPlan, *operands: Any) -> Any:
        """Returns C in the type in which it leaves the kernel; of a split sum, its parts."""
        from collage_engine.kernels.cuda.product.forms import Matmul, result_of

        left, right = operands
        size, element = problem.sizes, ELEMENTS.get(problem.math, "float32")
        form = Matmul((size.s, size.m, size.k), (size.s, size.k, size.n), (size.s, size.m, size.n))
        as_sums = plan.split > 1 or problem.math in (PLAIN, *SUMS)
        given = SUMS.get(problem.math, "float32") if as_sums else element
        return result_of(form, left, right, plan, element, given)

    def write(self, problem: ProductProblem, plan: ProductPlan, epilogue: Any) -> Any:
        """Returns the schedule of the function that holds the product and what follows it."""
        from collage_engine.kernels.cuda.product.schedule import scheduled

        return scheduled(epilogue)
