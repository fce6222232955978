"""What the pipeline's jobs leave on the disk, and that they work on the file the run is of."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from collage_engine.build.build_job import BuildCover, BuildJob
from collage_engine.candidates.open_model import OpenModel
from collage_engine.model.importer import import_model
from collage_engine.records.errors import CollageError, ModelError
from collage_engine.records.jobs import Job, JobCall
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.run import child
from collage_engine.timing.bench import ModelBench
from collage_engine.timing.messages import OpenRequest
from collage_engine.tuning.job import ListTasks, TuningJob
from tests import zoo


class FakeModel:
    """A model whose file is, or is no more, the one that was read."""

    current = True

    def __init__(self, path: Path, shapes: object) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=path.parent))
        self.modules: dict = {}

    def is_current(self) -> bool:
        return self.current

    close = OpenModel.close
    keep_modules = OpenModel.keep_modules
    empty = OpenModel.empty


def test_a_job_leaves_no_modules_and_a_changed_file_no_folder(tmp_path, monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class BuildJob(Job[None]):
        path: str = ""
        fail: bool
        name = "build"

    def build(job: BuildJob, control: object) -> None:
        folder = child._opened(tmp_path / "model.onnx", {}).folder
        (folder / "confirm-1").mkdir()
        (folder / "confirm-1" / "model.so").touch()
        if job.fail:
            raise CollageError("no")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(child, "_open_models", {})
    monkeypatch.setattr(child, "OpenModel", FakeModel)
    monkeypatch.setitem(child.DO, BuildJob, build)
    child.serve(JobCall(job=BuildJob(fail=False)), lambda _: None)
    with pytest.raises(CollageError):
        child.serve(JobCall(job=BuildJob(fail=True)), lambda _: None)
    (first,) = tmp_path.iterdir()
    assert list(first.iterdir()) == []
    monkeypatch.setattr(FakeModel, "current", False)
    child.serve(JobCall(job=BuildJob(fail=False)), lambda _: None)
    (second,) = tmp_path.iterdir()
    assert second != first


def test_another_file_of_the_same_name_is_neither_measured_nor_built_nor_tuned(tmp_path):
    """Its shapes and its weights would be taken for those of the model that the run is of."""
    path = str(tmp_path / "m.onnx")
    onnx.save(zoo.build("tiny"), path)
    before = import_model(path).record
    onnx.save(zoo.build("several"), path)
    opening = OpenRequest(path, {}, "", "", "", sha256=before.sha256)
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
