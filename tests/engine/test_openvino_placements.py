"""Artifacts with OpenVINO's partitions: self-contained, and sharing a process."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage_engine.artifact.manifest import read_manifest
from tests.support.artifact_cases import artifact_maker
from tests.support.bare_python import run_bare
from tests.support.command import python

COVERS = {
    "openvino": ["openvino"],
    "mixed": ["openvino", "tvm", "onnxruntime", "onednn", "openvino"],
}
ITS_LIBRARIES = ("libopenvino", "libtbb", "libhwloc", "libcollage_openvino")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    return artifact_maker(COVERS, tmp_path_factory.mktemp)


def test_everything_is_found_beside_the_module(artifacts, site, tmp_path):
    """``load_module`` alone, moved, from another folder, with an empty environment."""
    folder = tmp_path / "elsewhere"
    artifact = artifacts("openvino")
    artifact.rename(folder)
    code = """
import sys
import numpy as np, tvm
from tvm.runtime.vm import VirtualMachine
vm = VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
vm["main"](tvm.runtime.tensor(np.zeros((1, 1, 28, 28), "float32")))
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}), sep="\\n")
"""
    try:
        done = run_bare(site, "-c", code, str(folder / "model.so"), cwd=Path("/"))
        assert done.returncode == 0, done.stderr
        opened = [p for p in done.stdout.split("\n") if Path(p).name.startswith(ITS_LIBRARIES)]
        # The plugin, its threads, the frontend of IR, the C interface and our runtime at least.
        assert len(opened) >= 6
        assert {str(Path(p).parent) for p in opened} == {str(folder)}
    finally:
        folder.rename(artifact)


def test_the_artifact_carries_no_frontend_but_that_of_ir(artifacts):
    manifest = read_manifest(artifacts("openvino"))
    names = [library["file"] for library in manifest["libraries"]]
    assert [n for n in names if "frontend" in n] == [n for n in names if "ir_frontend" in n] != []
    assert not any("gpu" in n or "npu" in n for n in names)
    licences = {name for name in manifest["files"] if name.startswith("licences/")}
    assert any("openvino" in name for name in licences)
    assert manifest["versions"]["openvino"].startswith("20")


@pytest.mark.parametrize("first", ["artifact", "engine", "python"])
def test_an_artifact_and_the_engine_share_a_process(artifacts, first):
    """Whoever brings the library: the artifact runs, and the engine still compiles for it."""
    script = f"""
        import sys
        import numpy as np
        import tvm
        from tvm.runtime.vm import VirtualMachine
        from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
        from tests.support.toolchain_models import small_net
        from tests.support.toolchain_cases import (
            default_instance, error, imported, reference, run, whole
        )
        def artifact():
            vm = VirtualMachine(
                tvm.runtime.load_module({str(artifacts("mixed") / "model.so")!r}), tvm.cpu()
            )
            image = tvm.runtime.tensor(np.zeros((1, 1, 28, 28), "float32"))
            assert np.isfinite(vm["main"](image).numpy()).all()
        def engine():
            model = small_net()
            net = imported(model)
            toolchain = OpenVinoToolchain()
            function = whole(net, default_instance(toolchain))
            feeds = net.random_inputs(0)
            truth = reference(model, function, feeds)
            module = toolchain.compile(function)
            assert error(run(module, function, feeds)[0], truth[0]) < 1e-5
            assert toolchain.inside(module)["steps"]
        def python():
            from collage_engine.toolchains.openvino.python_api import openvino
            assert "CPU" in openvino().Core().available_devices
        steps = {{"artifact": artifact, "engine": engine, "python": python}}
        for step in (steps.pop({first!r}), *steps.values()):
            step()
        lines = {{line.split()[-1] for line in open("/proc/self/maps")}}
        for name in ("libopenvino.so", "libopenvino_intel_cpu_plugin", "libcollage_openvino"):
            assert len([line for line in lines if name in line]) == 1, name
    """
    done = python(script)
    assert done.returncode == 0, done.stderr
