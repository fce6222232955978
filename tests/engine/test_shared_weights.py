"""Large weights are files by their content, which covers and the shapes of an artifact share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.combine import combine_artifacts
from collage_engine.artifact.custom_op import embed
from collage_engine.artifact.manifest import read_manifest
from collage_engine.lowering.build import build_cover, write_module
from collage_engine.lowering.built import MODULE_FILE
from collage_engine.lowering.emit import LoweredParts
from collage_engine.lowering.shared_weights import FOLDER, LEAST_BYTES
from collage_engine.machine.loader import run_artifact as loader
from collage_engine.model.importer import ImportedModel, import_model, import_onnx
from collage_engine.support.errors import ArtifactError
from collage_engine.toolchains.registry import probe
from tests.support.artifact_cases import artifact_of, compile_loader, cover_in_turn, run_cpp
from tests.zoo.net import Net

WIDTH, LAYERS = 256, 4
SMALL_BYTES = 3 * LEAST_BYTES
"""A module without its large weights, at most: code, plans and biases of this model."""


def dense(rows: int = 8) -> ModelProto:
    """Layers of 256 kB each, the first two with equal weights, and one that is too small."""
    net = Net("dense", seed=7)
    x, shared = net.input("x", [rows, WIDTH]), net.weight(WIDTH, WIDTH, fan_in=WIDTH)
    for weight in (shared, shared, *(net.weight(WIDTH, WIDTH, fan_in=WIDTH) for _ in range(2))):
        x = net.op("Relu", net.op("MatMul", x, weight))
    net.output(net.op("MatMul", x, net.weight(WIDTH, 8, fan_in=WIDTH)))
    return net.model()


@pytest.fixture(scope="module")
def model() -> ImportedModel:
    return import_onnx(dense())


def needs(names: list[str]) -> None:
    for name in names:
        state = probe(name)
        if not state.available:
            pytest.skip(f"{name}: {state.reason}")


def weight_files(folder: Path) -> dict[str, int]:
    """Sizes of the files of weights in a folder, by name."""
    return {file.name: file.stat().st_size for file in (folder / FOLDER).iterdir()}


@pytest.mark.parametrize(
    "names",
    [["tvm"], ["onnxruntime"], ["openvino"], ["onednn"], ["onnxruntime", "tvm", "onednn"]],
    ids="-".join,
)
def test_every_loader_reads_them(names: list[str], model: ImportedModel, tmp_path: Path) -> None:
    needs(names)
    artifact = artifact_of(model, cover_in_turn(model, names), tmp_path)
    files = read_manifest(artifact)["files"]
    assert set(weight_files(artifact).values()) == {WIDTH * WIDTH * 4}
    assert files[MODULE_FILE]["bytes"] < SMALL_BYTES
    assert {f"{FOLDER}/{name}" for name in weight_files(artifact)} < files.keys()
    moved = artifact.rename(tmp_path / "moved")
    assert run_artifact(moved)["max_rel_error"] < 1e-5
    done = run_cpp(compile_loader(), str(moved))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_weights_of_the_users_own_file_are_shared(name: str, tmp_path: Path) -> None:
    """A whole model is compiled from the file, whose weights no BatchNormalization is in."""
    needs([name])
    net = Net("normalised", seed=8)
    x = net.input("x", [1, 64, 8, 8])
    net.output(net.batch_norm(net.conv(x, 64, 64, 3), 64))
    onnx.save(net.model(), tmp_path / "model.onnx")
    model = import_model(tmp_path / "model.onnx")
    artifact = artifact_of(model, cover_in_turn(model, [name]), tmp_path)
    assert [*weight_files(artifact).values()] == [64 * 64 * 9 * 4]
    assert run_artifact(artifact)["max_rel_error"] < 1e-5


def test_a_drop_in_reads_them(model: ImportedModel, tmp_path: Path) -> None:
    artifact = artifact_of(model, cover_in_turn(model, ["tvm"]), tmp_path)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(embed(artifact, tmp_path / "one.onnx")))
    session = onnxruntime.InferenceSession(str(tmp_path / "one.onnx"), options)
    inputs, truth = loader.read_sample(artifact, read_manifest(artifact))
    assert np.allclose(session.run(None, inputs)[0], truth[0], rtol=1e-4, atol=1e-5)


def test_covers_of_a_run_share_them(model: ImportedModel, tmp_path: Path) -> None:
    lowered = LoweredParts(tmp_path / FOLDER)
    alone, mixed = ["tvm"] * 2, ["tvm", "onnxruntime"]
    for number, names in enumerate((alone, mixed, alone)):
        built = build_cover(model, cover_in_turn(model, names), lowered=lowered)
        about = write_module(built, tmp_path / str(number), link=True)
        assert len(about.weight_files) == 3  # of four, two are equal
        for name in about.weight_files:
            assert (tmp_path / name).samefile(tmp_path / str(number) / name)
    whole, again = ((tmp_path / number / MODULE_FILE).read_bytes() for number in "02")
    assert whole == again


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_damage_is_refused(damage: str, model: ImportedModel, tmp_path: Path) -> None:
    artifact = artifact_of(model, cover_in_turn(model, ["tvm"]), tmp_path)
    file = next((artifact / FOLDER).iterdir())
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(bytes(file.stat().st_size))
    words = {"missing": "is missing or no regular file", "changed": "has changed since"}[damage]
    with pytest.raises(ArtifactError, match=f"{FOLDER}/{file.name} {words}"):
        run_artifact(artifact)
    with pytest.raises(loader.Damaged, match=words):
        loader.load(artifact)
    done = run_cpp(compile_loader(), str(artifact))
    assert done.returncode == 1 and words in done.stderr


def test_shapes_of_an_artifact_share_them(tmp_path: Path) -> None:
    def of(rows: int) -> Any:
        model = import_onnx(dense(rows))
        (tmp_path / str(rows)).mkdir()
        return artifact_of(model, cover_in_turn(model, ["onnxruntime"]), tmp_path / str(rows))

    rows = (4, 8)
    out = tmp_path / "out"
    sharing = combine_artifacts([of(n) for n in rows], [{"rows": n} for n in rows], out)
    files = weight_files(out / "0")
    assert files == weight_files(out / "1") and len(files) == 3
    for name in files:
        assert (out / "0" / FOLDER / name).samefile(out / "1" / FOLDER / name)
    assert sharing.apart_bytes - sharing.bytes > sum(files.values())
    inputs, truth = loader.read_sample(out / "1", read_manifest(out / "1"))
    assert np.allclose(loader.load(out)(inputs)[0], truth[0], rtol=1e-4, atol=1e-5)
