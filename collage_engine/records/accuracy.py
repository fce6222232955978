"""These records say what became of a run's promise on accuracy."""

from __future__ import annotations

from typing import Literal

import msgspec

from collage_engine.records.ranges import Count, Figure


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


class AccuracyTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cover that was built and run for its error."""

    estimated_us: Figure
    reduced: Count
    """How many of its partitions compute in less than float32."""
    partitions: Count
    max_rel_error: float | None = None
    """Of the whole model, the largest over all samples."""
    reason: str | None = None
    """Why it has none."""


class Accuracy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    """End to end, of the best cover without reduced precision."""
    float32_max_rel_error: float | None = None
    tried: tuple[AccuracyTrial, ...] = ()
