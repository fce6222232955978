"""The stage that writes the confirmed winner as an artifact."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.candidates.menu import Menu
from collage_engine.candidates.open_model import OpenModel
from collage_engine.control.run_control import RunControl
from collage_engine.records.placement import Placement
from collage_engine.records.settings import RunSettings
from collage_engine.trials.confirmation import Confirmation
from collage_engine.trials.contender import Sample


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
    confirmation: Confirmation
    chosen: Placement


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """Where the artifact lies."""

    artifact: str | None


class Export:
    """Writes the winner's module, samples and manifest."""

    name = "export"
    inputs = ExportInputs

    def run(self, inputs: ExportInputs, control: RunControl) -> ExportResult:
        """Write the artifact, if the run was asked for one."""
        if inputs.out is None:
            return ExportResult(artifact=None)
        built = inputs.confirmation.winner.folder
        assert built is not None
        with control.stage("export") as report:
            contents = ArtifactContents(
                inputs=inputs.sample.inputs,
                outputs=inputs.sample.truth,
                tolerance=inputs.tolerance,
                placement=inputs.chosen,
                target=inputs.settings.target,
                versions=inputs.menu.versions,
            )
            write_artifact(inputs.open_model.model, built, Path(inputs.out), contents)
            report.detail = inputs.out
        return ExportResult(artifact=inputs.out)
