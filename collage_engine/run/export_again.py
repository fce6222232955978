"""A second export of an earlier run: its placement is built again and written as an artifact."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.build.build import build_cover, write_module
from collage_engine.candidates.inputs import representative_inputs, run_tolerance
from collage_engine.candidates.open_model import OpenModel
from collage_engine.lowering.reference import original_outputs
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.typed import convert
from collage_engine.run.candidates_of_run import candidates_of_run
from collage_engine.run.stages.compile_only import UNMEASURED
from collage_engine.tuning.tables import put_tables_back


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
    """
    assert run.placement is not None
    model = open_model.model
    settings = convert(run.settings, RunSettings)
    put_tables_back(run)
    cover = candidates_of_run(model.graph, run)
    inputs = representative_inputs(model, settings)
    tolerance = run.tolerance or run_tolerance(model, settings, inputs)
    contents = ArtifactContents(
        inputs=inputs,
        outputs=original_outputs(model, inputs),
        tolerance=tolerance.value,
        placement=run.placement,
        target=run.target,
        objective=run.objective,
        streams=run.streams,
        versions={s.name: s.version or "" for s in run.toolchains if s.available},
        unmeasured=run.device.removeprefix("none: ") if run.winner == UNMEASURED else "",
    )
    with tempfile.TemporaryDirectory(dir=open_model.folder) as scratch:
        built = Path(scratch) / "module"
        write_module(build_cover(model, cover, run.placement.spin), built)
        if out is not None:
            write_artifact(model, built, Path(out), contents)
            return None
        folder = write_artifact(model, built, Path(scratch) / "artifact", contents)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz") as tar:
            tar.add(folder, arcname=Path(model.record.path).stem)
        return archive.getvalue()
