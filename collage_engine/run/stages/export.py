"""The stage that writes the confirmed winner as an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.machine.clocks import machine_state
from collage_engine.records.errors import ArtifactError, MeasureError
from collage_engine.records.machine_state import MachineState
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.trials.contender import Sample
from collage_engine.trials.race import RaceResult
from collage_engine.wording import stages as say


@dataclass(frozen=True, kw_only=True)
class ExportInputs:
    """The winner and where to write it."""

    open_model: OpenModel
    menu: Menu
    settings: RunSettings
    out: str | None
    """Folder of the artifact; None: nothing is exported."""
    sample: Sample
    tolerance: float
    race_result: RaceResult
    chosen: Placement
    confirmed_how: Literal["full", "quick", "trial"]


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """Where the artifact lies, or why it lies nowhere."""

    artifact: str | None
    not_exported: ArtifactError | None
    """Why the artifact that was asked for could not be written; the run itself is complete."""
    machine_after: MachineState
    """Clocks and load after the last measurement."""


def quiet_enough(state: MachineState, settings: RunSettings) -> MachineState:
    """Return the machine's state, unless others use it and the settings are strict.

    Raises:
        MeasureError: Figures that are taken now would not be exported.
    """
    if settings.strict and state.busy:
        raise MeasureError(
            f"{state.busy.partition(';')[0]}; with --strict no figures are exported that were "
            "taken beside others; nothing was written, what was measured is kept, run it again "
            "when the machine is quiet"
        )
    return state


class Export:
    """Writes the winner's module, samples and manifest."""

    name = "export"
    inputs = ExportInputs

    def run(self, inputs: ExportInputs, control: RunControl) -> ExportResult:
        """Write the artifact, if the run was asked for one.

        Raises:
            MeasureError: The settings are strict, and others used the machine after the
                confirmation.
        """
        after = quiet_enough(machine_state(inputs.settings.target), inputs.settings)
        if inputs.out is None:
            return ExportResult(artifact=None, not_exported=None, machine_after=after)
        built = inputs.race_result.winner.folder
        assert built is not None
        with control.stage("export") as report:
            contents = ArtifactContents(
                inputs=inputs.sample.inputs,
                outputs=inputs.sample.truth,
                tolerance=inputs.tolerance,
                by_output=inputs.sample.bounds,
                placement=inputs.chosen,
                target=inputs.settings.target,
                versions=inputs.menu.versions,
                objective=inputs.settings.objective,
                # What was not timed as it is to be deployed is not promised to be that fast.
                as_deployed=inputs.confirmed_how != "trial",
                streams=max(1, inputs.settings.streams),
            )
            try:
                write_artifact(inputs.open_model.model, built, Path(inputs.out), contents)
            except ArtifactError as error:
                report.detail = say.NOT_WRITTEN
                return ExportResult(artifact=None, not_exported=error, machine_after=after)
            report.detail = inputs.out
        return ExportResult(artifact=inputs.out, not_exported=None, machine_after=after)
