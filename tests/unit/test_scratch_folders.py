"""Scratch folders end with their owner, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from collage_engine.machine import scratch
from collage_engine.machine.whole_folder import tidy

OWNER = (
    "import os, pathlib, time\nfrom collage_engine.machine.scratch import Scratch\n"
    "beside = os.environ.get('BESIDE')\ns = Scratch(pathlib.Path(beside) if beside else None)\n"
    "(s.path / 'x').write_text('x')\nprint(s.path.parent, flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "YOUNG_S", -1.0)
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


def test_it_is_emptied_and_removed(temporary):
    made = scratch.Scratch()
    (made.path / "big").write_bytes(b"x")
    made.empty()
    assert made.path.is_dir() and not list(made.path.iterdir())
    made.close()
    assert not list(temporary.iterdir())


def test_only_folders_of_the_dead_are_removed(temporary):
    alive, kept = owner(temporary)
    killed, orphan = owner(temporary)
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        assert orphan.is_dir()
        mine = scratch.Scratch()
        assert not orphan.exists()
        assert (kept / "tmp" / "x").exists()
        mine.close()
    finally:
        for process in (alive, killed):
            process.kill()
            process.wait(10)
            process.stdout.close()


def test_what_a_killed_placing_of_several_shapes_left_is_removed_by_the_next(temporary):
    place = temporary / "artifacts"
    place.mkdir()
    os.environ["BESIDE"] = str(place)
    try:
        killed, orphan = owner(temporary)
    finally:
        del os.environ["BESIDE"]
    killed.kill()
    killed.wait(10)
    killed.stdout.close()
    assert orphan.parent == place and orphan.name.startswith(".")
    with scratch.Scratch(place) as mine:
        assert not orphan.exists() and mine.is_dir()
    assert not list(place.iterdir())


def test_a_folder_without_locks_keeps_what_may_be_in_use(temporary, monkeypatch):
    def refuse(path, *, wait=True):
        path.touch()
        raise OSError("no locks here")

    monkeypatch.setattr(scratch, "HeldLock", refuse)
    first, second = scratch.Scratch(), scratch.Scratch()
    assert first.path.is_dir()
    first.empty()
    for each in (first, second):
        each.close()
    assert not list(temporary.iterdir())


def test_a_killed_export_leaves_nothing_beside_the_artifact(tmp_path):
    (tmp_path / ".out.abc.partial").mkdir()
    (tmp_path / ".out.abc.partial" / "model.so").touch()
    (tmp_path / ".other.abc.partial").mkdir()
    (tmp_path / "out").mkdir()
    tidy(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.abc.partial", "out"]
