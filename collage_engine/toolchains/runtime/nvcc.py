"""Finds NVIDIA's compiler and its version."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from collage_engine.support.errors import ToolchainError


def find_nvcc() -> str | None:
    """Returns the path of nvcc: of $CUDA_HOME, $CUDA_PATH, PATH or the usual place; else None."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and (Path(root) / "bin" / "nvcc").exists():
            return str(Path(root) / "bin" / "nvcc")
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def need_nvcc() -> str:
    """Returns the path of nvcc.

    Raises:
        ToolchainError: There is none; the text says how to get one.
    """
    found = find_nvcc()
    if found is None:
        raise ToolchainError("no nvcc: install the CUDA toolkit, or set CUDA_HOME to one")
    return found


@cache
def nvcc_version(nvcc: str) -> str:
    """Return the line of ``nvcc --version`` that names the build."""
    answer = subprocess.run(
        [nvcc, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    lines = answer.stdout.strip().splitlines()
    if answer.returncode != 0 or not lines:
        raise ToolchainError(f"{nvcc} does not answer")
    return lines[-1].strip()
