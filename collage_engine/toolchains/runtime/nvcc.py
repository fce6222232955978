"""NVIDIA's compiler: where it is, and which version."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from collage_engine.records.errors import ToolchainError


def find_nvcc() -> str | None:
    """Path of the nvcc of $CUDA_HOME, $CUDA_PATH, PATH or the usual place; None: there is none."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        root = os.environ.get(variable)
        if root and (Path(root) / "bin" / "nvcc").exists():
            return str(Path(root) / "bin" / "nvcc")
    usual = Path("/usr/local/cuda/bin/nvcc")
    return shutil.which("nvcc") or (str(usual) if usual.exists() else None)


def need_nvcc() -> str:
    """Path of nvcc; ``ToolchainError`` that says how to get one."""
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
