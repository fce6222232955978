"""The step that writes the confirmed winner as an artifact."""

from __future__ import annotations

from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.records.placement import MachineState, Placement
from collage_engine.records.settings import RunSettings
from collage_engine.run.task import RunState
from collage_engine.support.errors import MeasureError


def require_quiet_machine(state: MachineState, settings: RunSettings) -> MachineState:
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


def write(state: RunState, placement: Placement, built: Path) -> str | None:
    """Write a module as an artifact, which says so where nothing could be measured.

    Args:
        state: What the run knows.
        placement: What the module runs.
        built: The module's folder.

    Returns:
        The artifact's folder; None: the run was not asked for one.

    Raises:
        ArtifactError: It cannot be written.
    """
    task, catalog, samples = state.task, state.catalog, state.samples
    if task.out is None:
        return None
    settings, unmeasured = task.settings, catalog.unmeasurable or ""
    with state.control.stage("export") as report:
        contents = ArtifactContents(
            inputs=samples.sample.inputs,
            outputs=samples.sample.truth,
            tolerance=samples.tolerance,
            by_output=samples.sample.bounds,
            placement=placement,
            target=catalog.target_text if unmeasured else settings.target,
            versions=catalog.versions,
            objective=settings.objective,
            streams=max(1, settings.streams),
            unmeasured=unmeasured,
        )
        report.detail = "the artifact could not be written"
        write_artifact(task.open_model.model, built, Path(task.out), contents)
        report.detail = ""  # the faces name the folder, which here may be one of several's parts
    return task.out
