"""Programs that know ONNX Runtime only, run unchanged with placements in place of its sessions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.artifact.combine import combine_artifacts, fastest
from collage_engine.model.importer import import_model
from tests.support.artifact_cases import artifact_of, cover_in_turn
from tests.support.command import ROOT
from tests.zoo.net import Net

CLIENT = """
import copy, json, pickle, sys, threading
import numpy as np
import onnxruntime as ort
from onnxruntime import InferenceSession

path, sizes, as_bytes = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "bytes"
session = InferenceSession(open(path, "rb").read() if as_bytes else path,
                           ort.SessionOptions(), providers=["CPUExecutionProvider"])
def said(call):
    try:
        return repr(call())
    except Exception as error:
        return f"{type(error).__name__}: {error}"
(given,), (made, *_) = session.get_inputs(), session.get_outputs()
def values(shape):
    random = np.random.default_rng(sum(shape))
    if given.type == "tensor(int64)":
        return random.integers(0, 50, shape)
    return random.standard_normal(shape).astype(np.float32)
meta = session.get_modelmeta()
arrays = [session.run([made.name], {given.name: values(shape)}, ort.RunOptions())[0]
          for shape in sizes]
wrong = []
def ask(number):
    for _ in range(20):
        (array,) = session.run(None, {given.name: values(sizes[number])})
        if not np.allclose(array, arrays[number], rtol=1e-4, atol=1e-5):
            wrong.append(number)
