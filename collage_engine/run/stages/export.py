"""Building a run's placement again and writing it as an artifact."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.build.build import build_cover, write_module
from collage_engine.candidates.inputs import model_tolerance, representative_inputs
from collage_engine.candidates.open_model import Workspace
from collage_engine.lowering.reference import original_outputs
from collage_engine.records.candidate import CoverPart
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.records.typed import convert
from collage_engine.run.stages.compile_only import UNMEASURED
from collage_engine.tuning.tables import put_tables_back


def export(workspace: Workspace, *, run: Run, out: str | None) -> bytes | None:
    """Write the artifact to ``out``; without one, return it as a gzipped tar archive."""
    assert run.placement is not None
    model = workspace.model
    settings = _settings_of(run)
    put_tables_back(run)
    cover = [
        CoverPart(
            ToolchainInstance(
                toolchain=part.toolchain,
                config=tuple(sorted(part.config.items())),
                threads=1 if part.architecture else run.threads,
                precision=part.precision,
                device=part.device,
                architecture=part.architecture,
                tuning=part.tuning,
            ),
            tuple(map(OperatorNumber, part.nodes)),
            part.takes,
            part.gives,
        )
        for part in run.placement.partitions
    ]
    inputs = representative_inputs(model, settings)
    contents = ArtifactContents(
        inputs=inputs,
        outputs=original_outputs(model, inputs),
        tolerance=settings.tolerance or model_tolerance(model, settings),
        placement=run.placement,
        target=run.target,
        versions={s.name: s.version or "" for s in run.toolchains if s.available},
        unmeasured=run.device.removeprefix("none: ") if run.winner == UNMEASURED else "",
    )
    with tempfile.TemporaryDirectory(dir=workspace.folder) as scratch:
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


def _settings_of(run: Run) -> RunSettings:

    return convert(run.settings, RunSettings)
