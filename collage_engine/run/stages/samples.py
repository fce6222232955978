"""The stage that computes the reference's outputs on the run's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from collage_engine.candidates.inputs import representative_inputs, run_tolerance
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.lowering.reference import original_outputs
from collage_engine.records.accuracy import RunTolerance
from collage_engine.run.problem_data import ProblemData
from collage_engine.trials.contender import Sample
from collage_engine.trials.tolerance import further_samples


@dataclass(frozen=True, kw_only=True)
class SampleInputs:
    """The model, and the settings that name the run's inputs."""

    open_model: OpenModel
    data: ProblemData


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Inputs with the reference's outputs, which placements are compared with."""

    model_inputs: Mapping[str, np.ndarray]
    """The run's inputs, by name."""
    sample: Sample
    further_samples: tuple[Sample, ...]
    """Other inputs on which a promised tolerance must hold too; empty where none was promised."""
    tolerance: float
    """The bound on the error of any of the model's outputs, as ``max|y-r| / max|r|``."""
    run_tolerance: RunTolerance
    """The same of every output, and where it comes from."""


class DrawSamples:
    """Runs the user's own file on the run's inputs, and measures how far rounding moves outputs.

    It is too short to report progress.
    """

    name = "samples"
    inputs = SampleInputs

    def run(self, inputs: SampleInputs, control: RunControl) -> SampleResult:
        """Compute the true outputs."""
        model, settings = inputs.open_model.model, inputs.data.settings
        given = representative_inputs(model, settings)
        tolerance = run_tolerance(model, settings, given, control.cancelled.is_set)
        return SampleResult(
            model_inputs=given,
            sample=Sample(given, original_outputs(model, given), tolerance.by_output),
            further_samples=further_samples(model, settings),
            tolerance=tolerance.value,
            run_tolerance=tolerance,
        )
