"""The step that computes the reference's outputs on the run's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collage_engine.candidates.inputs import (
    model_samples,
    run_tolerance,
    stated_errors,
    unchecked,
)
from collage_engine.control.run_control import RunControl
from collage_engine.records.accuracy import RunTolerance
from collage_engine.run.task import RunTask
from collage_engine.run.tolerance_warnings import refuse_unchecked, sample_warnings
from collage_engine.trials.contender import Sample
from collage_engine.trials.tolerance import MORE_SAMPLES, is_promised


@dataclass(frozen=True, kw_only=True)
class RunSamples:
    """Inputs with the reference's outputs, which placements are compared with."""

    model_inputs: Mapping[str, np.ndarray]
    """The run's inputs, by name."""
    sample: Sample
    further_samples: tuple[Sample, ...]
    """The user's other samples; or random ones, on which a promised tolerance must hold too."""
    tolerance: float
    """The bound on the error of any of the model's outputs, as ``max|y-r| / max|r|``."""
    run_tolerance: RunTolerance
    """The same of every output, and where it comes from."""
    not_finite: Mapping[str, float]
    """By output the share of its true values that compare nothing on any sample."""

    @property
    def all(self) -> tuple[Sample, ...]:
        """Return every sample on which placements are compared; the first is the one timed."""
        return (self.sample, *self.further_samples)


def draw_samples(task: RunTask, control: RunControl) -> RunSamples:
    """Run the user's own file on the run's inputs, and measure how far rounding moves outputs.

    It is too short to report progress.

    Raises:
        MeasureError: None of them checks anything, and an artifact is wanted.
    """
    model, settings = task.open_model.model, task.settings
    samples = model_samples(model, settings, MORE_SAMPLES if is_promised(settings) else 0)
    not_finite = unchecked(samples)
    if task.out is not None:
        refuse_unchecked([name for name, _ in model.outputs], not_finite, settings)
    for sentence in sample_warnings(not_finite, settings):
        control.warn(sentence)
    given = samples[0].inputs
    tolerance = run_tolerance(model, settings, given, control.cancelled.is_set)
    bounds = {name: tolerance.by_output.get(name, tolerance.value) for name, _ in model.outputs}
    for name, error in stated_errors(samples, bounds).items():
        control.warn(
            f"the test data says something else of the output {name!r} than the model's file "
            f"computes (relative error {error:.1e}); placements are compared with what the file "
            "computes"
        )
    nowhere = frozenset(name for name, share in not_finite.items() if share == 1.0)
    first, *further = (
        Sample(each.inputs, each.truth, tolerance.by_output, nowhere) for each in samples
    )
    return RunSamples(
        model_inputs=given,
        sample=first,
        further_samples=tuple(further),
        tolerance=tolerance.value,
        run_tolerance=tolerance,
        not_finite=not_finite,
    )
