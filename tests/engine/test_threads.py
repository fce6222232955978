"""One thread setting for all runtimes of a process, kept by both loaders in a hostile shell."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from collage_engine.artifact.manifest import read_manifest
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import SHORT_SPIN_TURNS
from collage_engine.toolchains.registry import about, get, probe
from tests.engine.test_memory_of_artifacts import cut, dense_chain
from tests.support.artifact_cases import artifact_of
from tests.support.command import python
from tests.support.toolchain_cases import default_instance

THREADS = 2
MIXED = ("onnxruntime", "tvm", "onednn", "openblas", "openvino")
HOSTILE = {
    "OMP_NUM_THREADS": "9",
    "TVM_NUM_THREADS": "7",
    "OMP_WAIT_POLICY": "active",
    "GOMP_SPINCOUNT": "infinite",
    "OPENBLAS_NUM_THREADS": "6",
    "TVM_THREAD_POOL_SPIN_COUNT": "9999999",
}
"""What a shell may hold that would give every runtime other threads, spinning for ever."""

RUN = """
import importlib.util, json, os, sys, time
spec = importlib.util.spec_from_file_location("loader", sys.argv[1] + "/loader/run_artifact.py")
loader = importlib.util.module_from_spec(spec); spec.loader.exec_module(loader)
model = loader.load(sys.argv[1])
tensors = model.bind(loader.read_sample(sys.argv[1], model.manifest)[0])
before = {t: 0 for t in os.listdir("/proc/self/task")}
for _ in range(20):
    model.main(*tensors)
threads = len(os.listdir("/proc/self/task"))
began = time.process_time()
time.sleep(0.5)
idle = time.process_time() - began
import tvm
library = tvm.runtime.load_module(sys.argv[1] + "/model.so")
inside, waiting = {}, [library]
while waiting:
    module = waiting.pop()
    waiting.extend(module.imports)
    if str(module.kind).startswith("collage_"):
        inside[str(module.kind).split("_")[1]] = json.loads(str(module["collage.inside"]()))
print(json.dumps({"threads": threads, "idle": idle, "inside": inside,
                  "environment": dict(os.environ)}))
"""


@pytest.fixture(scope="module")
def present() -> list[str]:
    found = [name for name in MIXED if probe(name).available]
    assert {"tvm", "onnxruntime", "onednn"} <= set(found)
    return found


@pytest.fixture(scope="module")
def artifact(present, tmp_path_factory) -> Path:
    """All runtimes of this machine in one placement, at two threads."""
    folder = tmp_path_factory.mktemp("threads")
    model = import_onnx(dense_chain(layers=len(present) + 1, width=512))
    cover = cut(model, [default_instance(get(name), THREADS) for name in present])
    return artifact_of(model, cover, folder, 1e-3)


def test_every_runtime_is_told_the_same(artifact, present):
    manifest = read_manifest(artifact)
    assert manifest["threads"] == THREADS and manifest["spin"] is False
    for name in present:
        for variable, value in about(name).variables(THREADS, False).items():
            assert manifest["environment"][variable] == value, name
    said = manifest["environment"]
    assert said["TVM_NUM_THREADS"] == said["OMP_NUM_THREADS"] == str(THREADS)
    assert (
        said["OMP_WAIT_POLICY"] == "passive"
        and said["TVM_THREAD_POOL_SPIN_COUNT"] == SHORT_SPIN_TURNS
    )


def test_toolchains_agree_on_variables_they_share():
    """Two runtimes that read one variable want the same value of it."""
    for spin in (True, False):
        known: dict[str, tuple[str, str]] = {}
        for name in MIXED:
            for variable, value in about(name).variables(3, spin).items():
                assert known.setdefault(variable, (value, name))[0] == value, (variable, name)


def test_the_python_loader_keeps_them_in_a_hostile_shell(artifact, present):
    done = python(RUN, artifact, env={**os.environ, **HOSTILE, "TVM_USE_RUNTIME_LIB": "1"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for variable, value in read_manifest(artifact)["environment"].items():
        assert found["environment"][variable] == value
    for name, described in found["inside"].items():
        assert described.get("threads", THREADS) == THREADS, name
        assert not described.get("spin", False), name
    # The caller, and for each runtime at most one more thread and one that only looks after it.
    assert found["threads"] <= 1 + 2 * len(present) * (THREADS - 1), found["threads"]
    # Half a second asleep: a pool that spins would burn most of it, on each of its threads.
    assert found["idle"] < 0.1, f"{found['idle']:.3f} s of CPU time while nothing ran"


def test_the_cpp_loader_keeps_them_in_a_hostile_shell(artifact, present, cpp_loader):
    process = subprocess.Popen(
        [str(cpp_loader), str(artifact)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **HOSTILE},
    )
    most = 0
    while process.poll() is None:
        try:
            most = max(most, len(os.listdir(f"/proc/{process.pid}/task")))
        except OSError:
            break
        time.sleep(0.02)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert 1 < most <= 1 + 2 * len(present) * (THREADS - 1), most
