"""Guards: what the desktop may import, and that the installed Qt does not eat ``None``."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from PySide6.QtWidgets import QWidget

ROOT = Path(__file__).resolve().parents[2]
DRAWING = ("collage_engine.records", "collage_engine.drawing", "collage_engine.wording")
"""What drawing may import of the engine."""
ALLOWED = (*DRAWING, "collage_engine.service.protocol")
"""What the desktop may."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_the_desktop_imports_only_records_drawing_wording_and_the_protocol() -> None:
    for path in (ROOT / "collage_gui").rglob("*.py"):
        for name in imports(path):
            if not name.startswith("collage_engine."):
                assert name.split(".")[0] not in ("tvm", "onnx", "onnxruntime"), (path, name)
                continue
            fine = name.startswith(ALLOWED) or name in (
                "collage_engine.__version__",
                "collage_engine.service",
            )
            assert fine, f"{path.name} imports {name}"


def test_drawing_imports_no_qt_and_only_records_and_wording() -> None:
    for path in (ROOT / "collage_engine" / "drawing").glob("*.py"):
        for name in imports(path):
            assert not name.startswith(("PySide6", "tvm", "onnx")), (path, name)
            if name.startswith("collage_engine."):
                assert name.startswith(DRAWING), (path, name)


def test_the_window_process_never_loads_a_toolchain() -> None:
    code = (
        "import sys, collage_gui.app, collage_gui.main_window, collage_gui.automation\n"
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
