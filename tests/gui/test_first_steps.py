"""Every documented first step, in a process of its own and a real window where Xvfb is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SAMPLE = HERE.parents[1] / "resources" / "models" / "mnist.onnx"
LIMIT_S = 60


def environment(folder: Path) -> dict[str, str]:
    own = {
        "COLLAGE_EXPLORER_SETTINGS": str(folder / "settings.ini"),
        "COLLAGE_EXPLORER_RECOVERY": str(folder / "recovery"),
    }
    if not shutil.which("xvfb-run"):
        return os.environ | own | {"QT_QPA_PLATFORM": "offscreen"}
    return {k: v for k, v in os.environ.items() if k != "QT_QPA_PLATFORM"} | own


def started(folder: Path, tabs: int, *arguments: str) -> subprocess.Popen[str]:
    """Start the program, which ends when so many tabs are drawn."""
    command = [sys.executable, str(HERE / "first_step.py"), str(LIMIT_S), str(tabs), *arguments]
    if shutil.which("xvfb-run"):
        command = ["xvfb-run", "-a", "-s", "-screen 0 1280x800x24", *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment(folder), stdout=pipe, stderr=pipe, text=True)


def seen(process: subprocess.Popen[str]) -> dict:
    """Return what the window showed when the program ended."""
    output, said = process.communicate(timeout=LIMIT_S + 60)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    assert lines, said
    return json.loads(lines[-1])


@pytest.fixture
def engine() -> str:
    return f"command:{sys.executable} {HERE / 'recorded_engine.py'}"


def model(folder: Path, name: str = "small.onnx") -> str:
    path = folder / name
    path.write_bytes(b"not read by an engine that plays")
    return str(path)


def test_a_model_file(tmp_path) -> None:
    """With the real engine and the packaged sample: line 1 of the README's desktop section."""
    shown = seen(started(tmp_path, 1, str(SAMPLE)))
    assert shown["tabs"] == ["mnist.onnx"] and shown["drawn"] == 1 and not shown["welcome"]
    assert shown["operators"][0] > 5 and shown["banner"] == ""
    if shutil.which("xvfb-run"):
        assert shown["platform"] == "xcb"
        width, height = shown["size"]
        assert width <= 1280 and height <= 800, "the first window is larger than the screen"


def test_a_bad_file_says_why(tmp_path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"this is no model")
    shown = seen(started(tmp_path, 0, str(bad)))
    assert shown["welcome"] and shown["tabs"] == []
    assert "bad.onnx" in shown["banner"] and "not an ONNX file" in shown["banner"]


def test_the_window_process_never_loads_a_toolchain() -> None:
    code = (
        "import sys, collage_gui.app, collage_gui.main_window\n"
        "heavy = {'tvm', 'onnx', 'onnxruntime', 'openvino', 'torch', 'pyqtgraph'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=HERE.parents[1],
        check=True,
    )
    assert done.stdout.strip() == "[]"
