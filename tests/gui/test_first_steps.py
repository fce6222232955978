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
    inherited = {k: v for k, v in os.environ.items() if k != "QT_QPA_PLATFORM"}
    return {**inherited, **own}


def command(tabs: int, *arguments: str) -> list[str]:
    start = [sys.executable, str(HERE / "first_step.py"), str(LIMIT_S), str(tabs), *arguments]
    if shutil.which("xvfb-run"):
        return ["xvfb-run", "-a", "-s", "-screen 0 1280x800x24", *start]
    return start


def start(folder: Path, tabs: int, *arguments: str) -> dict:
    variables = environment(folder)
    if not shutil.which("xvfb-run"):
        variables["QT_QPA_PLATFORM"] = "offscreen"
    done = subprocess.run(
        command(tabs, *arguments), env=variables, capture_output=True, text=True, timeout=120
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr
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
    seen = start(tmp_path, 1, str(SAMPLE))
    assert seen["tabs"] == ["mnist.onnx"] and seen["drawn"] == 1 and not seen["welcome"]
    assert seen["operators"][0] > 5 and seen["banner"] == ""
    if shutil.which("xvfb-run"):
        assert seen["platform"] == "xcb"
        width, height = seen["size"]
        assert width <= 1280 and height <= 800, "the first window is larger than the screen"


def test_several_files(tmp_path, engine) -> None:
    seen = start(
        tmp_path, 2, "--engine", engine, model(tmp_path), model(tmp_path, "second-small.onnx")
    )
    assert seen["tabs"] == ["small.onnx", "second-small.onnx"] and seen["banner"] == ""


def test_a_bad_file_says_why(tmp_path) -> None:
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"this is no model")
    seen = start(tmp_path, 0, str(bad))
    assert seen["welcome"] and seen["tabs"] == []
    assert "bad.onnx" in seen["banner"] and "not an ONNX file" in seen["banner"]


def test_a_good_file_beside_a_bad_one(tmp_path, engine) -> None:
    seen = start(tmp_path, 1, "--engine", engine, model(tmp_path, "broken.onnx"), model(tmp_path))
    assert seen["tabs"] == ["small.onnx"]
    assert "broken.onnx is not an ONNX file" in seen["banner"]


def test_a_session_file(tmp_path, engine, placed) -> None:
    d, page = placed
    path = str(tmp_path / "kept.collage")
    page.document.save(path)
    d.until(lambda: not page.document.unsaved)
    seen = start(tmp_path, 1, "--engine", engine, path)
    assert seen["tabs"] == ["kept.collage"] and seen["placements"] == 1


def test_a_second_start_hands_its_file_to_the_open_window(tmp_path, engine) -> None:
    variables = environment(tmp_path)
    if not shutil.which("xvfb-run"):
        variables["QT_QPA_PLATFORM"] = "offscreen"
    first = subprocess.Popen(
        command(2, "--engine", engine, model(tmp_path)),
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        again = [sys.executable, "-m", "collage_gui", "--engine", engine]
        again.append(model(tmp_path, "second-small.onnx"))
        offscreen = {**variables, "QT_QPA_PLATFORM": "offscreen"}
        for _ in range(6):
            time.sleep(2)
            try:
                # It ends at once when the first window, which may still be starting, takes it.
                subprocess.run(again, env=offscreen, cwd=HERE.parents[1], timeout=8)
                break
            except subprocess.TimeoutExpired:
                continue
        output, _ = first.communicate(timeout=LIMIT_S + 30)
    finally:
        first.kill()
    seen = json.loads(output.splitlines()[-1])
    assert seen["tabs"] == ["small.onnx", "second-small.onnx"] and seen["drawn"] == 2


ROOT = Path(__file__).resolve().parents[2]


def test_the_window_process_never_loads_a_toolchain() -> None:
    code = (
        "import sys, collage_gui.app, collage_gui.main_window\n"
        "heavy = {'tvm', 'onnx', 'onnxruntime', 'openvino', 'torch', 'pyqtgraph'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
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
