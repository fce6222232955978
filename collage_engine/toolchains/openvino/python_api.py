"""Opens OpenVINO's own Python interface, without its telemetry.

The wheel's package reports every import to its maker's servers and writes an identifier into the
user's home folder, unless the user has opted out. An import on Collage Explorer's behalf is none
that the user asked for: the package is told that its telemetry is not installed, and uses the stub
it has for that case. What the user imports in processes of their own is theirs to choose.
"""

from __future__ import annotations

import importlib
import sys
import threading
from typing import Any

from collage_engine.machine.hidden_imports import hidden

_lock = threading.Lock()


def openvino() -> Any:
    """Return the package ``openvino``; imported silently if nobody has imported it before."""
    with _lock:
        if "openvino" in sys.modules:
            return importlib.import_module("openvino")
        with hidden("openvino_telemetry"):
            return importlib.import_module("openvino")