threads = [threading.Thread(target=ask, args=(k,)) for k in range(len(sizes)) for _ in "ab"]
[t.start() for t in threads]; [t.join() for t in threads]
print(json.dumps({
    "program": sys.argv[0],
    "is session": isinstance(session, ort.InferenceSession),
    "inputs": [[v.name, v.type, v.shape] for v in session.get_inputs()],
    "outputs": [[v.name, v.type, v.shape] for v in session.get_outputs()],
    "meta": [meta.custom_metadata_map, meta.graph_name, meta.producer_name, meta.version,
             meta.domain, meta.description, meta.graph_description],
    "providers": session.get_providers(),
    "threads were wrong": wrong,
    "missing": said(lambda: session.run(None, {})),
    "unknown": said(lambda: session.run(["nothing"], {given.name: values(sizes[0])})),
    "initializers": said(session.get_overridable_initializers),
    "other": said(lambda: InferenceSession(sys.argv[4]).run(None, {"x": np.ones(2, "f")})),
    "none": said(lambda: InferenceSession("nothing.onnx"))[:40],
    "results": [[str(a.dtype), a.shape, a.astype(float).ravel().tolist()] for a in arrays],
    "binding": said(session.io_binding)[:60],
    "pickled": said(lambda: pickle.dumps(session)),
    "copied": said(lambda: copy.deepcopy(session)),
}))
"""
DIFFER = ("binding", "pickled", "copied")
"""What a placement refuses in words of its own."""


def save(net: Net, path: Path) -> Path:
    model = net.model()
    onnx.helper.set_model_props(model, {"character": "a\nb\nc"})
    model.model_version, model.doc_string = 3, "reads a line"
    onnx.save(model, path)
    return path


def cnn(folder: Path) -> Path:
    """Any width."""
    net = Net("cnn", opset=13, seed=5)
    x = net.input("image", [1, 3, 16, "width"])
    x = net.op("Relu", net.conv(x, 3, 8))
    net.output(net.op("Relu", net.conv(x, 8, 8)), shape=[1, 8, 16, "width"])
    return save(net, folder / "cnn.onnx")


def text(folder: Path) -> Path:
    """Attention over any number of words, and their mean."""
    net = Net("text", opset=13, seed=5)
    ids = net.input("ids", ["batch", "sequence"], "int64")
    x = net.op("Gather", net.weight(50, 16, fan_in=16), ids)
    keys = net.op("Transpose", net.dense(x, 16, 16), perm=[0, 2, 1])
    weights = net.op("Softmax", net.op("MatMul", net.dense(x, 16, 16), keys), axis=-1)
    x = net.op("ReduceMean", net.op("MatMul", weights, x), axes=[1], keepdims=0)
    net.output(x, shape=["batch", 16])
    return save(net, folder / "text.onnx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("programs")
    (made / "client.py").write_text(CLIENT)
    net = Net("other", opset=13, seed=0)
    net.output(net.op("Neg", net.input("x", [2])), shape=[2])
    onnx.save(net.model(), made / "other.onnx")
    return made


def placed(model: Path, shape: tuple[int, ...], folder: Path) -> Path:
    """Half of the model on TVM, half on ONNX Runtime, for one shape."""
    (name,) = (value.name for value in onnx.load(model).graph.input)
    imported = import_model(model, {name: shape})
    folder.mkdir()
    return artifact_of(imported, cover_in_turn(imported, ["tvm", "onnxruntime"]), folder)


@pytest.fixture(scope="module")
def placements(folder) -> dict[str, Path]:
    """Of the network for pictures two widths, of the one for texts a single shape."""
    wide = [placed(cnn(folder), (1, 3, 16, w), folder / f"w{w}") for w in (32, 64)]
    own = fastest(folder / "cnn.onnx", wide, {"openvino"})  # which runs other widths
    combine_artifacts(wide, [{"width": 32}, {"width": 64}], folder / "cnn", own)
    return {
        "cnn": folder / "cnn",
        "text": placed(text(folder), (1, 8), folder / "text"),
    }


SIZES = {
    "cnn": [[1, 3, 16, 32], [1, 3, 16, 64], [1, 3, 16, 33]],
    "text": [[1, 8], [1, 9], [2, 8]],
}


def run(folder: Path, name: str, how: str, *start: object, **environment: str) -> dict:
    """What the program prints, and what else it said."""
    model, other = folder / f"{name}.onnx", folder / "other.onnx"
    arguments = (folder / "client.py", model, json.dumps(SIZES[name]), how, other)
    done = subprocess.run(
        [str(part) for part in (*(start or [sys.executable]), *arguments)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout), "said": done.stderr}


PATCHED = (sys.executable, "-m", "collage_engine.patch")


def patched(code: str, folder: Path, placement: Path, *arguments: Path):
    """Run a program with a placement in place of ONNX Runtime's sessions."""
    (folder / "program.py").write_text(code)
    return subprocess.run(
        [*PATCHED, str(folder / "program.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLLAGE_PLACEMENTS": str(placement)},
    )


@pytest.mark.parametrize(("name", "how"), [("cnn", "path"), ("cnn", "bytes"), ("text", "path")])
def test_a_program_does_the_same_with_a_placement(placements, folder, name, how):
    plain = run(folder, name, how)
    listed = os.pathsep.join(map(str, placements.values()))
    found = run(folder, name, how, *PATCHED, COLLAGE_PLACEMENTS=listed)
    said, mine, results = found.pop("said"), found.pop("results"), plain.pop("results")
    assert {k: v for k, v in found.items() if k not in DIFFER} == {
        k: v for k, v in plain.items() if k in found and k not in DIFFER
    }
    for (dtype, shape, values), (kind, sizes, true) in zip(mine, results, strict=True):
        assert (dtype, shape) == (kind, sizes)
        np.testing.assert_allclose(values, true, rtol=1e-3, atol=1e-4)
    where = str(placements[name])
    assert found["binding"].startswith("NotImplementedError: io_binding")
    refusal = f"TypeError: the placement {where} cannot be pickled or copied"
    assert found["pickled"] == found["copied"] == refusal
    assert said.count("has no entry for") == 1 and "own file" in said
    option = {"cnn": "--dim width=…,33", "text": "--dim batch=…,1 --dim sequence=…,9"}
    assert option[name] in said


def test_without_a_placement_a_session_is_the_original(folder, placements):
    found = run(folder, "text", "path", *PATCHED, COLLAGE_PLACEMENTS=str(placements["cnn"]))
    plain = run(folder, "text", "path")
    assert found == {**plain, "binding": found["binding"]}
    assert "IOBinding" in found["binding"]


def test_a_placement_that_is_onnx_runtime_alone_is_the_session(folder, tmp_path):
    """With the placement's threads, and all that sessions have; options stay as they were."""
    model = import_model(cnn(tmp_path), {"image": (1, 3, 16, 32)})
    where = artifact_of(model, cover_in_turn(model, ["onnxruntime"]), tmp_path)
    (folder / "alone.onnx").write_bytes((tmp_path / "cnn.onnx").read_bytes())
    SIZES["alone"] = SIZES["cnn"]
    plain = run(folder, "alone", "path")
    found = run(folder, "alone", "path", *PATCHED, COLLAGE_PLACEMENTS=str(where))
    assert found == {**plain, "binding": found["binding"]}
    code = """
import sys
import onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = 3
opened = ort.InferenceSession(sys.argv[1], options), ort.InferenceSession(sys.argv[1])
print(*(hasattr(session, "_placement") for session in opened), options.intra_op_num_threads)
print(len(__import__("os").listdir("/proc/self/task")))
"""
    (folder / "threads.py").write_text(code)
    command = [str(folder / "threads.py"), str(folder / "alone.onnx")]
    counts = []
    for listed in ("", str(where)):
        done = subprocess.run(
            [*PATCHED, *command],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "COLLAGE_PLACEMENTS": listed, "COLLAGE_RECORD": "/dev/null"},
        )
        said, count = done.stdout.splitlines()
        assert said == "False False 3", done.stderr
        counts.append(int(count))
    assert counts[0] - counts[1] >= 2  # one thread is the caller itself


