"""Writing through links; what cannot be written, and what is no regular file, is found early.

Files that appear whole or not at all; locks that end with their process; short reasons.

A folder is written whole or not at all.

Scratch folders end with their owner, also when it is killed.
"""

from __future__ import annotations

import errno
import inspect
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.machine import folders
from collage_engine.machine.folders import Scratch, remove_leftovers, replace_atomically
from collage_engine.store.session_file import earlier_session
from collage_engine.support.errors import (
    ArtifactError,
    ToolchainError,
    UsageError,
    fault_reason,
)
from collage_engine.support.files import (
    atomic_file,
    check_writable,
    is_locked,
    read_file,
    write_atomically,
)
from collage_engine.support.time_limits import JOB_S
from tests.support.read_only_folder import read_only


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("old")
    (tmp_path / "link").symlink_to("other/file")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "other" / "file").read_text() == "new"
    assert names(tmp_path / "other") == ["file"]


@pytest.mark.parametrize("name", ["pipe", "folder", "link", "/dev/null"])
def test_what_is_no_regular_file_is_neither_read_nor_written(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    before = (tmp_path / name).stat().st_mode
    for use in (lambda p: read_file(p, 9), lambda p: write_atomically(p, "new")):
        with pytest.raises(OSError, match="not a regular file"):
            use(tmp_path / name)
    with pytest.raises(UsageError, match=r"cannot write .*not a regular file"):
        check_writable(tmp_path / name)
    assert (tmp_path / name).stat().st_mode == before
    assert names(tmp_path) == ["folder", "link", "pipe"]


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 2000)
    assert len(read_file(tmp_path / "file", 2000)) == 2000
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "file", 1999)


def test_a_later_writer_removes_what_a_killed_one_left(tmp_path):
    code = (
        "import os, sys; from collage_engine.support.files import atomic_file\n"
        "with atomic_file(sys.argv[1]) as new:\n"
        "    new.write_text('half'); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "model.collage"
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    (left,) = tmp_path.iterdir()
    write_atomically(path, "a young file stays: its writer may live")
    assert left.exists()
    os.utime(left, (0, time.time() - 2 * JOB_S))
    write_atomically(path, "whole")
    assert names(tmp_path) == ["model.collage"]


def test_a_folder_without_permission_is_found_before_the_work(tmp_path):
    why = r"no permission|no file can be made \(Read-only file system\)"  # the latter to root
    with read_only(tmp_path):
        for check in (check_writable, earlier_session):
            with pytest.raises(UsageError, match=f"cannot write .*: ({why})"):
                check(tmp_path / "s.collage")
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path)
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path / "new" / "artifact")


def test_a_block_that_fails_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "report.csv"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as new:
        new.write_text("half of the n")
        1 / 0  # noqa: B018 - the block fails
    assert path.read_text() == "old"
    assert names(tmp_path) == ["report.csv"]


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys, time; from collage_engine.support.files import hold_lock;"
        "hold_lock(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        assert is_locked(path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert not is_locked(path)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError(" \n"), "ValueError"),
        (ValueError("a\nb"), "ValueError: b"),
        (ValueError("ValueError: b"), "ValueError: b"),
        (ToolchainError("it says False"), "it says False"),
    ],
)
def test_what_code_of_others_raised_is_told_with_its_place(error, says):
    assert fault_reason(error) == says, "what was never raised has no place"

    def code_of_others():
        raise error

    line = inspect.getsourcelines(code_of_others)[1] + 1
    try:
        code_of_others()
    except Exception as raised:
        said = fault_reason(raised)
    own = isinstance(error, ToolchainError)  # a sentence of ours says where by itself
    assert said == (says if own else f"{says} (unit/test_written_files.py, line {line})")


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
    replace_atomically(place, filling("1", "a", "last"))
    assert content(place) == {"a": "1", "last": "1"}
    replace_atomically(place, filling("2", "b", "last"))
    assert content(place) == {"b": "2", "last": "2"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_stays_when_filling_fails(place):
    replace_atomically(place, filling("1", "a", "last"))

    def full(folder: Path) -> None:
        (folder / "a").write_text("2")
        raise OSError(errno.ENOSPC, "full")

    with pytest.raises(OSError, match="full"):
        replace_atomically(place, full)
    assert content(place) == {"a": "1", "last": "1"}
    assert os.listdir(place.parent) == ["out"]


def test_what_was_there_comes_back_when_moving_fails(place, monkeypatch):
    replace_atomically(place, filling("1", "a"))
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.suffix == ".partial":
            raise OSError(errno.EIO, "broken")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="broken"):
        replace_atomically(place, filling("2", "a"))
    assert content(place) == {"a": "1"} and os.listdir(place.parent) == ["out"]


def test_a_folder_that_is_mounted_by_itself_is_refused_before_the_work(place, monkeypatch):
    place.mkdir(parents=True)
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == place)
    with pytest.raises(ArtifactError, match="is mounted by itself: name a folder inside it"):
        check_target_folder(place)
    check_target_folder(place / "inside")


def test_what_a_killed_writer_moved_away_comes_back(tmp_path):
    place = tmp_path / "out"
    old = tmp_path / ".out.0000000a.old"
    old.mkdir()
    (old / "last").write_text("1")
    (tmp_path / ".out.0000000b.partial").mkdir()
    remove_leftovers(place)
    assert content(place) == {"last": "1"} and os.listdir(tmp_path) == ["out"]


OWNER = (
    "import time\nfrom collage_engine.machine.folders import Scratch\ns = Scratch()\n"
    "(s.path / 'x').write_text('x')\nprint(s.path.parent, flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "ANSWER_S", -1.0)
    return tmp_path


def owner(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_only_folders_of_the_dead_are_removed(temporary):
    alive, kept = owner(temporary)
    killed, orphan = owner(temporary)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert orphan.is_dir()
        mine = Scratch()
        assert not orphan.exists()
        assert (kept / "tmp" / "x").exists()
        mine.close()
    finally:
        for process in (alive, killed):
            process.kill()
            process.wait(10)
            process.stdout.close()
