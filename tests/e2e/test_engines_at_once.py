"""Several engines work on one store at once, and nothing of what they measured or made is lost.

Other commands change, read, empty or remove the store meanwhile. All of them are processes of their
own, as several terminals start them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import onnx
import pytest

from collage_engine.artifact.manifest import read_manifest, verify_files
from collage_engine.session.file import load_session
from collage_engine.store.store import FILE_NAME
from tests.support.caches import fresh_cache
from tests.support.toolchain_models import convolutions

LONG = bool(os.environ.get("COLLAGE_LONG_TESTS"))
ENGINES = 4 if LONG else 2
HANGS_S = 400.0
"""Seconds after which a command counts as one that hangs."""
OPTIONS = ("--toolchains", "tvm,onnxruntime", "--budget", "10s", "--threads", "1", "--no-in-place")
"""Of runs that measure candidates and come to their end soon."""
pytestmark = pytest.mark.timeout(500)


class Terminal:
    """Starts commands in a folder, with a cache folder of their own, and ends them all."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.cache = cache
        self.environment = os.environ | {"COLLAGE_CACHE_DIR": str(cache)}
        self.started: list[subprocess.Popen[str]] = []
        onnx.save(convolutions(), folder / "model.onnx")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``collage`` with some arguments."""
        one = subprocess.Popen(
            [sys.executable, "-m", "collage_engine", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        self.started.append(one)
        return one

    def place(self, out: str, *more: str) -> subprocess.Popen[str]:
        """Start placing the model."""
        return self.start("place", "model.onnx", "-o", out, *OPTIONS, *more)

    def run(self, *arguments: str) -> str:
        """Run a command to its end, which must be good, and return what it printed."""
        return self.ended_well(self.start(*arguments))

    def ended_well(self, one: subprocess.Popen[str]) -> str:
        """Wait for a command, which must end well, and return what it printed."""
        out, said = one.communicate(timeout=HANGS_S)
        assert one.returncode == 0, said
        return out

    def until_measured(self, count: int) -> None:
        """Wait until the store holds so many measurements."""
        end = time.monotonic() + HANGS_S
        while time.monotonic() < end:
            if (self.cache / FILE_NAME).exists() and self.measured() >= count:
                return
            time.sleep(0.1)
        raise AssertionError("nothing was measured")

    def measured(self) -> int:
        """Return how many measurements the store holds."""
        with closing(sqlite3.connect(self.cache / FILE_NAME, timeout=60.0)) as store:
            try:
                return int(store.execute("select count(*) from measurements").fetchone()[0])
            except sqlite3.OperationalError:  # its tables are about to be made
                return 0

    def check_store(self) -> None:
        """Check that the store is sound."""
        with closing(sqlite3.connect(self.cache / FILE_NAME, timeout=60.0)) as store:
            assert store.execute("pragma integrity_check").fetchone()[0] == "ok"

    def check_artifact(self, out: str) -> None:
        """Check that an artifact is whole, runs, and computes what the model does."""
        verify_files(self.folder / out, read_manifest(self.folder / out))
        self.run("run", out)

    def close(self) -> None:
        """End what still runs."""
        for one in self.started:
            if one.poll() is None:
                one.kill()
            one.communicate()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path, fresh_cache(tmp_path / "cache"))
    yield made
    made.close()


def test_several_place_with_one_store_while_others_export_and_import_it(terminal: Terminal) -> None:
    engines = [
        terminal.place(f"out{number}", *(("--session", "both.collage") if number < 2 else ()))
        for number in range(ENGINES)
    ]
    terminal.until_measured(1)
    while any(one.poll() is None for one in engines):
        terminal.run("store", "export", "exported.json")
        terminal.run("store", "import", "exported.json")
    for number, one in enumerate(engines):
        terminal.ended_well(one)
        terminal.check_artifact(f"out{number}")
    terminal.check_store()
    document = load_session(terminal.folder / "both.collage")
    assert len(document.runs) == 2, "the session keeps the runs of both"
    terminal.run("store", "export", "exported.json")
    heading, *measurements = (terminal.folder / "exported.json").read_text().splitlines()
    assert "collage_store" in json.loads(heading)
    assert len(measurements) == terminal.measured() > 0


@pytest.mark.skipif(not LONG, reason="places twice: COLLAGE_LONG_TESTS=1")
@pytest.mark.parametrize("what", ["cleared", "removed"])
def test_a_store_that_vanishes_meanwhile_ends_no_run(terminal: Terminal, what: str) -> None:
    engine = terminal.place("out")
    terminal.until_measured(2)
    if what == "cleared":
        terminal.run("store", "clear")
    else:
        for path in terminal.cache.glob(f"{FILE_NAME}*"):
            path.unlink()
    terminal.ended_well(engine)
    terminal.check_artifact("out")
    terminal.run("store", "info")
    terminal.ended_well(terminal.place("again"))
    terminal.check_artifact("again")
    terminal.check_store()


def test_two_that_write_one_artifact_leave_a_whole_one(terminal: Terminal) -> None:
    engines = [terminal.place("out") for _ in range(2)]
    for one in engines:
        terminal.ended_well(one)
    terminal.check_artifact("out")
    left = {path.name for path in terminal.folder.iterdir()} - {"model.onnx", "out", "cache"}
    assert not left, "nothing unfinished lies beside it"


@pytest.mark.skipif(not LONG, reason="compiles the adapters twice: COLLAGE_LONG_TESTS=1")
def test_two_that_compile_the_same_adapters_at_once(terminal: Terminal) -> None:
    terminal.environment["COLLAGE_BUILD_DIR"] = str(terminal.folder / "native")
    options = ("--toolchains", "tvm,onednn,openvino", "--budget", "2m", "--threads", "1")
    engines = [
        terminal.start("place", "model.onnx", "-o", f"out{number}", *options, "--no-in-place")
        for number in range(2)
    ]
    for number, one in enumerate(engines):
        terminal.ended_well(one)
        terminal.check_artifact(f"out{number}")
    assert not list((terminal.folder / "native").rglob("build-*")), "no unfinished build is left"
