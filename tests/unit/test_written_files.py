"""Writing through links; what cannot be written, and what is no regular file, is found early."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from collage_engine.artifact.artifact import check_target_folder
from collage_engine.records.errors import ArtifactError, UsageError
from collage_engine.records.files import (
    UNFINISHED_S,
    SpecialFileError,
    check_writable,
    read_file,
    write_atomically,
)
from collage_engine.session.earlier import earlier_session
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


def test_a_link_to_nothing_makes_the_file_that_it_names(tmp_path):
    (tmp_path / "link").symlink_to("made")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "made").read_text() == "new" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["pipe", "folder", "link", "/dev/null"])
def test_what_is_no_regular_file_is_neither_read_nor_written(tmp_path, name):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("pipe")
    before = (tmp_path / name).stat().st_mode
    for use in (lambda p: read_file(p, 9), check_writable, lambda p: write_atomically(p, "new")):
        with pytest.raises(SpecialFileError, match="not a regular file"):
            use(tmp_path / name)
    assert (tmp_path / name).stat().st_mode == before
    assert names(tmp_path) == ["folder", "link", "pipe"]


def test_a_file_that_is_too_large_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 2000)
    assert len(read_file(tmp_path / "file", 2000)) == 2000
    with pytest.raises(OSError, match="larger than"):
        read_file(tmp_path / "file", 1999)


def test_a_later_writer_removes_what_a_killed_one_left(tmp_path):
    code = (
        "import os, sys; from collage_engine.records.files import atomic_file\n"
        "with atomic_file(sys.argv[1]) as new:\n"
        "    new.write_text('half'); os.kill(os.getpid(), 9)"
    )
    path = tmp_path / "model.collage"
    subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False)
    (left,) = tmp_path.iterdir()
    write_atomically(path, "a young file stays: its writer may live")
    assert left.exists()
    os.utime(left, (0, time.time() - 2 * UNFINISHED_S))
    write_atomically(path, "whole")
    assert names(tmp_path) == ["model.collage"]


def test_a_folder_without_permission_is_found_before_the_work(tmp_path):
    why = r"no permission|no file can be made \(Read-only file system\)"  # the latter to root
    with read_only(tmp_path):
        with pytest.raises(PermissionError):
            check_writable(tmp_path / "file")
        with pytest.raises(UsageError, match=f"cannot be written: ({why})"):
            earlier_session(tmp_path / "s.collage")
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path)
        with pytest.raises(ArtifactError, match=why):
            check_target_folder(tmp_path / "new" / "artifact")


@pytest.mark.parametrize("place", ["/sys", "/proc"])
def test_what_even_root_cannot_write_is_found_before_the_work(place):
    with pytest.raises(OSError, match=f"in the folder {place}"):
        check_writable(f"{place}/file")
    with pytest.raises(ArtifactError, match=f"{place}/out cannot be written: .* in {place}"):
        check_target_folder(Path(place) / "out")


def test_what_can_be_written_passes_the_check(tmp_path):
    check_writable(tmp_path / "new")
    (tmp_path / "old").write_text("")
    check_writable(tmp_path / "old")


@pytest.mark.parametrize("name", ["folder", "none/file"])
def test_what_cannot_be_written_does_not(tmp_path, name):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        check_writable(tmp_path / name)
