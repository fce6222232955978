"""Finds the plan that a legalisation follows: the tuned table's, else the rule's default."""

from __future__ import annotations

from collections.abc import Callable

from collage_engine.kernels.cuda.direct.plan import DirectPlan, DirectProblem
from collage_engine.kernels.cuda.gpu import Gpu
from collage_engine.kernels.cuda.product.plan import ProductPlan, ProductSizes
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.registry import decide
from collage_engine.records.errors import ToolchainError

ProductPlans = Callable[[ProductSizes, str], ProductPlan]
"""A function that returns the plan of a product, given its sizes and arithmetic."""
DirectPlans = Callable[[DirectProblem], DirectPlan | None]
"""A function that returns the plan of a convolution; None where no plan fits."""


def product_planner(architecture: str) -> ProductPlans:
    """Returns the plans of products on an architecture."""

    def plan(sizes: ProductSizes, math: str) -> ProductPlan:
        decision = decide(ProductProblem(sizes, math), Gpu(architecture))
        if decision is None:
            raise ToolchainError(f"no kernel rule takes a product of {sizes}")
        return decision.plan

    return plan


def direct_planner(architecture: str) -> DirectPlans:
    """Returns the plans of convolutions with few channels a group on an architecture."""

    def plan(problem: DirectProblem) -> DirectPlan | None:
        decision = decide(problem, Gpu(architecture))
        return None if decision is None else decision.plan

    return plan
