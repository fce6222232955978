"""Says what reduced precision does to each operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Placement
from collage_engine.records.precision import (
    FLOAT32,
    FULL,
    PRODUCTS,
    Accuracy,
    RoundedProduct,
    places_of,
)

RoundingState = Literal["rounded", "full", "without gain", "no product"]
"""What becomes of an operator's operands: they are rounded; they stay in float32; they stay so and
rounding them would save nothing; or it is no convolution or matrix product."""


@dataclass(frozen=True)
class OperatorRounding:
    """What reduced precision does to one operator.

    Attributes:
        state: What becomes of its operands.
        error: The relative error of the outputs when they alone are rounded; None: not known.
    """

    state: RoundingState
    error: float | None = None


def operator_roundings(
    graph: OperatorGraph,
    about: Accuracy | None,
    placement: Placement,
) -> dict[int, OperatorRounding]:
    """Return what reduced precision does to each operator.

    Args:
        graph: The operators.
        about: What the run has found out of single products.
        placement: Says what each partition rounds.
    """
    products: Mapping[int, RoundedProduct] = {}
    if about is not None:
        products = {int(product.operator): product for product in about.products}
    ranked_for = about.ranked_for if about is not None else ""
    rounded: set[int] = set()
    for part in placement.partitions:
        if part.precision != FLOAT32:
            left = places_of(part.config.get(FULL, ""))
            for number, node in enumerate(sorted(part.nodes)):
                # The toolchain that the ranks are for leaves products without one in float32.
                gains = node not in products or products[node].rank is not None
                if number not in left and (gains or part.toolchain != ranked_for):
                    rounded.add(node)
    roundings = {}
    for number, call in enumerate(graph.calls):
        product = products.get(number)
        state: RoundingState = "no product"
        if call.op in PRODUCTS:
            without = product is not None and product.rank is None
            state = "rounded" if number in rounded else "without gain" if without else "full"
        roundings[number] = OperatorRounding(state, None if product is None else product.error)
    return roundings
