"""Artifacts: written whole or not at all, and run without this project."""

from __future__ import annotations

import json
import subprocess

import pytest

from collage_engine.artifact import artifact as artifact_module
from collage_engine.artifact.artifact import check_target_folder, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import is_artifact, read_manifest
from collage_engine.cli.main import main
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.model.importer import import_model
from collage_engine.support.errors import ArtifactError, UsageError
from tests.support.artifact_cases import MNIST, run_cpp, sample_of
from tests.support.covers import candidate_on
from tests.support.plain_toolchain import PLAIN, register


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(model, folder of the built module, contents) of MNIST in two plain partitions."""
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        model = import_model(MNIST)
        count = len(model.graph.operators)
        cover = [candidate_on(PLAIN, tuple(range(5))), candidate_on(PLAIN, tuple(range(5, count)))]
        folder = tmp_path_factory.mktemp("module") / "built"
        write_module(build_cover(model, cover), folder)
    return model, folder, sample_of(model, cover)


@pytest.fixture
def written(made, tmp_path):
    model, folder, contents = made
    return write_artifact(model, folder, tmp_path / "artifact", contents)


def test_a_trace_shows_a_run_of_it(written, tmp_path, capsys):
    out = tmp_path / "trace.json"
    assert main(["run", str(written), "--trace", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    events = json.loads(out.read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    (run,) = (each for each in slices if each["name"] == "mnist.onnx")
    parts = [each for each in slices if each["name"].split()[0] in ("p0", "p1")]
    between = [each for each in slices if each["name"] == "between partitions"]
    assert len(parts) == 2 and len(between) == 3
    total = sum(each["dur"] for each in (*parts, *between))
    assert total == pytest.approx(run["dur"]) and run["dur"] > 0
    kernels = [each for each in slices if each["tid"] == parts[0]["tid"] and each not in parts]
    inside = sum(each["dur"] for each in kernels)
    assert 0 < inside <= sum(each["dur"] for each in parts) * (1 + 1e-9)
    begin, end = (event for event in events if event.get("cat") == "transition")
    assert begin["id"] == end["id"] and begin["ts"] < end["ts"]


def test_it_says_what_it_is_and_hashes_every_file(written, made):
    manifest = read_manifest(written, verify=True)
    assert manifest["model"]["name"] == "mnist.onnx"
    assert manifest["model"]["sha256"] == made[0].record.sha256
    assert [i["name"] for i in manifest["inputs"]] == [n for n, _ in made[0].inputs]
    assert [p["id"] for p in manifest["placement"]["partitions"]] == ["p0", "p1"]
    assert manifest["threads"] == 1
    assert manifest["versions"]["apache-tvm"]
    on_disk = {p.relative_to(written).as_posix() for p in written.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == on_disk - {"manifest.json"}


def test_the_cpp_loader_links_no_python(cpp_loader):
    needed = subprocess.run(["ldd", str(cpp_loader)], capture_output=True, text=True).stdout
    assert "libpython" not in needed and "tvm_compiler" not in needed


def test_the_cpp_loader_says_what_is_wrong(cpp_loader, written, tmp_path):
    assert run_cpp(cpp_loader).returncode == 2
    done = run_cpp(cpp_loader, str(tmp_path / "nothing"))
    assert done.returncode == 1 and "manifest.json is missing" in done.stderr
    (written / "sample_input.npz").write_bytes(b"PK")
    done = run_cpp(cpp_loader, str(written))
    assert done.returncode == 1 and "sample_input.npz" in done.stderr


def test_an_artifact_is_replaced_and_nothing_else_is(made, tmp_path):
    model, folder, contents = made
    out = tmp_path / "out"
    write_artifact(model, folder, out, contents)
    (out / "leftover").write_text("from the artifact before")
    write_artifact(model, folder, out, contents)
    assert is_artifact(out) and not (out / "leftover").exists()

    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("dear")
    with pytest.raises(ArtifactError, match="is not empty and holds no artifact"):
        write_artifact(model, folder, other, contents)
    assert [p.name for p in other.iterdir()] == ["thesis.tex"]
    (other / "manifest.json").write_text('{"format": "something else"}')
    with pytest.raises(ArtifactError, match="holds no artifact"):
        check_target_folder(other)


def test_a_full_disk_leaves_what_was_there(made, tmp_path, monkeypatch):
    model, folder, contents = made
    out = tmp_path / "out"
    write_artifact(model, folder, out, contents)
    before = (out / "manifest.json").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact_module, "write_npz", full)
    with pytest.raises(ArtifactError, match="No space left on device"):
        write_artifact(model, folder, out, contents)
    assert (out / "manifest.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_damage_is_found_before_it_runs(written, tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        run_artifact(tmp_path / "absent")
    (written / "model.so").unlink()
    with pytest.raises(ArtifactError, match=r"model\.so is missing"):
        run_artifact(written)
