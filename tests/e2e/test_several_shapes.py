"""One model placed for several shapes, and its artifact run by both loaders, as a user would."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.combine import fastest
from collage_engine.artifact.custom_op import embed
from collage_engine.artifact.manifest import read_manifest
from collage_engine.lowering.reference import run_onnx
from collage_engine.machine.loader import run_artifact as loader
from collage_engine.machine.loader.run_artifact import read_npz, sha256
from collage_engine.support.errors import ArtifactError
from collage_engine.support.files import write_npz
from tests.support.artifact_cases import compile_loader, run_cpp, run_with_loader
from tests.support.caches import fresh_cache
from tests.support.command import collage, python
from tests.support.json_schemas import assert_fits
from tests.zoo.net import Net

BATCHES = (1, 2, 4)


def model_bytes() -> bytes:
    """Half a million weights behind a batch of any size."""
    net = Net("classifier", opset=13, seed=5)
    x = net.input("image", ["batch", 64])
    x = net.op("Relu", net.dense(x, 64, 1024))
    x = net.op("Relu", net.dense(x, 1024, 512))
    net.output(net.dense(x, 512, 5), shape=["batch", 5])
    return net.model().SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("shapes")
    fresh_cache(made / "cache")
    (made / "m.onnx").write_bytes(model_bytes())
    return made


@pytest.fixture(scope="module")
def placed(folder) -> dict:
    """The document of a run for three batches."""
    done = collage(
        f"place {folder / 'm.onnx'} -o {folder / 'out'} --dim batch=1,2,4 "
        f"--others --json --session {folder / 's.collage'} --budget 45s "
        "--no-in-model --confirm quick --toolchains onnxruntime --threads 1",
        cache=folder / "cache",
    )
    assert done.returncode == 0, done.stderr
    assert [f"For batch={batch}:" in done.stderr.splitlines() for batch in BATCHES] == [True] * 3
    assert ".collage-process-" not in done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def cpp() -> Path:
    return compile_loader()


def truth(folder: Path, batch: int) -> tuple[dict, dict]:
    """Inputs of a batch that is in no sample, and what the model computes of them."""
    model = onnx.load(folder / "m.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    image = np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)
    inputs = {"image": image}
    return inputs, {model.graph.output[0].name: run_onnx(model, inputs)[0]}


def test_the_document_has_a_row_for_each_shape(placed, folder):
    assert_fits("place", "shapes", placed)
    assert [row["choice"]["dims"]["batch"] for row in placed["shapes"]] == list(BATCHES)
    for batch, row, run in zip(BATCHES, placed["shapes"], placed["runs"], strict=True):
        assert row["inputs"] == {"image": [batch, 64]} and row["items"] == batch
        assert row["latency_us"] == run["placement"]["measured_us"] > 0
        assert row["items_per_s"] == pytest.approx(batch * 1e6 / row["latency_us"])
        assert row["toolchains"] == ["onnxruntime"]
        assert len(run["shapes"]) == 3 and run["artifact"] == str(folder / "out")
    assert placed["sessions"] == [str(folder / "s.collage")]
    assert not list(folder.glob(".collage-process-*"))


def test_each_shape_is_an_artifact_and_equal_files_are_stored_once(placed, folder):
    sharing, manifest = placed["sharing"], read_manifest(folder / "out")
    assert [entry["folder"] for entry in manifest["entries"]] == ["0", "1", "2"]
    for number, batch in enumerate(BATCHES):
        own = read_manifest(folder / "out" / str(number), verify=True)
        assert own["inputs"][0]["shape"] == [batch, 64]
        assert manifest["entries"][number]["inputs"] == own["inputs"]
    on_disk = [p for p in (folder / "out").rglob("*") if p.is_file()]
    of_contents = {(p.stat().st_ino, sha256(p)): p.stat().st_size for p in on_disk}
    contents = {digest for _, digest in of_contents}
    assert len(of_contents) == len(contents)  # no content has two files of its own
    manifests = sum(p.stat().st_size for p in on_disk if p.name == "manifest.json")
    assert sharing["bytes"] == sum(of_contents.values()) - manifests
    # Of two shapes after the first only modules and samples are new, not the runtime's libraries.
    assert sharing["bytes"] < 0.5 * sharing["apart_bytes"]


def test_every_entry_agrees_with_its_sample_in_both_loaders(placed, folder, cpp):
    result = run_artifact(folder / "out", benchmark=True)
    assert_fits("run", "several shapes", json.loads(json.dumps(result)))
    assert [entry["dims"]["batch"] for entry in result["entries"]] == list(BATCHES)
    assert all(entry["max_rel_error"] <= 1e-4 for entry in result["entries"])
    assert all(entry["median_us"] > 0 for entry in result["entries"])
    done = run_cpp(cpp, str(folder / "out"))
    assert done.returncode == 0 and done.stdout.count("agrees with the sample") == 3, done.stderr
    done = run_cpp(cpp, str(folder / "out" / "2"))
    assert done.returncode == 0 and "agrees with the sample" in done.stdout, done.stderr
    said = collage(f"run {folder / 'out'}", cache=folder / "cache").stdout
    assert all(f"batch={batch}" in said for batch in BATCHES)


@pytest.mark.parametrize("batch", [1, 2, 3, 4])
def test_inputs_choose_the_entry_by_their_shapes(placed, folder, tmp_path, batch):
    inputs, outputs = truth(folder, batch)
    write_npz(tmp_path / "i.npz", inputs)
    done = run_with_loader(folder / "out", tmp_path / "i.npz", tmp_path / "saved.npz")
    assert done.returncode == 0, done.stderr
    (found,) = read_npz(tmp_path / "saved.npz", {}).values()
    np.testing.assert_allclose(found, *outputs.values(), rtol=1e-3, atol=1e-4)


def test_any_other_shape_runs_the_models_own_file_and_is_counted(placed, folder):
    manifest = read_manifest(folder / "out")
    assert placed["sharing"]["others"] == manifest["others"]["runtime"] == "onnxruntime"
    assert all(entry["pays_from"] > 0 for entry in manifest["entries"])
    own = folder / "out" / manifest["others"]["file"]
    assert own.read_bytes() == (folder / "m.onnx").read_bytes()
    shutil.move(folder / "m.onnx", folder / "moved.onnx")  # the artifact has all that it needs
    try:
        model = loader.load(folder / "out")
        with pytest.warns(RuntimeWarning, match=r"\[5, 64\].*own file.*--dim batch=…,5") as said:
            for batch in (5, 4, 5, 7):
                image = np.random.default_rng(batch).standard_normal((batch, 64), np.float32)
                (found,) = model(image)
                true = run_onnx(onnx.load(folder / "moved.onnx"), {"image": image})[0]
                np.testing.assert_allclose(found, true, rtol=1e-3, atol=1e-4)
        assert len(said) == 1
        stats = model.stats()
        assert stats["others"] == {"image [5, 64]": 2, "image [7, 64]": 1}
        assert [entry["calls"] for entry in stats["entries"]] == [0, 0, 1]
        with pytest.raises(ValueError, match="input 'image' is missing"):
            model({})
    finally:
        shutil.move(folder / "moved.onnx", folder / "m.onnx")


ANY_SIZE = """
#include <cstdio>
#include "artifact.h"
using namespace collage;
int main(int count, char** words) {
  Artifact artifact(words[1], Opened(words[1]));
  for (int k = 2; k < count; ++k) {
    const int64_t batch = std::atoi(words[k]);
    ffi::Tensor image = NewTensor({batch, 64}, DLDataType{kDLFloat, 32, 1});
    float* values = static_cast<float*>(image.data_ptr());
    for (int64_t i = 0; i < 64 * batch; ++i) values[i] = 0.25f * static_cast<float>(i % 7) - 0.5f;
    const ffi::Tensor output = artifact.Run({image})[0];
    const float* made = reinterpret_cast<const float*>(DataOf(output));
    for (int64_t i = 0; i < output.numel(); ++i) std::printf("%.9g ", made[i]);
    std::printf("\\n");
  }
}
"""
"""Calls an artifact for each of some batches, and prints the outputs."""
DROP_IN = """
import sys
import numpy as np, onnxruntime
model, library, *batches = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.register_custom_ops_library(library)
session = onnxruntime.InferenceSession(model, options)
assert session.get_inputs()[0].shape == ["batch", 64]
for batch in map(int, batches):
    image = 0.25 * (np.arange(64 * batch) % 7).astype(np.float32) - np.float32(0.5)
    (made,) = session.run(None, {"image": image.reshape(batch, 64)})
    print(*made.ravel().tolist())
