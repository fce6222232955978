"""Several engines work on one store, one session and one artifact at once, and nothing is lost.

Other commands read and write the store meanwhile. All of them are processes of their own, as
several terminals start them.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import onnx
import pytest

from collage_engine.artifact.manifest import read_manifest
from collage_engine.store.session_file import load_session
from collage_engine.store.store import FILE_NAME
from tests.support.caches import fresh_cache
from tests.support.command import started
from tests.support.toolchain_models import convolutions

HANGS_S = 400.0
"""Seconds after which a command counts as one that hangs."""
PLACE = (
    *("place", "model.onnx", "-o", "out", "--session", "both.collage", "--threads", "1"),
    *("--toolchains", "tvm,onnxruntime", "--budget", "10s", "--no-in-model"),
)
"""Measures candidates and comes to its end soon."""


@pytest.mark.timeout(500)
def test_several_place_at_once_while_others_export_and_import_their_store(tmp_path: Path) -> None:
    cache, folder = fresh_cache(tmp_path / "cache"), tmp_path / "folder"
    folder.mkdir()
    onnx.save(convolutions(), folder / "model.onnx")

    def start(*arguments: str) -> subprocess.Popen[str]:
        return started(*arguments, cache=cache, cwd=folder)

    def ends_well(one: subprocess.Popen[str]) -> None:
        _, said = one.communicate(timeout=HANGS_S)
        assert one.returncode == 0, said

    engines = [start(*PLACE) for _ in range(2)]
    try:
        while any(one.poll() is None for one in engines):
            ends_well(start("store", "export", "exported.json"))
            ends_well(start("store", "import", "exported.json"))
        for one in engines:
            ends_well(one)
    finally:
        for one in engines:
            one.kill()
    read_manifest(folder / "out", verify=True)
    ends_well(start("run", "out"))
    session = load_session(folder / "both.collage")
    assert len(session.runs) == 2, "the session keeps the runs of both"
    ends_well(start("store", "export", "exported.json"))
    heading, *measurements = (folder / "exported.json").read_text().splitlines()
    assert "collage_store" in json.loads(heading)
    with closing(sqlite3.connect(cache / FILE_NAME, timeout=60.0)) as store:
        assert store.execute("pragma integrity_check").fetchone()[0] == "ok"
        (stored,) = store.execute("select count(*) from measurements").fetchone()
    assert len(measurements) == stored > 0
    left = {path.name for path in folder.iterdir()}
    left -= {"model.onnx", "out", "both.collage", "exported.json"}
    assert not left, "nothing unfinished lies beside it"
