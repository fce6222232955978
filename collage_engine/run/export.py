"""Writes a run's placement as an artifact: at its end, or built again from its document."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from collage_engine.artifact.artifact import (
    ArtifactContents,
    check_target_folder,
    write_artifact,
)
from collage_engine.artifact.combine import combine_artifacts, fastest
from collage_engine.candidates.inputs import model_samples, run_tolerance, unchecked
from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.emit import LoweredParts
from collage_engine.lowering.shared_weights import FOLDER
from collage_engine.model.padding import batch_dimension
from collage_engine.records.placement import Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import Sharing
from collage_engine.run.contenders import candidates_of_run
from collage_engine.run.run_document import UNMEASURED
from collage_engine.run.stages.samples import refuse_unchecked
from collage_engine.run.task import RunState
from collage_engine.support.errors import SessionError
from collage_engine.support.typed import convert
from collage_engine.timing.tuning import put_tables_back


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


def export(open_model: OpenModel, *, run: Run, out: str | None) -> bytes | None:
    """Build the placement of a run and write it as an artifact.

    Args:
        open_model: The model of the run.
        run: The run's document.
        out: The artifact's folder; None: the artifact is returned.

    Returns:
        The artifact as a gzipped tar archive; None where it was written to ``out``.

    Raises:
        ToolchainError: A table of tuned kernels that the run keeps was changed.
        MeasureError: No output can be checked, and the settings do not allow that.
        SessionError: The placement is not one of this model.
    """
    assert run.placement is not None
    model = open_model.model
    held = sorted(node for part in run.placement.partitions for node in part.nodes)
    if held != list(range(len(model.graph.operators))):
        raise SessionError(
            "the session's placement does not hold every operator of its model once: place the "
            "model again"
        )
    settings = convert(run.settings, RunSettings)
    put_tables_back(run)
    cover = candidates_of_run(model.graph, run)
    sample, *_ = samples = model_samples(model, settings)
    # A run on the user's inputs, which it does not keep, has checked outputs that these may not.
    not_finite = run.not_finite if run.samples else unchecked(samples)
    refuse_unchecked([name for name, _ in model.outputs], not_finite, settings)
    tolerance = run.tolerance or run_tolerance(model, settings, sample.inputs)
    contents = ArtifactContents(
        inputs=sample.inputs,
        outputs=sample.truth,
        tolerance=tolerance.value,
        by_output=tolerance.by_output,
        placement=run.placement,
        target=run.target,
        objective=settings.objective,
        as_deployed=run.objective == settings.objective,
        streams=max(1, settings.streams),
        versions={s.name: s.version or "" for s in run.toolchains if s.available},
        unmeasured=run.device.removeprefix("none: ") if run.winner == UNMEASURED else "",
    )
    with tempfile.TemporaryDirectory(dir=open_model.folder) as scratch:
        built = Path(scratch) / "module"
        lowered = LoweredParts(Path(scratch) / FOLDER)
        write_module(build_cover(model, cover, run.placement.spin, lowered), built)
        folder = _folder_for(out, scratch, model.record.path)
        write_artifact(model, built, folder, contents)
        return _archive(folder) if out is None else None


def export_together(
    entries: Sequence[tuple[Callable[[], OpenModel], Mapping[str, int], Run]],
    *,
    out: str | None,
    others: bool,
) -> tuple[bytes | None, Sharing]:
    """Build the placements of runs for several shapes and write them as one artifact.

    Args:
        entries: For each shape what opens the model, the sizes of its named dimensions, and the
            run.
        out: The artifact's folder; None: the artifact is returned.
        others: Whether it takes any other shape, too, by the model's own file.

    Returns:
        The artifact as a gzipped tar archive, None where it was written to ``out``; and what its
        entries have in common.
    """
    if out is not None:
        check_target_folder(Path(out))
    with tempfile.TemporaryDirectory(prefix="collage-shapes-") as scratch:
        folders = []
        path = ""
        for number, (open_model, _, run) in enumerate(entries):
            opened = open_model()
            path = opened.model.record.path
            folders.append(Path(scratch) / str(number))
            export(opened, run=run, out=str(folders[-1]))
        together = _folder_for(out, scratch, path)
        dims = [dims for _, dims, _ in entries]
        catalog = [state.name for state in entries[0][2].toolchains if state.available]
        own = fastest(Path(path), folders, catalog) if others else None
        padding = batch_dimension((path, [*dims[0]]))
        sharing = combine_artifacts(folders, dims, together, own, padding)
        return _archive(together) if out is None else None, sharing


def _folder_for(out: str | None, scratch: str, model: str) -> Path:
    """Return where an artifact is written; in an archive its folder has the model's name."""
    return Path(out) if out is not None else Path(scratch, "archive", Path(model).stem)


def _archive(folder: Path) -> bytes:
    """Return a folder as a gzipped tar archive."""
    return Path(shutil.make_archive(f"{folder}", "gztar", folder.parent, folder.name)).read_bytes()
