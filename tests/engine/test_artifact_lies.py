"""An artifact runs only what its hashes cover: with the program, and with its own loaders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import is_artifact
from collage_engine.records.errors import ArtifactError
from tests.support.artifact_cases import artifact_maker, run_cpp
from tests.support.full_documents import two_shapes
from tests.support.lying_artifacts import HARMLESS, MARK, REFUSED, REFUSED_ENTRIES, apply


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An artifact of MNIST that tells the truth."""
    return artifact_maker({"tvm": ["tvm"]}, tmp_path_factory.mktemp)("tvm")


@pytest.fixture
def artifact(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(MARK, str(tmp_path / "executed"))
    return Path(shutil.copytree(whole, tmp_path / "artifact"))


def _shipped(artifact: Path, *options: str) -> subprocess.CompletedProcess[str]:
    loader = str(artifact / "loader/run_artifact.py")
    command = [sys.executable, loader, *(options or ("--json",))]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=artifact)


@pytest.mark.parametrize("name", REFUSED)
def test_a_manifest_that_lies_is_refused_before_anything_runs(
    name: str, artifact: Path, tmp_path: Path, cpp_loader: Path
) -> None:
    lie, says = REFUSED[name]
    apply(lie, artifact)
    with pytest.raises(ArtifactError, match=says) as error:
        run_artifact(artifact)
    assert str(artifact) in str(error.value) and str(error.value).isprintable()
    done = _shipped(artifact)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.strip().isprintable()
    in_cpp = subprocess.run(
        [str(cpp_loader), str(artifact)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert in_cpp.returncode == 1 and "agrees" not in in_cpp.stdout, in_cpp.stderr
    assert in_cpp.stderr.strip().isprintable(), in_cpp.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", REFUSED_ENTRIES)
def test_an_entry_that_lies_is_refused_by_all_three(
    name: str, tmp_path: Path, cpp_loader: Path
) -> None:
    artifact = two_shapes(tmp_path / "artifact")
    lie, says = REFUSED_ENTRIES[name]
    apply(lie, artifact)
    with pytest.raises(ArtifactError, match=says) as error:
        run_artifact(artifact)
    assert str(error.value).isprintable() and "Error:" not in str(error.value)
    done = _shipped(artifact)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
    in_cpp = run_cpp(cpp_loader, str(artifact))
    assert in_cpp.returncode == 1 and len(in_cpp.stderr.splitlines()) == 1, in_cpp.stderr


def test_a_manifest_that_is_nested_without_end_is_refused(artifact: Path) -> None:
    (artifact / "manifest.json").write_text("[" * 1_000_000)
    with pytest.raises(ArtifactError, match="no manifest"):
        run_artifact(artifact)
    assert not is_artifact(artifact)
    assert "no manifest" in _shipped(artifact).stderr


@pytest.mark.parametrize("name", HARMLESS)
def test_modules_beside_the_loader_are_never_imported(
    name: str, artifact: Path, tmp_path: Path
) -> None:
    apply(HARMLESS[name], artifact)
    assert run_artifact(artifact)["max_rel_error"] <= 1e-4
    done = _shipped(artifact)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()