"""


@pytest.mark.parametrize("way", ["a program in C++", "a session with the drop-in"])
def test_any_size_runs_outside_of_python(placed, folder, tmp_path, way):
    """Batches of 1 and 4 have entries, 3 lies between entries, 5 and 7 are larger than all."""
    out = tmp_path / "out"
    shutil.copytree(folder / "out", out)
    batches = (1, 3, 5, 4, 5, 7)
    if way == "a program in C++":
        (tmp_path / "any_size.cc").write_text(ANY_SIZE)
        program = compile_loader(tmp_path / "any_size.cc")
        done = run_cpp(program, str(out), *map(str, batches))
    else:
        library = embed(out, tmp_path / "drop-in.onnx")
        done = python(DROP_IN, tmp_path / "drop-in.onnx", library, *map(str, batches))
    assert done.returncode == 0, done.stderr
    for batch, line in zip(batches, done.stdout.splitlines(), strict=True):
        image = (0.25 * (np.arange(64 * batch) % 7) - 0.5).astype(np.float32).reshape(batch, 64)
        true = run_onnx(onnx.load(folder / "m.onnx"), {"image": image})[0]
        found = np.array(line.split(), np.float32).reshape(batch, 5)
        np.testing.assert_allclose(found, true, rtol=1e-3, atol=1e-4)
    assert done.stderr.count("no entry for") == 1 and "image [3, 64]" in done.stderr


def test_a_size_that_an_artifact_cannot_take_is_refused_outside_of_python(placed, folder, tmp_path):
    out, (session,) = tmp_path / "drop-in", placed["sessions"]
    done = collage(f"export {session} --onnxruntime {out}.onnx", cache=folder / "cache")
    assert done.returncode == 0, done.stderr
    done = python(DROP_IN, f"{out}.onnx", out / "libcollage_custom_op.so", 2, 5)
    assert done.returncode == 1 and "has no entry for image [5, 64]" in done.stderr


def test_a_file_that_was_changed_is_not_taken_for_the_models_own(placed, folder, tmp_path):
    changed = tmp_path / "changed.onnx"
    changed.write_bytes((folder / "m.onnx").read_bytes() + b"\x42\x00")
    with pytest.raises(ArtifactError, match="was changed"):
        fastest(changed, [folder / "out" / "0"], {"onnxruntime"})


def test_a_session_of_several_shapes_is_exported_as_one_artifact_or_for_one_shape(placed, folder):
    (session,) = placed["sessions"]
    done = collage(f"export {session} -o {folder / 'all'}", cache=folder / "cache")
    assert done.returncode == 0, done.stderr
    manifest = read_manifest(folder / "all")
    assert [entry["dims"]["batch"] for entry in manifest["entries"]] == list(BATCHES)
    assert manifest["padding"] == "batch" and "others" not in manifest
    says = r"no entry for image \[5, 64\]; it has image \[1, 64\]; image \[2, 64\]; image \[4, 64\]"
    with pytest.raises(ValueError, match=says):
        loader.load(folder / "all")(np.zeros((5, 64), np.float32))
    one = folder / "one"
    done = collage(f"export {session} -o {one} --dim batch=4", cache=folder / "cache")
    assert done.returncode == 0, done.stderr
    assert read_manifest(one)["inputs"][0]["shape"] == [4, 64]
    none = collage(f"export {session} -o {one} --dim batch=3", cache=folder / "cache")
    assert none.returncode == 2 and "no shape with batch=3" in none.stderr


def test_a_log_of_calls_says_which_shapes_are_placed(folder, tmp_path):
    digest = sha256(folder / "m.onnx")
    calls = [{"model": digest, "dims": {"batch": b}, "shapes": {}, "us": 10 * b} for b in (3, 6)]
    calls += [{"model": "another", "dims": {"n": 1}, "us": 1.0}, calls[0], calls[1], calls[1]]
    log = tmp_path / "calls.jsonl"
    log.write_text("".join(json.dumps(call) + "\n" for call in calls))
    place = f"place {folder / 'm.onnx'} -o {tmp_path / 'out'} --from-calls {log} --budget 8s "
    done = collage(
        f"{place} --toolchains onnxruntime,openvino --threads 1 --others --no-in-model",
        cache=folder / "cache",
    )
    assert done.returncode == 0, done.stderr
    said = "5 calls of 2 shapes; 100% of their time is that of the shapes to be placed"
    assert f"{log}: {said}: batch=6, batch=3" in done.stderr
    entries = read_manifest(tmp_path / "out")["entries"]
    assert [entry["dims"]["batch"] for entry in entries] == [6, 3]
    log.write_text(json.dumps(calls[2]))
    done = collage(place, cache=folder / "cache")
    assert done.returncode == 2 and "no call of this model" in done.stderr


def test_a_size_that_contradicts_the_model_is_a_sentence_and_nothing_is_written(folder):
    """A reshape that is written for a batch of two."""
    net = Net("fixed", opset=13, seed=5)
    x = net.op("Relu", net.input("image", ["batch", 8]))
    x = net.op("Reshape", x, net.const([2, 8], np.int64), name="as_two")
    net.output(x)
    (folder / "fixed.onnx").write_bytes(net.model().SerializeToString())
    done = collage(
        f"place {folder / 'fixed.onnx'} -o {folder / 'never'} --dim batch=2,3",
        cache=folder / "cache",
    )
    assert done.returncode in (1, 2) and "batch=3: " in done.stderr
    assert "as_two" in done.stderr, done.stderr
    assert not (folder / "never").exists() and not os.path.exists(folder / "never.collage")
