"""Says what reduced precision does to each operator, and what another tolerance would bring."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Placement, Run
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


@dataclass(frozen=True)
class RoundingPoint:
    """What is predicted for one tolerance.

    Attributes:
        products: The operator numbers of the products that are rounded.
        error: The largest relative error of an output.
        us: Microseconds of the model; None: too little was timed.
    """

    products: frozenset[int]
    error: float
    us: float | None


class RoundingCurve:
    """Time and error along the order in which products are rounded as the tolerance grows.

    Errors of single products add as the root of the sum of their squares; where a run had no time
    for them, they are taken for equal. Times fall in proportion to the operations that are rounded.
    Both are scaled by what was measured of whole models, and linear between and beyond them.

    Attributes:
        order: The products that rounding saves something of, in order.
    """

    def __init__(self, about: Accuracy, float32_us: float | None) -> None:
        """Read what a run has found out.

        Args:
            about: The run's accuracy; its products have ranks and errors.
            float32_us: Microseconds of the whole model in float32 on the toolchain whose order it
                is; None: not known.
        """
        ranked = [product for product in about.products if product.rank is not None]
        self.order: Sequence[RoundedProduct] = sorted(ranked, key=lambda one: one.rank or 0)
        self.best_us = about.float32_us
        known = all(one.error is not None for one in self.order)
        single = [one.error or 0.0 if known else 1.0 for one in self.order]
        self._squares = [0.0, *accumulate(error**2 for error in single)]
        self._operations = [0.0, *accumulate(one.operations for one in self.order)]
        root = np.sqrt(self._squares)
        errors, times = self._built(about)
        scales = {root[at]: error / root[at] for at, error in sorted(errors.items()) if root[at]}
        scale = np.interp(root, [*scales], [*scales.values()]) if scales else 1.0
        self._errors = np.maximum.accumulate(root * scale)
        self._us = None
        if float32_us is not None and times:
            last = max(times)
            saved = (float32_us - times[last]) / self._operations[last]  # what one operation saves
            times |= {0: float32_us}
            times.setdefault(len(self.order), float32_us - saved * self._operations[-1])
            at = sorted(times)
            known_at = [self._operations[k] for k in at]
            self._us = np.interp(self._operations, known_at, [times[k] for k in at])

    def _built(self, about: Accuracy) -> tuple[dict[int, float], dict[int, float]]:
        """Return errors and microseconds of whole models, by how many products they round."""
        errors: dict[int, float] = {}
        times: dict[int, float] = {}
        if about.emulated_error is not None:
            errors[len(self.order)] = about.emulated_error
        for trial in about.tried:
            at = min(trial.rounded, len(self.order))
            if trial.toolchain == about.ranked_for and at:
                if trial.max_rel_error is not None:
                    errors[at] = trial.max_rel_error
                if trial.measured_us is not None:
                    times[at] = trial.measured_us
        return errors, times

    @classmethod
    def of(cls, run: Run | None) -> RoundingCurve | None:
        """Return the curve of a run; None where it knows nothing of what rounding does."""
        about = run.accuracy if run is not None else None
        if run is None or about is None:
            return None
        full = (b.measured_us for b in run.baselines if b.name == about.ranked_for)
        curve = cls(about, next(filter(None, full), about.float32_us))
        unknown = any(product.error is None for product in curve.order)
        return None if not curve.order or (unknown and about.emulated_error is None) else curve

    def at(self, tolerance: float) -> RoundingPoint:
        """Return what is predicted for a tolerance on ``max|y−r| / max|r|`` of every output."""
        count = int(np.searchsorted(self._errors, tolerance, side="right")) - 1
        products = frozenset(int(product.operator) for product in self.order[:count])
        us = None if self._us is None else float(self._us[count])
        if us is not None and self.best_us is not None and us >= self.best_us:
            return RoundingPoint(frozenset(), 0.0, self.best_us)  # nothing faster keeps it
        return RoundingPoint(products, float(self._errors[count]), us)


def operator_roundings(
    graph: OperatorGraph,
    about: Accuracy | None,
    placement: Placement,
    rounded: Collection[int] | None = None,
) -> dict[int, OperatorRounding]:
    """Return what reduced precision does to each operator.

    Args:
        graph: The operators.
        about: What the run has found out of single products.
        placement: Says what each partition rounds.
        rounded: The products that are rounded instead, such as those of a predicted point.
    """
    products: Mapping[int, RoundedProduct] = {}
    if about is not None:
        products = {int(product.operator): product for product in about.products}
    if rounded is None:
        rounded = _rounded_by(placement, products, about.ranked_for if about is not None else "")
    roundings = {}
    for number, call in enumerate(graph.calls):
        product = products.get(number)
        state: RoundingState = "no product"
        if call.op in PRODUCTS:
            without = product is not None and product.rank is None
            state = "without gain" if without else "full"
            if number in rounded:
                state = "rounded"
        roundings[number] = OperatorRounding(state, None if product is None else product.error)
    return roundings


def _rounded_by(
    placement: Placement, products: Mapping[int, RoundedProduct], ranked_for: str
) -> set[int]:
    """Return the operators that partitions in reduced precision round.

    The toolchain that the ranks are for leaves products without a rank in float32.
    """
    rounded: set[int] = set()
    for part in placement.partitions:
        if part.precision != FLOAT32:
            left = places_of(part.config.get(FULL, ""))
            for number, node in enumerate(sorted(part.nodes)):
                gains = node not in products or products[node].rank is not None
                if number not in left and (gains or part.toolchain != ranked_for):
                    rounded.add(node)
    return rounded
