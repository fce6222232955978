"""These records say what became of a run's promise on accuracy."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.support.typed import Count, Figure


class RunTolerance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far outputs may be from the true ones, as ``max|y−r| / max|r|``, and why so far."""

    value: float
    """The largest that any output is allowed."""
    source: Literal["user", "precision", "rounding"]
    """Who asks for it: the user; the precision and the element types; or the rounding that the
    model amplifies."""
    default: float
    """What the precision and the element types ask for."""
    noise: dict[str, float] = {}
    """By output: how far it moves when inputs and weights change in the last bit; only outputs for
    which a multiple of it is larger than the default."""
    by_output: dict[str, float] = {}
    """By output: what it is allowed, where outputs are allowed different errors; 0: it must be
    equal, as whole numbers, booleans and texts must. Of a large map of whole numbers it is the
    share of values that may differ, since they hang on the last bit of floats."""

    def of(self, output: str) -> float:
        """Return what an output is allowed."""
        return self.by_output.get(output, self.value)


class RoundedProduct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A convolution or matrix product that reduced precision could round."""

    operator: Count
    """Its operator number."""
    operations: Figure
    """Its arithmetic operations, which stand for the time that rounding it saves."""
    error: Figure | None = None
    """Largest relative error of the outputs when its operands alone are rounded, emulated; None: it
    was not found out."""
    rounded: bool = False
    """Whether it may be rounded within the tolerance, together with the others that may."""
    rank: Count | None = None
    """Its place in the order in which products are rounded as the tolerance grows, from 0; None:
    rounding it saves nothing, or no order was needed."""


class RoundingTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole model that was built with some of its products, or all, rounded."""

    toolchain: str
    rounded: Count
    """How many products."""
    emulated_error: Figure | None = None
    """Largest relative error of an output that the emulation predicted; None: it is not finite."""
    max_rel_error: float | None = None
    """The same as measured."""
    measured_us: Figure | None = None
    """Its time, at the speed of the placement that led then; None: it was not timed."""
    reason: str | None = None
    """Why it does not take part: its error, or why it could not be run."""


class Rounding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was found out of rounding single products."""

    products: tuple[RoundedProduct, ...] = ()
    """What rounding each product does, in the model's order; empty: nothing was emulated."""
    ranked_for: str = ""
    """The toolchain whose order the products' ranks are; empty: they have none."""
    emulated_error: Figure | None = None
    """Largest relative error of an output with all products rounded, emulated; None: it is not
    finite, or nothing was emulated."""
    tried: tuple[RoundingTrial, ...] = ()
    """Whole models with all products rounded, then with a part of them, in the order of builds."""


class Accuracy(Rounding, frozen=True, kw_only=True, omit_defaults=True):
    """The tolerance that was kept, and what that cost and gained.

    Errors are ``max|y−r| / max|r|`` of an output.
    """

    precision: str
    """Lowest that the run admitted."""
    tolerance: float
    """Bound on the whole model's ``max_rel_error``."""
    samples: Count
    """Sets of inputs on which it was kept."""
    max_rel_error: float | None = None
    """Of what is exported, the largest over the samples."""
    float32_us: Figure | None = None
    """End to end, of the fastest contender without reduced precision."""
    float32_max_rel_error: float | None = None
