"""A run's promise on accuracy: where one is made, and how it was kept."""

from __future__ import annotations

from collage_engine.records.precision import FLOAT32, Accuracy, Rounding
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import finite
from collage_engine.trials.standings import RaceResult

MORE_SAMPLES = 3
"""Further random inputs on which the tolerance must be kept. With one image, choices of products
broke their tolerance on fresh images four to eight times over on two of seven models; with four
they kept it but for one, which took twice the tolerance. The user's samples are taken as given."""


def is_promised(settings: RunSettings) -> bool:
    """Tell whether the run promises a tolerance that rounding could break."""
    return settings.precision != FLOAT32 or settings.tolerance is not None


def accuracy_of(
    settings: RunSettings,
    tolerance: float,
    samples: int,
    rounding: Rounding,
    race_result: RaceResult,
) -> Accuracy | None:
    """Return the record of what the run promised on accuracy, and how it was kept.

    Args:
        settings: The run's settings.
        tolerance: The bound on ``max|y-r| / max|r|`` of the outputs.
        samples: On how many samples it was checked.
        rounding: What was found out of rounding single products.
        race_result: The times and errors of the contenders.

    Returns:
        The record; None for a run that made no promise.
    """
    if not is_promised(settings):
        return None
    full = [
        one
        for one in race_result.results
        if not one.contender.reduced and one.measured_us is not None and one.reason is None
    ]
    best = min(full, key=lambda one: one.measured_us or 0.0, default=None)
    return Accuracy(
        precision=settings.precision,
        tolerance=tolerance,
        samples=samples,
        max_rel_error=finite(race_result.winner.max_rel_error),
        float32_us=None if best is None else best.measured_us,
        float32_max_rel_error=None if best is None else finite(best.max_rel_error),
        products=rounding.products,
        ranked_for=rounding.ranked_for,
        tried=rounding.tried,
    )
