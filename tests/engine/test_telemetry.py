"""No runtime writes or sends telemetry, wherever it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests.support.artifact_cases import MNIST
from tests.support.command import python
from tests.support.toolchain_cases import available

ROOT = Path(__file__).resolve().parents[2]
_BY_PYTHON = f"""
import numpy
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
session = OnnxRuntimeToolchain().open_onnx({str(MNIST)!r})
session.run(None, {{"Input3": numpy.zeros((1, 1, 28, 28), "float32")}})
print("ran")
"""
_BY_THE_ADAPTER = """
from collage_engine.toolchains.onnxruntime.toolchain import OnnxRuntimeToolchain
from tests.support.toolchain_cases import default_instance, imported, run, whole
from tests.support.toolchain_models import small_net
toolchain, net = OnnxRuntimeToolchain(), imported(small_net())
function = whole(net, default_instance(toolchain))
run(toolchain.compile(function), function, net.random_inputs(0))
print("ran")
"""
_AS_IT_COMES = f"""
import onnxruntime
onnxruntime.InferenceSession({str(MNIST)!r}, providers=["CPUExecutionProvider"])
print("ran")
"""


def _left_behind(script: str, folder: Path) -> list[str]:
    """The files of Microsoft's that a script leaves in a user's folders that were empty.

    The environment is a user's, not that of this process: the runtime sends nothing where a
    variable such as ``CI`` says that it runs in a continuous-integration job, and then the check
    would see nothing.
    """
    kept = ("PATH", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    variables["PYTHONPATH"] = str(ROOT)
    done = python(script, env=variables)
    assert done.stdout.strip() == "ran", done.stderr
    return [p.name for p in folder.rglob("*") if p.is_file() and "Microsoft" in str(p)]


@pytest.mark.parametrize("script", [_BY_PYTHON, _BY_THE_ADAPTER], ids=["python", "adapter"])
def test_onnx_runtime_leaves_no_telemetry_behind(script: str, tmp_path: Path) -> None:
    available(OnnxRuntimeToolchain())
    assert _left_behind(script, tmp_path) == []


def test_the_check_would_see_telemetry(tmp_path: Path) -> None:
    import onnxruntime

    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 32):
        pytest.skip("this version has no queue")
    assert _left_behind(_AS_IT_COMES, tmp_path)


_OPENVINO = """
import sys, threading
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests.support.toolchain_cases import default_instance, imported, whole
from tests.support.toolchain_models import small_net
toolchain, net = OpenVinoToolchain(), imported(small_net())
module = toolchain.compile(whole(net, default_instance(toolchain)))
assert toolchain.inside(module)["steps"]
assert "openvino" in sys.modules and "openvino_telemetry" not in sys.modules
assert threading.active_count() == 1, threading.enumerate()
import openvino_telemetry  # another's import still works
"""


def test_openvino_reports_nothing_to_anybody(tmp_path: Path) -> None:
    """Importing its package would write an identifier and send an event."""
    available(OpenVinoToolchain())
    user = {name: value for name, value in os.environ.items() if name != "CI"}
    done = python(_OPENVINO, env=user | {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("intel*"))


_OWN_FILE = f"""
import pathlib, sys
import numpy
from collage_engine.machine.loader.run_artifact import RUNTIMES, OwnFile
for runtime in RUNTIMES:
    own = OwnFile(pathlib.Path({str(MNIST)!r}), runtime, 1)
    own({{"Input3": numpy.zeros((1, 1, 28, 28), "float32")}})
assert "openvino" in sys.modules and "openvino_telemetry" not in sys.modules
print("ran")
"""


def test_a_models_own_file_leaves_no_telemetry_behind(tmp_path: Path) -> None:
    available(OnnxRuntimeToolchain())
    available(OpenVinoToolchain())
    assert _left_behind(_OWN_FILE, tmp_path) == []
    assert not list(tmp_path.glob("intel*"))
