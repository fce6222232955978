"""Artifacts that carry our C++ runtimes: whole on each toolchain, and mixed."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest

from collage_engine.artifact.artifact import ArtifactContents, write_artifact
from collage_engine.artifact.artifact_run import run_artifact
from collage_engine.artifact.manifest import read_manifest
from collage_engine.build.build import build_cover, may_spin, write_module
from collage_engine.lowering.accuracy import worst
from collage_engine.lowering.reference import original_outputs
from collage_engine.model.importer import import_model
from collage_engine.records.toolchain import ToolchainInstance
from tests.support.artifact_cases import MNIST, artifact_maker, run_cpp, sample_of
from tests.support.bare_python import run_bare
from tests.support.covers import candidate_on

THREADS = 1
TOOLCHAINS = ("tvm", "onnxruntime", "onednn", "openvino")
INSTANCES = {name: ToolchainInstance(toolchain=name, threads=THREADS) for name in TOOLCHAINS}
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
    moved = tmp_path / "moved"
    artifact.rename(moved)
    try:
        done = run_bare(site, "loader/run_artifact.py", cwd=moved)
        assert done.returncode == 0, done.stdout + done.stderr
        done = run_cpp(cpp_loader, str(moved))
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        moved.rename(artifact)


def test_the_artifact_carries_what_it_needs(artifacts):
    folder = artifacts("mixed")
    manifest = read_manifest(folder)
    assert [p["toolchain"] for p in manifest["placement"]["partitions"]] == COVERS["mixed"]
    assert manifest["spin"] is False
    needed = [library["file"] for library in manifest["libraries"] if library["needed"]]
    assert len(needed) == 3  # our runtimes
    dynamic = subprocess.run(
        ["readelf", "-d", str(folder / "model.so")], capture_output=True, text=True, check=True
    ).stdout
    for name in needed:
        assert f"Shared library: [{name}]" in dynamic
    assert "[$ORIGIN]" in dynamic
    for library in manifest["libraries"]:
        assert (folder / library["file"]).is_file() and not (folder / library["file"]).is_symlink()
        assert manifest["files"][library["file"]]["licence"]
    names = {p.name for p in (folder / "licences").iterdir()}
    assert any("onnxruntime" in name and "LICENSE" in name for name in names)
    assert "home" not in (folder / "manifest.json").read_text()


def test_two_artifacts_in_one_fresh_process(artifacts, site, tmp_path):
    code = """
import sys, importlib.util
spec = importlib.util.spec_from_file_location("loader", sys.argv[1] + "/loader/run_artifact.py")
loader = importlib.util.module_from_spec(spec); spec.loader.exec_module(loader)
models = [loader.load(folder) for folder in sys.argv[1:]]
for folder, model in [*zip(sys.argv[1:], models)] * 2:
    kinds = {a["name"]: a["dtype"] for a in model.manifest["inputs"] + model.manifest["outputs"]}
    sample = loader.read_npz(folder + "/sample_output.npz", kinds)
    outputs = model(loader.read_npz(folder + "/sample_input.npz", kinds))
    error = loader.compare(outputs, [sample[a["name"]] for a in model.manifest["outputs"]])
    assert error[1] < 1e-5, error
print("both")
"""
    both = [str(artifacts("mixed")), str(artifacts("openvino"))]
    for order in (both, both[::-1]):
        done = run_bare(site, "-c", code, *order, cwd=tmp_path)
        assert done.stdout.strip() == "both", done.stderr


def test_an_artifact_inside_the_engines_own_process(artifacts):
    """The runtimes are registered here already, from the engine's cache."""
    import tvm
    from tvm import relax

    folder, model = artifacts("mixed"), import_model(MNIST)
    contents = sample_of(model)
    vm = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "model.so")), tvm.cpu())
    name = model.outputs[0][0]
    result = vm["main"](*[tvm.runtime.tensor(contents.inputs[n]) for n, _ in model.inputs])
    assert worst([(result.numpy(), contents.outputs[name])])[1] < 1e-5
    mapped = Path("/proc/self/maps").read_text()
    ours = {line.split()[-1] for line in mapped.splitlines() if "libcollage_" in line}
    names = [Path(path).name for path in ours]
    assert len(names) == len(set(names)), "a runtime was loaded twice"
    assert ctypes.CDLL(str(folder / "model.so"))


def test_threads_spin_unless_two_runtimes_have_threads_of_their_own():
    tvm, ort = INSTANCES["tvm"], INSTANCES["onnxruntime"]
    blas = ToolchainInstance(toolchain="openblas")
    assert may_spin([candidate_on(tvm, (0,)), candidate_on(tvm, (1,))])
    assert may_spin([candidate_on(tvm, (0,)), candidate_on(blas, (1,))])  # both use TVM's threads
    assert not may_spin([candidate_on(tvm, (0,)), candidate_on(ort, (1,))])
    assert not may_spin([candidate_on(blas, (0,)), candidate_on(ort, (1,))])
    basic = ToolchainInstance(toolchain="onnxruntime", config=(("level", "basic"),))
    assert may_spin([candidate_on(basic, (0,)), candidate_on(ort, (1,))])  # one runtime, one pool


def test_a_model_with_two_outputs_and_an_unused_input(tmp_path, site, cpp_loader):
    from tests.engine.test_lowering_rewrite import branches

    model = branches()
    ort = INSTANCES["onnxruntime"]
    write_module(
        build_cover(model, [candidate_on(ort, (0, 1)), candidate_on(ort, (2, 3, 4))]),
        tmp_path / "built",
    )
    inputs = model.random_inputs(0)
    outputs = original_outputs(model, inputs)
    folder = write_artifact(
        model,
        tmp_path / "built",
        tmp_path / "artifact",
        ArtifactContents(inputs=inputs, outputs=outputs, tolerance=1e-5),
    )
    manifest = read_manifest(folder)
    assert [i["name"] for i in manifest["inputs"]] == ["unused", "x"]
    assert [o["name"] for o in manifest["outputs"]] == ["e", "b"]
    assert run_artifact(folder)["max_rel_error"] < 1e-6
    done = run_bare(site, "loader/run_artifact.py", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_cpp(cpp_loader, str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    assert np.isfinite(outputs["e"]).all()


@pytest.mark.parametrize("name", ["several", "outputs", "float16", "gpt2"])
def test_other_types_shapes_and_counts_pass_the_loaders(name, tmp_path, cpp_loader):
    from collage_engine.model.importer import import_onnx
    from tests import zoo

    model = import_onnx(zoo.build(name), shapes=zoo.SHAPES.get(name))
    everything = tuple(range(len(model.graph.operators)))
    ort = INSTANCES["onnxruntime"]
    write_module(build_cover(model, [candidate_on(ort, everything)]), tmp_path / "built", link=True)
    inputs = model.random_inputs(0)
    folder = write_artifact(
        model,
        tmp_path / "built",
        tmp_path / "artifact",
        ArtifactContents(inputs=inputs, outputs=original_outputs(model, inputs), tolerance=1e-2),
    )
    result = run_artifact(folder)
    done = run_cpp(cpp_loader, str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    # Both loaders find the same error: they read and compare every type alike.
    assert f"max_rel_error {result['max_rel_error']:.3g} " in done.stdout
