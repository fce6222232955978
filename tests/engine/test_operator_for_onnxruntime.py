"""An artifact as one operator of ONNX Runtime, run by the wheel's own API."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.custom_op import embed
from collage_engine.model.importer import import_model
from collage_engine.support.errors import UsageError
from tests.support.artifact_cases import artifact_maker, artifact_of, cover_in_turn
from tests.support.command import python
from tests.support.written import written
from tests.zoo.net import Net

COVERS = {"tvm": ["tvm"], "mixed": ["openvino", "tvm", "onnxruntime", "onednn"]}

SESSION = """
import json, sys
import numpy as np, onnxruntime

def session(model, library):
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, options)

def sample(folder):
    return [dict(np.load(f"{folder}/sample_{of}.npz")) for of in ("input", "output")]

def error(session, folder):
    inputs, truth = sample(folder)
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, inputs)
    assert len(found) == len(truth)
    return max(
        float(np.abs(y - truth[n]).max() / np.abs(truth[n]).max()) for n, y in zip(names, found)
    )
"""


def in_plain_session(body: str, *arguments: object) -> str:
    """Run lines in a process that imports nothing of this project; returns what they print."""
    done = python(SESSION + body, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return artifact_maker(COVERS, tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def embedded(artifacts, tmp_path_factory):
    """The artifact of three toolchains, the model of one operator, and the library."""
    folder = artifacts("mixed")
    model = tmp_path_factory.mktemp("models") / "mnist.onnx"
    return folder, model, embed(folder, model)


def test_a_plain_session_gives_the_artifacts_values_in_a_moved_folder(embedded, tmp_path):
    folder, model, library = embedded
    moved = tmp_path / "moved" / "elsewhere"
    shutil.copytree(folder, moved)
    body = """
model, library, folder = sys.argv[1:]
opened = session(model, library)
print(json.dumps([
    error(opened, folder),
    [[v.name, v.shape, v.type] for v in (*opened.get_inputs(), *opened.get_outputs())],
]))
for wrong in ({"nothing": np.zeros(3, np.float32)}, {"Input3": np.zeros((1, 1, 2, 2), np.float32)}):
    try:
        opened.run(None, wrong)
        sys.exit("wrong inputs were taken")
    except Exception as refused:
        print(type(refused).__name__)
"""
    printed = in_plain_session(body, model, moved / library.name, moved).splitlines()
    found, values = json.loads(printed[0])
    assert found < 1e-5
    assert values == [
        ["Input3", [1, 1, 28, 28], "tensor(float)"],
        ["Plus214_Output_0", [1, 10], "tensor(float)"],
    ]
    assert printed[1:] == ["ValueError", "InvalidArgument"]
    assert run_artifact(moved)["max_rel_error"] < 1e-5, "it is an artifact as before"
    onnx.checker.check_model(onnx.load(model))


LOADS = """
import threading
failed = []
def use(folder):
    inputs, truth = sample(f"{folder}/artifact")
    for _ in range(5):
        try:
            if how == "loader":
                found = run_artifact.load(f"{folder}/artifact")(inputs)
            else:
                name = f"{folder}/artifact/libcollage_custom_op.so"
                found = session(f"{folder}/operator.onnx", name).run(None, inputs)
            assert np.allclose(found[0], *truth.values(), rtol=1e-3, atol=1e-4)
        except Exception as error:
            failed.append(str(error))
how, *folders = sys.argv[1:]
sys.path.insert(0, f"{folders[0]}/artifact/loader")
import run_artifact
threads = [threading.Thread(target=use, args=[folder]) for folder in folders]
[each.start() for each in threads]
[each.join() for each in threads]
print(failed)
"""


def test_different_models_are_loaded_at_the_same_time(tmp_path):
    """Each reads its weights from a folder of its own, which the environment names meanwhile."""
    folders = [tmp_path / str(number) for number in range(3)]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        net = Net("dense", opset=13, seed=seed)
        x = net.input("x", [1, 256])
        for _ in range(4):
            x = net.op("Relu", net.dense(x, 256, 256))
        net.output(x)
        onnx.save(net.model(), folder / "model.onnx")
        imported = import_model(folder / "model.onnx")
        placed = artifact_of(imported, cover_in_turn(imported, ["tvm", "onednn"]), folder)
        assert list((placed / "weights").iterdir())
        embed(placed, folder / "operator.onnx")
    for how in ("loader", "drop-in"):
        assert in_plain_session(LOADS, how, *folders).strip() == "[]"


def test_a_session_can_be_opened_again_after_it_was_closed(embedded):
    folder, model, library = embedded
    body = """
