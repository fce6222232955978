"""Compiled device code kept between processes and runs, beside the compiled runtimes.

A kernel takes a second to compile; the same ones come up in the measuring, in every cover that is
built, and in tomorrow's run.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from collage_engine.records.files import write_atomically
from collage_engine.toolchains.runtime.builder import build_folder
from collage_engine.toolchains.runtime.nvcc import find_nvcc, nvcc_version


def name_of(source: str, architecture: str, nvrtc: Path | None) -> str:
    """Return the file's name: a hash of the source and of what would compile it, for what."""
    nvcc = find_nvcc()
    compiler = f"nvrtc {nvrtc}" if nvcc is None else nvcc_version(nvcc)
    text = f"1\0{compiler}\0{architecture}\0{source}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(name: str) -> bytes | None:
    """Return code that was kept earlier; None where there is none."""
    with contextlib.suppress(OSError):
        return _file(name).read_bytes()
    return None


def keep(name: str, code: bytes) -> None:
    """Keep code in a file that is written whole or not at all.

    Nothing is kept where the folder cannot be written.
    """
    file = _file(name)
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, code)


def _file(name: str) -> Path:
    return build_folder() / "cubins" / f"{name}.cubin"
