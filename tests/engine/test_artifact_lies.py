"""An artifact runs only what its hashes cover: with the program, and with its own loaders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import is_artifact
from collage_engine.support.errors import ArtifactError
from tests.support.artifact_cases import run_cpp
from tests.support.full_documents import one_shape, two_shapes


def _shipped(artifact: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(artifact / "loader/run_artifact.py")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=artifact)


def refused_by_all_three(artifact: Path, says: str, cpp_loader: Path) -> None:
    """Check that the program and both loaders refuse an artifact in a sentence."""
    with pytest.raises(ArtifactError, match=says) as error:
        run_artifact(artifact)
    assert str(artifact) in str(error.value) and str(error.value).isprintable()
    for done in (_shipped(artifact), run_cpp(cpp_loader, str(artifact))):
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert done.stderr.strip().isprintable()


@pytest.mark.parametrize(
    ("make", "file"),
    [(one_shape, "model.so"), (two_shapes, "1/model.so"), (two_shapes, "1/manifest.json")],
)
def test_a_file_that_was_changed_is_found(make, file, tmp_path, cpp_loader) -> None:
    artifact = make(tmp_path / "artifact")
    with (artifact / file).open("ab") as stream:
        stream.write(b" ")
    refused_by_all_three(artifact, rf"{Path(file).name} has changed", cpp_loader)


def test_another_version_is_refused(tmp_path: Path, cpp_loader: Path) -> None:
    artifact = one_shape(tmp_path / "artifact")
    manifest = json.loads((artifact / "manifest.json").read_text())
    (artifact / "manifest.json").write_text(json.dumps(manifest | {"format_version": 1}))
    refused_by_all_three(artifact, "version", cpp_loader)


@pytest.mark.parametrize("content", [None, "[" * 1_000_000], ids=["missing", "nested"])
def test_what_has_no_manifest_is_no_artifact(content: str | None, tmp_path: Path) -> None:
    artifact = one_shape(tmp_path / "artifact")
    (artifact / "manifest.json").unlink()
    if content:
        (artifact / "manifest.json").write_text(content)
    with pytest.raises(ArtifactError, match="no manifest"):
        run_artifact(artifact)
    assert not is_artifact(artifact)
    assert "no manifest" in _shipped(artifact).stderr


def test_modules_beside_the_loader_are_never_imported(tmp_path: Path) -> None:
    artifact = one_shape(tmp_path / "artifact")
    executed = tmp_path / "executed"
    for name in ("loader/numpy.py", "loader/argparse.py", "tvm.py"):
        (artifact / name).write_text(f"open({str(executed)!r}, 'w')\n")
    assert run_artifact(artifact)["max_rel_error"] <= 1e-4
    done = _shipped(artifact)
    assert done.returncode == 0, done.stderr
    assert not executed.exists()
