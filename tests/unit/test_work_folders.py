"""Where several runs' artifacts lie until they become one, and what a full disk says of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from collage_engine.deployment import work_folder as module
from collage_engine.deployment.throughput import _copy
from collage_engine.deployment.work_folder import work_folder
from collage_engine.records.errors import ArtifactError
from tests.support.read_only_folder import read_only


def test_it_lies_beside_the_artifact(tmp_path: Path) -> None:
    with work_folder(tmp_path / "new" / "out") as folder:
        assert folder.is_relative_to(tmp_path / "new")
    assert not list((tmp_path / "new").iterdir())


def test_where_only_the_artifact_may_be_written_it_lies_elsewhere(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    with read_only(parent), work_folder(parent / "out") as folder:
        (folder / "x").touch()
        assert not folder.is_relative_to(parent)


def test_one_that_cannot_be_made_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "Scratch", full)
    with pytest.raises(ArtifactError, match=r"cannot be written to .*out: No space left"):
        work_folder(tmp_path / "out")


def test_an_artifact_for_throughput_on_a_full_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, out = tmp_path / "made", tmp_path / "out"
    for name in ("manifest.json", "model.so", "loader/run_artifact.py"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)
    _copy(made, out)
    before = {path.relative_to(out): path.is_file() for path in out.rglob("*")}
    assert len(before) == 4 and (out / "loader/run_artifact.py").read_text()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ArtifactError) as error:
        _copy(made, out)
    assert str(error.value) == (f"the artifact cannot be written to {out}: No space left on device")
    assert before == {path.relative_to(out): path.is_file() for path in out.rglob("*")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "out"]
