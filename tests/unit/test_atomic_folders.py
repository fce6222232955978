"""A folder is written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.machine.whole_folder import tidy, write_whole
from collage_engine.records.errors import ArtifactError


def filling(text: str, *names: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name in names:
            (folder / name).write_text(text)

    return fill


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture
def place(tmp_path) -> Path:
    return tmp_path / "room" / "out"


def test_a_new_one_an_empty_one_and_a_full_one(place):
    write_whole(place, filling("1", "a", "last"))
    assert content(place) == {"a": "1", "last": "1"}
    write_whole(place, filling("2", "b", "last"))
    assert content(place) == {"b": "2", "last": "2"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_stays_when_filling_fails(place):
    write_whole(place, filling("1", "a", "last"))

    def full(folder: Path) -> None:
        (folder / "a").write_text("2")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        write_whole(place, full)
    assert content(place) == {"a": "1", "last": "1"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_comes_back_when_moving_fails(place, monkeypatch):
    write_whole(place, filling("1", "a"))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="broken"):
        write_whole(place, filling("2", "a"))
    assert content(place) == {"a": "1"} and os.listdir(place.parent) == ["out"]


def test_a_folder_that_is_mounted_by_itself_is_refused_before_the_work(place, monkeypatch):
    place.mkdir(parents=True)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == place)
    with pytest.raises(ArtifactError, match="it is mounted by itself: name a folder inside it"):
        check_target_folder(place)
    check_target_folder(place / "inside")


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "room" / "out"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    write_whole(link, filling("1", "last"))
    write_whole(link, filling("2", "last"))
    assert link.is_symlink() and content(tmp_path / "elsewhere") == {"last": "2"}
    assert os.listdir(link.parent) == ["out"]


def test_what_a_killed_writer_moved_away_comes_back(tmp_path):
    place = tmp_path / "out"
    old = tmp_path / ".out.abc.old"
    (old / "out").mkdir(parents=True)
    (old / "out" / "last").write_text("1")
    (tmp_path / ".out.def.partial").mkdir()
    tidy(place)
    assert content(place) == {"last": "1"} and os.listdir(tmp_path) == ["out"]
