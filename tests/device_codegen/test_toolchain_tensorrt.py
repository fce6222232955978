"""TensorRT as a toolchain where no device is: probing, modules, artifacts, both runtimes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine.cuda import cuda_probe
from collage_engine.model.importer import import_onnx
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains.tensorrt import python_runtime
from collage_engine.toolchains.tensorrt.toolchain import PYTHON_PART, TensorrtToolchain
from tests import zoo
from tests.support.artifact_cases import run_cpp
from tests.support.command import collage
from tests.support.toolchain_cases import load_again, saved, whole

ROOT = Path(__file__).resolve().parents[2]
MNIST = ROOT / "resources" / "models" / "mnist.onnx"
PACKAGES = ("tensorrt_rtx_bindings", "tensorrt_rtx")
ANY = ("tensorrt", "tensorrt_bindings")
pytestmark = [
    pytest.mark.skipif(
        not any(importlib.util.find_spec(name) for name in PACKAGES),
        reason="TensorRT-RTX is not installed (extra test)",
    ),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) for name in ANY) or bool(cuda_probe().devices),
        reason="TensorRT itself, or a device, is here",
    ),
]
AMPERE = ToolchainInstance(toolchain="tensorrt", device="cuda:0", architecture="sm_86")


def test_without_a_device_it_builds_and_says_for_which() -> None:
    state = TensorrtToolchain().probe()
    assert not state.available and state.builds
    assert state.version and state.reason
    assert "no NVIDIA driver" in state.reason and "sm_86" in state.reason
    assert "sm_90" not in state.reason


@pytest.mark.parametrize("precision", ["float32", "int8", "tf32", "float16"])
def test_products_are_rounded_to_tf32_only(precision: str) -> None:
    found = TensorrtToolchain().instances(Target.cuda("sm_86"), precision)
    assert [instance.precision for instance in found][1:] == ["tf32"] * (precision == "tf32")
    assert found[0].precision == "float32"
    assert {instance.architecture for instance in found} == {"sm_86"}


def test_a_module_is_serialised_with_its_engine_and_comes_back() -> None:
    toolchain = TensorrtToolchain()
    module = toolchain.compile(whole(import_onnx(zoo.build("residual_block")), AMPERE))
    _, plan, weights = toolchain.unpack(module)
    assert plan["architecture"] == "sm_86"
    assert plan["engine_bytes"] == len(weights) > 10_000
    assert saved(load_again(module)) == saved(module)
    assert toolchain.inside(module)["title"] == "TensorRT-RTX"


def test_an_artifact_says_that_it_needs_python(tmp_path: Path, cpp_loader: Path) -> None:
    out = tmp_path / "out"
    done = collage(f"place {MNIST} -o {out} --target cuda:sm_86 --toolchains tensorrt")
    assert done.returncode == 0, done.stderr
    assert "it needs Python: tensorrt runs through" in " ".join(done.stdout.split())
    manifest = json.loads((out / "manifest.json").read_text())
    (need,) = manifest["requires"]
    assert need["what"] == "python" and need["file"] == PYTHON_PART
    assert need["module"] in PACKAGES and need["version"]
    assert (out / PYTHON_PART).read_bytes() == Path(python_runtime.__file__).read_bytes()
    assert PYTHON_PART not in {about["file"] for about in manifest["libraries"]}
    # The loader that is shipped makes the function known that model.so calls.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1] + '/loader'); import run_artifact, tvm_ffi\n"
        "run_artifact.opened(sys.argv[1])\n"
        "print(tvm_ffi.get_global_func('collage.tensorrt.open') is not None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "True", done.stderr
    done = run_cpp(cpp_loader, str(out))
    assert done.returncode == 1 and "runs from Python only: tensorrt" in done.stderr
