"""What the pipeline's jobs leave on the disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from collage_engine.pipeline import child
from collage_engine.pipeline.workspace import Workspace
from collage_engine.records.errors import CollageError


class FakeWorkspace:
    """A workspace whose file is, or is no more, the one that was read."""

    current = True

    def __init__(self, path: Path, shapes: object) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=path.parent))

    def is_current(self) -> bool:
        return self.current

    close = Workspace.close
    empty = Workspace.empty


def test_a_job_leaves_no_modules_and_a_changed_file_no_folder(tmp_path, monkeypatch):
    def build(send: object, fail: bool) -> None:
        folder = child._workspace(tmp_path / "model.onnx", {}).folder
        (folder / "confirm-1").mkdir()
        (folder / "confirm-1" / "model.so").touch()
        if fail:
            raise CollageError("no")

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(child, "_WORKSPACES", {})
    monkeypatch.setattr(child, "Workspace", FakeWorkspace)
    monkeypatch.setitem(child._JOBS, "build", build)
    child.serve(("build", {"fail": False}), lambda _: None)
    with pytest.raises(CollageError):
        child.serve(("build", {"fail": True}), lambda _: None)
    (first,) = tmp_path.iterdir()
    assert list(first.iterdir()) == []
    monkeypatch.setattr(FakeWorkspace, "current", False)
    child.serve(("build", {"fail": False}), lambda _: None)
    (second,) = tmp_path.iterdir()
    assert second != first
