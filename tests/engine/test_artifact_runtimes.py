"""Artifacts that carry our C++ runtimes: whole on each toolchain, and mixed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import read_manifest
from collage_engine.lowering.build import may_spin
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains.runtime import builder
from tests.support.artifact_cases import (
    MNIST,
    artifact_maker,
    artifact_of,
    cover_in_turn,
    run_cpp,
)
from tests.support.bare_python import run_bare
from tests.support.command import python
from tests.support.covers import candidate_on

COVERS = {
    "tvm": ["tvm"],
    "onnxruntime": ["onnxruntime"],
    "onednn": ["onednn"],
    "openvino": ["openvino"],
    "mixed": ["openvino", "tvm", "onnxruntime", "onednn", "openvino"],
}


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return artifact_maker(COVERS, tmp_path_factory.mktemp)


@pytest.mark.parametrize("name", COVERS)
def test_it_equals_the_reference_here_bare_and_in_cpp(name, artifacts, site, cpp_loader, tmp_path):
    artifact = artifacts(name)
    assert run_artifact(artifact)["max_rel_error"] < 1e-5
    moved = tmp_path / "else where"
    artifact.rename(moved)
    try:
        done = run_bare(site, "loader/run_artifact.py", cwd=moved)
        assert done.returncode == 0, done.stdout + done.stderr
        done = run_bare(site, "-c", "import collage_engine", cwd=moved)
        assert "No module named 'collage_engine'" in done.stderr
        done = run_cpp(cpp_loader, str(moved))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        moved.rename(artifact)


SYSTEM = {
    *("libtvm_ffi.so", "libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "libdl.so.2"),
    "ld-linux-x86-64.so.2",
}
"""Libraries that every machine with TVM has."""


def dynamic(library: Path) -> str:
    done = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True)
    return done.stdout


def test_the_artifact_carries_what_it_needs(artifacts):
    folder = artifacts("mixed")
    manifest = read_manifest(folder)
    assert [p["toolchain"] for p in manifest["placement"]["partitions"]] == COVERS["mixed"]
    assert manifest["spin"] is False
    needed = [library["file"] for library in manifest["libraries"] if library["needed"]]
    assert len(needed) == 3  # our runtimes
    module = dynamic(folder / "model.so")
    assert "[$ORIGIN]" in module
    beside = {path.name for path in folder.iterdir()}
    for name in needed:
        assert f"Shared library: [{name}]" in module
        said = dynamic(folder / name)
        wanted = {line.split("[")[1][:-1] for line in said.splitlines() if "(NEEDED)" in line}
        assert wanted <= beside | SYSTEM
        assert str(builder.cache_folder()) not in said
    for library in manifest["libraries"]:
        assert (folder / library["file"]).is_file() and not (folder / library["file"]).is_symlink()
        assert manifest["files"][library["file"]]["licence"]
        # Of OpenVINO's frontends that of IR, and neither GPU nor NPU.
        name = library["file"]
        assert ("frontend" in name) == ("ir_frontend" in name)
        assert "_gpu" not in name and "_npu" not in name
    licences = {p.name for p in (folder / "licences").iterdir()}
    assert any("onnxruntime" in name and "LICENSE" in name for name in licences)
    assert any("openvino" in name for name in licences)
    assert "home" not in (folder / "manifest.json").read_text()


SHARED = """
import sys
import numpy as np
import tvm
from tvm.runtime.vm import VirtualMachine
from collage_engine.toolchains import registry
from tests.support.toolchain_cases import Net, default_instance, error, imported, reference, run
from tests.support.toolchain_cases import whole

def artifact():
    vm = VirtualMachine(tvm.runtime.load_module(sys.argv[1] + "/model.so"), tvm.cpu())
    assert np.isfinite(vm["main"](tvm.runtime.tensor(np.zeros((1, 1, 28, 28), "f4"))).numpy()).all()

