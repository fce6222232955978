"""Finds CUTLASS's headers and their release: TVM's wheel has them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import find_in_wheel


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
    numbers = {}
    for line in (headers() / "cutlass" / "version.h").read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("CUTLASS_"):
            numbers[words[1].removeprefix("CUTLASS_")] = words[2]
    if "MAJOR" not in numbers:
        raise ToolchainError(f"{headers()} states no version of CUTLASS")
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))
