"""The pipeline's jobs work on the file that the run is of."""

from __future__ import annotations

import onnx
import pytest

from collage_engine.lowering.build import BuildCover, BuildJob
from collage_engine.model.importer import import_model
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import ModelError
from collage_engine.timing.bench import ModelBench
from collage_engine.timing.child import OpenRequest
from collage_engine.timing.tuning_job import ListTasks, TuningJob
from tests import zoo


def test_another_file_of_the_same_name_is_neither_measured_nor_built_nor_tuned(tmp_path):
    """Its shapes and its weights would be taken for those of the model that the run is of."""
    path = str(tmp_path / "m.onnx")
    onnx.save(zoo.build("tiny"), path)
    before = import_model(path).record
    onnx.save(zoo.build("several"), path)
    opening = OpenRequest(path, {}, "", sha256=before.sha256)
    build = BuildCover(
        model=path,
        shapes={},
        cover=(),
        spin=None,
        folder=str(tmp_path / "out"),
        sha256=before.sha256,
    )
    instance = ToolchainInstance(toolchain="tvm")
    listing = ListTasks(path, {}, (0,), instance, sha256=before.sha256)
    for act in (
        lambda: ModelBench(opening),
        lambda: BuildJob()(build),
        lambda: TuningJob()(listing, lambda _: None),
    ):
        with pytest.raises(ModelError, match="was changed while"):
            act()