def engine():
    net = Net()
    model = net.model(net.add("MatMul", net.input(3, 8), net.randn(8, 4)))
    graph = imported(model)
    feeds = graph.random_inputs(0)
    for name in ("onnxruntime", "onednn", "openvino"):
        toolchain = registry.get(name)
        function = whole(graph, default_instance(toolchain))
        found = run(toolchain.compile(function), function, feeds)
        assert error(found[0], reference(model, function, feeds)[0]) < 1e-5

def python():
    import onnxruntime
    from collage_engine.toolchains.openvino.wheel import openvino
    assert "CPU" in openvino().Core().available_devices

steps = {"artifact": artifact, "engine": engine, "python": python}
for step in (steps.pop(sys.argv[2]), *steps.values()):
    step()
loaded = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
for name in (
    "libcollage_onnxruntime", "libcollage_onednn", "libcollage_openvino", "libonnxruntime.so",
    "libdnnl", "libopenvino.so", "libopenvino_intel_cpu_plugin"
):
    assert len([file for file in loaded if name in file]) == 1, name
"""


@pytest.mark.parametrize("first", ["artifact", "engine", "python"])
def test_an_artifact_the_engine_and_python_share_a_process(artifacts, first):
    """One copy of each runtime and library, whatever brings it, and all of them compute."""
    done = python(SHARED, artifacts("mixed"), first)
    assert done.returncode == 0, done.stderr


def test_an_artifact_runs_in_a_program_that_uses_onnx_runtime_itself(artifacts, site, tmp_path):
    """The program has made the process's environment of ONNX Runtime, by the same library."""
    code = """
import ctypes, os, sys
folder = sys.argv[1]
library = ctypes.CDLL(folder + "/libonnxruntime.so.1")
library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32))
table = ctypes.cast(library.OrtGetApiBase()[0](18), ctypes.POINTER(ctypes.c_void_p))
make = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(table[3])
assert make(3, b"own", ctypes.addressof(ctypes.c_void_p())) is None  # OrtApi.CreateEnv
sys.path.insert(0, folder + "/loader")
import run_artifact
sys.exit(run_artifact.main([folder]))
"""
    done = run_bare(site, "-c", code, str(artifacts("onnxruntime")), cwd=tmp_path)
    assert done.returncode == 0 and "agrees" in done.stdout, done.stderr


def test_openvino_runs_a_models_own_file_beside_an_artifact_on_it(artifacts):
    code = """
import sys
import numpy as np
from collage_engine.machine.loader.run_artifact import OwnFile, load, read_sample
model = load(sys.argv[1])
inputs, (truth,) = read_sample(sys.argv[1], model.manifest)
for outputs in (model(inputs), OwnFile(sys.argv[2], "openvino", 1)(inputs)):
    np.testing.assert_allclose(outputs[0], truth, atol=1e-5 * abs(truth).max())
"""
    done = python(code, artifacts("openvino"), MNIST)
    assert done.returncode == 0, done.stderr


def test_threads_spin_unless_two_runtimes_have_threads_of_their_own():
    tvm, ort, blas = (ToolchainInstance(toolchain=n) for n in ("tvm", "onnxruntime", "openblas"))
    assert may_spin([candidate_on(tvm, (0,)), candidate_on(tvm, (1,))])
    assert may_spin([candidate_on(tvm, (0,)), candidate_on(blas, (1,))])  # both use TVM's threads
    assert not may_spin([candidate_on(tvm, (0,)), candidate_on(ort, (1,))])
    assert not may_spin([candidate_on(blas, (0,)), candidate_on(ort, (1,))])
    assert may_spin([candidate_on(ort, (0,)), candidate_on(ort, (1,))])  # one runtime, one pool


@pytest.mark.parametrize("name", ["several", "outputs", "float16", "gpt2"])
def test_other_types_shapes_and_counts_pass_the_loaders(name, tmp_path, cpp_loader):
    from collage_engine.model.importer import import_onnx
    from tests import zoo

    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    folder = artifact_of(model, cover_in_turn(model, ["onnxruntime"]), tmp_path, 1e-2)
    result = run_artifact(folder)
    done = run_cpp(cpp_loader, str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    # Both loaders find the same error: they read and compare every type alike.
    assert f"max_rel_error {result['max_rel_error']:.3g} " in done.stdout