import gc
model, library, folder = sys.argv[1:]
for _ in range(3):
    opened = session(model, library)
    assert error(opened, folder) < 1e-5
    del opened
    gc.collect()
maps = open("/proc/self/maps").read()
print("onnxruntime_pybind11_state" in maps, "libonnxruntime.so" in maps)
"""
    assert in_plain_session(body, model, library, folder).split() == ["True", "False"]


def test_a_changed_artifact_is_refused_by_the_session(embedded, tmp_path):
    folder, model, library = embedded
    changed = tmp_path / "changed"
    shutil.copytree(folder, changed)
    (changed / "sample_input.npz").write_bytes(b"other")
    done = python(SESSION + "session(*sys.argv[1:])", str(model), str(changed / library.name))
    assert done.returncode != 0 and "sample_input.npz has changed" in done.stderr


def test_an_operator_has_the_models_outputs_and_types(tmp_path):
    """Two outputs, one of whole numbers, of an input in bytes."""
    model = written(
        """(uint8[2,3] x) => (float[2,3] half, int32[3,2] whole) {
            f = Cast<to=1>(x)
            half = Mul(f, h)
            t = Transpose(x)
            whole = Cast<to=6>(t)
        }""",
        {"h": np.float32(0.5)},
    )
    onnx.helper.set_model_props(model, {"character": "a\nb", "author": "us"})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    imported = import_model(path)
    folder = artifact_of(imported, cover_in_turn(imported, ["tvm"]), tmp_path)
    library = embed(folder, tmp_path / "operator.onnx")
    body = """
opened = session(*sys.argv[1:])
x = np.arange(6, dtype=np.uint8).reshape(2, 3)
half, whole = opened.run(["half", "whole"], {"x": x})
(alone,) = opened.run(["whole"], {"x": x[:, ::-1]})
assert half.dtype == np.float32 and (half == x / 2).all()
assert opened.get_modelmeta().custom_metadata_map == {"character": "a\\nb", "author": "us"}
assert whole.dtype == np.int32 and (whole == x.T).all() and (alone == x[:, ::-1].T).all()
"""
    in_plain_session(body, tmp_path / "operator.onnx", library)


def test_a_placement_that_is_onnx_runtime_alone_is_the_models_own_file(tmp_path):
    """Unless a session would compute otherwise: products of 8 bits, weights listed as inputs."""
    plain = "(float[2,3] x) => (float[2,3] y) { y = Add(x, h) }"
    bytes_ = "(float[2,3] x) => (float[2,3] y) { b = Cast<to=1>(q)\n y = Add(x, b) }"
    for number, (text, constants, listed, is_own) in enumerate(
        (
            (plain, {"h": np.float32(0.5)}, False, True),
            (plain, {"h": np.float32(0.5)}, True, False),
            (bytes_, {"q": np.int8(3)}, False, False),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        model = written(text, constants)
        if listed:
            weight = model.graph.initializer[0]
            value = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
            model.graph.input.append(value)
        onnx.save(model, folder / "model.onnx")
        imported = import_model(folder / "model.onnx")
        placed = artifact_of(imported, cover_in_turn(imported, ["onnxruntime"]), folder)
        library = embed(placed, folder / "out.onnx", folder / "model.onnx")
        same = (folder / "out.onnx").read_bytes() == (folder / "model.onnx").read_bytes()
        assert same == is_own, text
        body = "assert error(session(*sys.argv[1:3]), sys.argv[3]) < 1e-6"
        in_plain_session(body, folder / "out.onnx", library, placed)


def test_what_the_host_cannot_hold_is_refused(artifacts, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(artifacts("tvm"), folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    text = [manifest["inputs"][0] | {"dtype": "string"}]
    for change, words in (
        ({"device": "cuda"}, "on a device"),
        ({"requires": [{"reason": "it runs through a module"}]}, "through a module"),
        ({"inputs": text}, "texts"),
    ):
        (folder / "manifest.json").write_text(json.dumps(manifest | change))
        with pytest.raises(UsageError, match=words):
            embed(folder, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
