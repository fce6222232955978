"""Guards: what the desktop loads, and that the installed Qt does not eat ``None``.

What its modules may import is a matter of ``unit/test_import_rules.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from PySide6.QtWidgets import QWidget

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
