"""Reads back, from a fused function, the decision that the legalisation noted in it."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from collage_engine.kernels.cuda.direct.rule import DirectConvolution
from collage_engine.kernels.cuda.direct.schedule import noted_as_direct
from collage_engine.kernels.cuda.product.note import annotated_product
from collage_engine.kernels.cuda.product.plan import ProductSizes
from collage_engine.kernels.cuda.product.problem import ProductProblem
from collage_engine.kernels.cuda.product.rule import TiledProduct
from collage_engine.kernels.registry import RULES
from collage_engine.kernels.rule import Decision


def decision_in(function: tirx.PrimFunc) -> Decision[Any, Any] | None:
    """Returns the rule, the problem and the plan that a function was legalised with.

    Returns:
        The decision; None where the function holds no product or convolution of ours.
    """
    product = annotated_product(function)
    if product is not None:
        problem = ProductProblem(ProductSizes(*product.sizes), product.tile.math)
        return Decision(RULES.rule(TiledProduct.name), problem, product.plan)
    direct = noted_as_direct(function)
    if direct is not None:
        return Decision(RULES.rule(DirectConvolution.name), direct.shape, direct.plan)
    return None
