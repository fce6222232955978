"""Every documented first step, in a process of its own and a real window where Xvfb is there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PySide6.QtWidgets import QWidget

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


def test_a_second_start_hands_its_file_to_the_open_window(tmp_path, engine) -> None:
    first = started(tmp_path, 2, "--engine", engine, model(tmp_path))
    try:
        again = [sys.executable, "-m", "collage_gui", "--engine", engine]
        again.append(model(tmp_path, "second-small.onnx"))
        offscreen = environment(tmp_path) | {"QT_QPA_PLATFORM": "offscreen"}
        for _ in range(6):
            time.sleep(2)
            try:
                # It ends at once when the first window, which may still be starting, takes it.
                subprocess.run(again, env=offscreen, cwd=HERE.parents[1], timeout=8)
                break
            except subprocess.TimeoutExpired:
                continue
        shown = seen(first)
    finally:
        first.kill()
    assert shown["tabs"] == ["small.onnx", "second-small.onnx"] and shown["drawn"] == 2


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


def test_void_calls_do_not_eat_references_of_none(qtbot) -> None:
    """PySide6 6.12.0 on CPython 3.11 loses one a call, and the process dies after 4,900."""
    widget = QWidget()
    qtbot.addWidget(widget)
    widget.setWindowTitle("warm")
    before = sys.getrefcount(None)
    for _ in range(200):
        widget.setWindowTitle("x")
    assert abs(sys.getrefcount(None) - before) < 50
