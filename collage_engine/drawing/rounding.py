"""Says what reduced precision does to each operator, and what another tolerance would bring."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.accuracy import Accuracy, RoundedProduct
from collage_engine.records.placement import Placement, Run
from collage_engine.records.precision import FLOAT32, FULL, PRODUCTS, places_of

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


@dataclass(frozen=True)
class _Built:
    """A whole model that was tried: what is known where so much is rounded."""

    sum_of_squares: float
    operations: float
    scale: float | None
    """Its error over the root of the sum of squares of its products' errors."""
    us: float | None


class RoundingCurve:
    """Time and error along the order in which products are rounded as the tolerance grows.

    Errors of single products add as the root of the sum of their squares; times fall in proportion
    to the operations that are rounded. Both are scaled by what was measured of whole models, and
    linear between them.

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
        self._squares = [0.0, *accumulate((one.error or 0.0) ** 2 for one in self.order)]
        self._operations = [0.0, *accumulate(one.operations for one in self.order)]
        built = self._built(about, float32_us)
        root = np.sqrt(self._squares)
        scales = {one.sum_of_squares**0.5: one.scale for one in built if one.scale is not None}
        scale = np.interp(root, [*scales], [*scales.values()]) if scales else 1.0
        self._errors = np.maximum.accumulate(root * scale)
        times = {one.operations: one.us for one in built if one.us is not None}
        self._us = None
        if len(times) > 1:
            self._us = np.interp(self._operations, [*times], [*times.values()])

    def _built(self, about: Accuracy, float32_us: float | None) -> list[_Built]:
        """Return what is known at points of the order, the one with the least rounded first."""
        found = {0: _Built(0.0, 0.0, None, float32_us)}
        for trial in about.tried:
            if trial.toolchain != about.ranked_for:
                continue
            at = min(trial.rounded, len(self.order))
            root = self._squares[at] ** 0.5
            error = trial.max_rel_error
            scale = error / root if error is not None and root else None
            found[at] = _Built(self._squares[at], self._operations[at], scale, trial.measured_us)
        return [found[at] for at in sorted(found)]

    @classmethod
    def of(cls, run: Run | None) -> RoundingCurve | None:
        """Return the curve of a run; None where it has not looked into single products."""
        about = run.accuracy if run is not None else None
        if run is None or about is None:
            return None
        ranked = [product for product in about.products if product.rank is not None]
        if not ranked or any(product.error is None for product in ranked):
            return None
        full = (b for b in run.baselines if b.name == about.ranked_for and not b.reduced)
        return cls(about, next((b.measured_us for b in full), about.float32_us))

    def at(self, tolerance: float) -> RoundingPoint:
        """Return what is predicted for a tolerance on ``max|y−r| / max|r|`` of every output."""
        count = int(np.searchsorted(self._errors, tolerance, side="right")) - 1
        products = frozenset(int(one.operator) for one in self.order[:count])
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
    known: Mapping[int, RoundedProduct] = {}
    if about is not None:
        known = {int(product.operator): product for product in about.products}
    if rounded is None:
        rounded = _rounded_by(placement, known, about.ranked_for if about is not None else "")
    found = {}
    for number, call in enumerate(graph.calls):
        product = known.get(number)
        state: RoundingState = "no product"
        if call.op in PRODUCTS:
            without = product is not None and product.rank is None
            state = "without gain" if without else "full"
            if number in rounded:
                state = "rounded"
        found[number] = OperatorRounding(state, None if product is None else product.error)
    return found


def _rounded_by(
    placement: Placement, known: Mapping[int, RoundedProduct], ranked_for: str
) -> set[int]:
    """Return the operators that partitions in reduced precision round.

    The toolchain that the ranks are for leaves products without a rank in float32.
    """
    found: set[int] = set()
    for part in placement.partitions:
        if part.precision != FLOAT32:
            left = places_of(part.config.get(FULL, ""))
            for place, node in enumerate(sorted(part.nodes)):
                gains = node not in known or known[node].rank is not None
                if place not in left and (gains or part.toolchain != ranked_for):
                    found.add(node)
    return found
