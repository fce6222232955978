"""Artifacts and sessions of the version before the renovation: run with today's loaders, exported
today."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import read_manifest
from collage_engine.cli.main import main
from tests.support.artifact_cases import MNIST

OLD = Path(__file__).resolve().parents[1] / "data" / "old_versions"
ARTIFACT = OLD / "artifact_1"
BUILT_FOR = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}

runs_here = pytest.mark.skipif(
    not set(Path("/proc/cpuinfo").read_text().split()) >= BUILT_FOR,
    reason="the old artifact is built for AVX-512",
)


@runs_here
def test_an_old_artifact_runs_with_todays_loader(capsys):
    assert run_artifact(ARTIFACT)["max_rel_error"] <= 1e-4
    assert main(["run", str(ARTIFACT), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tolerance"] == 1e-4


@runs_here
def test_an_old_artifact_runs_with_its_own_loader():
    done = subprocess.run(
        [sys.executable, str(ARTIFACT / "loader" / "run_artifact.py"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["agrees"]


@pytest.mark.slow
def test_the_placement_of_an_old_session_is_exported_today(tmp_path, monkeypatch):
    session = shutil.copy(OLD / "session_1.collage", tmp_path / "old.collage")
    with sqlite3.connect(session) as connection:
        connection.execute(
            "update meta set value = json_set(value, '$.path', ?) where key = 'model'", [str(MNIST)]
        )
    assert main(["export", str(session), "-o", str(tmp_path / "artifact")]) == 0
    parts = read_manifest(tmp_path / "artifact")["placement"]["partitions"]
    assert [part["toolchain"] for part in parts] == ["tvm"]
    assert run_artifact(tmp_path / "artifact")["max_rel_error"] <= 1e-4
