"""A folder is written whole or not at all, also where it can only be changed from inside."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from collage_engine.machine import whole_folder
from collage_engine.machine.whole_folder import tidy, write_whole


def filling(text: str, *names: str) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        for name in names:
            (folder / name).write_text(text)

    return fill


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.fixture(params=["beside", "inside", "mounted"])
def place(request, tmp_path, monkeypatch) -> Path:
    """Where a folder goes: one to be renamed; one whose parent is not ours; one that turns out to
    be a mount point only when it is renamed (a bind mount of the same file system)."""
    place = tmp_path / "room" / "out"
    if request.param == "inside":
        monkeypatch.setattr(whole_folder, "only_inside", lambda _: True)
    if request.param == "mounted":
        rename = Path.rename

        def busy(self: Path, target: Path) -> Path:
            if self == place:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(self))
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", busy)
    return place


def test_a_new_one_an_empty_one_and_a_full_one(place):
    write_whole(place, filling("1", "a", "last"), "last")
    assert content(place) == {"a": "1", "last": "1"}
    write_whole(place, filling("2", "b", "last"), "last")
    assert content(place) == {"b": "2", "last": "2"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_stays_when_filling_fails(place):
    write_whole(place, filling("1", "a", "last"), "last")

    def full(folder: Path) -> None:
        (folder / "a").write_text("2")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        write_whole(place, full, "last")
    assert content(place) == {"a": "1", "last": "1"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_comes_back_when_moving_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_folder, "only_inside", lambda _: True)
    place = tmp_path / "out"
    write_whole(place, filling("1", "a", "b", "last"), "last")
    write_whole(place, filling("1", "a", "b", "last"), "last")
    rename, moves = Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        moves.append(self.name)
        if len(moves) == 5:
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="broken"):
        write_whole(place, filling("2", "a", "c", "last"), "last")
    assert moves[0] == "last", "what counts leaves first"
    assert content(place) == {"a": "1", "b": "1", "last": "1"}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "room" / "out"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    write_whole(link, filling("1", "last"), "last")
    write_whole(link, filling("2", "last"), "last")
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
