"""These records say what became of a run's promise on accuracy."""

from __future__ import annotations

import msgspec


class AccuracyTrial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A cover that was built and run for its error."""

    estimated_us: float
    reduced: int
    """How many of its partitions compute in less than float32."""
    partitions: int
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
    samples: int
    """Sets of inputs on which it was kept."""
    max_rel_error: float | None = None
    """Of what is exported, the largest over the samples."""
    float32_us: float | None = None
    """End to end, of the best cover without reduced precision."""
    float32_max_rel_error: float | None = None
    tried: tuple[AccuracyTrial, ...] = ()
