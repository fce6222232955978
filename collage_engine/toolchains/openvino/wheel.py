"""Names what is used of the ``openvino`` wheel, and opens its Python interface, no telemetry.

The wheel's package reports every import to its maker's servers and writes an identifier into the
user's home folder, unless the user has opted out. An import on Collage Explorer's behalf is none
that the user asked for: the package is told that its telemetry is not installed, and uses the stub
it has for that case. What the user imports in processes of their own is theirs to choose.
"""

from __future__ import annotations

import importlib
import sys
import threading
from pathlib import Path
from typing import Any

from collage_engine.machine.loader.run_artifact import hidden
from collage_engine.toolchains.runtime.builder import find_in_wheel, wheel_version

_lock = threading.Lock()


def openvino() -> Any:
    """Return the package ``openvino``; imported silently if nobody has imported it before."""
    with _lock:
        if "openvino" in sys.modules:
            return importlib.import_module("openvino")
        with hidden("openvino_telemetry"):
            return importlib.import_module("openvino")


PACKAGE = "openvino"
VERSIONED = ("openvino", "openvino_c", "openvino_ir_frontend")
"""Libraries whose names end in the release, e.g. ``libopenvino_c.so.2641``."""
PLUGIN = "libopenvino_intel_cpu_plugin.so"
THREADS = ("libtbb.so.12", "libtbbmalloc.so.2", "libtbbbind_2_5.so.3", "libhwloc.so.15")
"""File names of TBB and of what it looks for by itself: its allocator, and the machine's
topology."""
LICENCES = {"libhwloc.so.15": "BSD-3-Clause"}
"""Licences of the libraries that are not under the wheel's own licence, by name."""


def _suffix() -> str:
    """Return what the names of its versioned libraries end in, e.g. ``2641`` for 2026.4.1."""
    year, release, patch, *_ = wheel_version(PACKAGE).split(".")
    return f"{year[2:]}{release}{patch}"


def library(name: str) -> Path:
    """Return a versioned library of the wheel by its plain name, e.g. ``openvino_c``."""
    return find_in_wheel(PACKAGE, f"lib{name}.so.{_suffix()}")


def headers() -> Path:
    """Return the folder in which ``openvino/c/openvino.h`` lies."""
    return find_in_wheel(PACKAGE, "openvino.h", "openvino/include/openvino/c").parents[2]


def runtime_files() -> tuple[Path, ...]:
    """Return what running a model in IR on the processor takes.

    Every one finds the others beside it.
    """
    versioned = [library(name) for name in VERSIONED]
    return (*versioned, *(find_in_wheel(PACKAGE, name) for name in (PLUGIN, *THREADS)))
