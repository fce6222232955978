"""Chooses which products of a model are rounded so that its outputs stay within a tolerance.

Rounding errors of different products add as the root of the sum of their squares (on five
convolutional networks and image-like inputs the error of a set was 0.78 to 1.22 times that root).
So the sum along an order of products predicts how long a prefix of it may be, and each evaluation
of a prefix corrects the prediction: one to five evaluations find it.

Two orders are tried. By *error for value*: first the products whose squared error is smallest for
the time that rounding them saves. By *depth*: first the last products of the model, so that the
first ones stay in float32 (NVIDIA's Polygraphy searches along this order); such a set is contiguous
and therefore runs faster for the same number of operations, and it needs no errors of single
products. Where one product with a large error ends the set by depth, those before it follow by
error for value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from collage_engine.records.graph import OperatorNumber

EVALUATIONS = 5
"""Evaluations of prefixes of one order, at most, where the errors of single products are known: on
seven models the fifth was the last that a search along one order needed."""
NEAR_ENOUGH = 0.93
"""Share of the bound from which on an error ends the search along an order: what further products
could add is less than the scatter of the prediction."""
CONTIGUOUS_SHARE = 0.9
"""Share of the other order's value from which on the set by depth is taken: at equal value it ran
5 to 8 % faster on three of five models, as much as a tenth of the value saves; MobileNetV3 ran 1.32
times as fast as in float32 with 94 % of the value by depth, and 1.23 times by error."""

Products = frozenset[OperatorNumber]
ErrorOf = Callable[[Products], float]
"""Returns the largest error of any output, as a share of what the output is allowed."""


@dataclass(frozen=True)
class ProductChoice:
    """A set of products to be rounded.

    Attributes:
        products: Their operator numbers: the first ones of ``order``.
        error: The largest emulated error of any output, as a share of what the output is allowed.
        value: What rounding them saves, in the unit of the values that were given.
        order: All products that save anything, in the order along which the set was found.
    """

    products: Products
    error: float
    value: float
    order: tuple[OperatorNumber, ...]


def choose_products(
    values: Mapping[OperatorNumber, float],
    alone: Mapping[OperatorNumber, float] | None,
    error_of: ErrorOf,
    bound: float,
) -> ProductChoice:
    """Return the most valuable set of products whose error stays below a bound.

    Args:
        values: What rounding each product saves, in any unit, in the order of the model; products
            that save nothing are left out of every set.
        alone: The error of each product by itself, in the unit of ``error_of``; None: not known.
        error_of: Evaluates a set.
        bound: The largest error that is accepted, in the same unit.
    """
    worth = {number: value for number, value in values.items() if value > 0}

    def along(
        order: Sequence[OperatorNumber], kept: int = 0, kept_error: float = 0.0
    ) -> ProductChoice:
        kept, error = _longest_prefix(order, alone, error_of, bound, kept, kept_error)
        value = sum(worth[number] for number in order[:kept])
        return ProductChoice(frozenset(order[:kept]), error, value, tuple(order))

    best = along([*reversed(worth)])
    if alone is not None:
        ranked = sorted(worth, key=lambda number: alone[number] ** 2 / worth[number])
        kept = len(best.products)
        rest = [number for number in ranked if number not in best.products]
        best = along([*best.order[:kept], *rest], kept, best.error)
        by_error = along(ranked)
        if best.value < CONTIGUOUS_SHARE * by_error.value:
            best = by_error
    return best


def _longest_prefix(
    order: Sequence[OperatorNumber],
    alone: Mapping[OperatorNumber, float] | None,
    error_of: ErrorOf,
    bound: float,
    kept: int,
    kept_error: float,
) -> tuple[int, float]:
    """Return the longest prefix of an order whose error is at most the bound, and that error.

    So many products are known to keep the bound, with an error.

    The bracket between the longest prefix that kept the bound and the shortest that did not closes
    with each evaluation. The next length is where the root of the sum of squares, scaled by the
    latest evaluation, reaches the bound; where nothing is known of single errors, it is the middle.
    """
    single = [0.0 if alone is None else alone[number] for number in order]
    predicted = [math.sqrt(total) for total in accumulate(error**2 for error in single)]
    broken = len(order) + 1
    scale = kept_error / predicted[kept - 1] if kept and predicted[kept - 1] > 0 else 1.0
    for _ in range(len(order) if alone is None else EVALUATIONS):
        if broken - kept <= 1 or kept_error >= NEAR_ENOUGH * bound:
            break
        if alone is None:
            length = len(order) if broken > len(order) else (kept + broken) // 2
        else:
            length = sum(scale * error <= bound for error in predicted)
        length = min(max(length, kept + 1), broken - 1)
        error = error_of(frozenset(order[:length]))
        if error <= bound:
            kept, kept_error = length, error
        else:
            broken = length
        if 0 < error < math.inf and predicted[length - 1] > 0:
            scale = error / predicted[length - 1]
    return kept, kept_error
