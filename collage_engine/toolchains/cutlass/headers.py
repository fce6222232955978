"""Finds CUTLASS's headers and their release: TVM's wheel has them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import find_in_wheel, header_version


@cache
def headers() -> Path:
    """Returns the folder of CUTLASS's headers, from CUTLASS_PATH or TVM's wheel.

    Raises:
        ToolchainError: There are none.
    """
    chosen = os.environ.get("CUTLASS_PATH")
    if chosen:
        folder = Path(chosen) / "include"
        if not (folder / "cutlass" / "cutlass.h").exists():
            raise ToolchainError(f"CUTLASS_PATH: {folder} holds no cutlass/cutlass.h")
        return folder
    return find_in_wheel("apache-tvm", "cutlass.h", "include/cutlass").parents[1]


@cache
def version() -> str:
    """Returns CUTLASS's version, as its headers state it."""
    return header_version(headers() / "cutlass" / "version.h", "CUTLASS_")
