"""OpenVINO's own Python interface, without its telemetry.

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

_TELEMETRY = "openvino_telemetry"
_lock = threading.Lock()


def openvino() -> Any:
    """Return the package ``openvino``; imported silently if nobody has imported it before."""
    with _lock:
        if "openvino" in sys.modules:
            return importlib.import_module("openvino")
        hidden = {
            name: module
            for name, module in sys.modules.items()
            if name == _TELEMETRY or name.startswith(f"{_TELEMETRY}.")
        }
        for name in hidden:
            del sys.modules[name]
        sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # makes its import fail
        try:
            return importlib.import_module("openvino")
        finally:
            del sys.modules[_TELEMETRY]
            sys.modules.update(hidden)