def test_calls_are_recorded_with_their_sizes_and_times(folder, placements, tmp_path):
    log = tmp_path / "calls.jsonl"
    for more in ({}, {"COLLAGE_PLACEMENTS": str(placements["text"])}):
        run(folder, "text", "path", *PATCHED, COLLAGE_RECORD=str(log), **more)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    texts = [line for line in lines if "sequence" in line["dims"]]
    # In each program one call of every size, and twice twenty in threads.
    sizes = [{"batch": batch, "sequence": sequence} for batch, sequence in SIZES["text"]]
    counts = [sum(line["dims"] == dims for line in texts) for dims in sizes]
    assert counts == [82, 82, 82]
    assert all(line["us"] > 0 and line["shapes"] == {} for line in texts)
    assert len({line["model"] for line in texts}) == 1
    others = [line for line in lines if line not in texts]
    assert len({line["model"] for line in others}) == 1 and len(others) == 2


def test_one_line_in_sitecustomize_and_the_copy_of_an_artifact(folder, placements, tmp_path):
    """The package is not on the path: what the artifact carries is all that there is."""
    where = placements["cnn"]
    line = f"import runpy; runpy.run_path({str(where / 'loader' / 'patch.py')!r})['install']()\n"
    (tmp_path / "sitecustomize.py").write_text(line)
    environment = {"PYTHONPATH": str(tmp_path), "COLLAGE_PLACEMENTS": str(where)}
    found = run(folder, "cnn", "path", sys.executable, **environment)
    assert found["pickled"].startswith(f"TypeError: the placement {where}")
    copy = (sys.executable, "-P", where / "loader" / "patch.py")
    found = run(folder, "cnn", "path", *copy, COLLAGE_PLACEMENTS=str(where), PYTHONPATH="")
    assert found["pickled"].startswith(f"TypeError: the placement {where}")


def test_a_loader_runs_the_own_file_also_where_sessions_are_placements(folder, placements):
    code = """
import os, sys
sys.path.insert(0, sys.argv[1] + "/loader")
import numpy as np
import run_artifact
own = run_artifact.OwnFile(sys.argv[2], "onnxruntime", 1)
print(*(own({"image": np.ones((1, 3, 16, width), np.float32)})[0].shape for width in (32, 9)))
print("collage_run_artifact" in sys.modules)
"""
    done = patched(code, folder, placements["cnn"], placements["cnn"], folder / "cnn.onnx")
    assert done.stdout == "(1, 8, 16, 32) (1, 8, 16, 9)\nFalse\n", done.stderr


def test_a_call_that_only_the_session_takes_is_said_once(folder, placements):
    """An OrtValue, which sessions take in place of an array."""
    code = """
import sys
import numpy as np
import onnxruntime as ort
session = ort.InferenceSession(sys.argv[1])
image = np.ones((1, 3, 16, 32), np.float32)
(true,) = session.run(None, {"image": image})
for _ in range(2):
    value = ort.OrtValue.ortvalue_from_numpy(image)
    (found,) = session.run(None, {"image": value})
    np.testing.assert_allclose(found, true, rtol=1e-3, atol=1e-4)
"""
    done = patched(code, folder, placements["cnn"], folder / "cnn.onnx")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1


def test_a_damaged_entry_is_no_reason_to_go_on_without_it(folder, placements, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(placements["cnn"], copy)
    with (copy / "1" / "model.so").open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(AssertionError, match=r"model\.so has changed since"):
        run(folder, "cnn", "path", *PATCHED, COLLAGE_PLACEMENTS=str(copy))


@pytest.mark.parametrize("what", ["no folder", "nothing", "no manifest"])
def test_a_wrong_placement_is_one_sentence(folder, placements, tmp_path, what):
    if what == "no folder":
        gone = tmp_path / "gone"
        with pytest.raises(AssertionError, match=f"COLLAGE_PLACEMENTS: {gone}: there is no such"):
            run(folder, "cnn", "path", *PATCHED, COLLAGE_PLACEMENTS=str(gone))
        return
    if what == "no manifest":
        (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(AssertionError, match=f"COLLAGE_PLACEMENTS: {tmp_path}: .*manifest.json"):
        run(folder, "cnn", "path", *PATCHED, COLLAGE_PLACEMENTS=str(tmp_path))
