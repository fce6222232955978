"""Kernel libraries: compiled by nvcc once per architecture, family and generation, and kept.

A library's name carries a hash of everything that decides what it holds, and is its SONAME; the
runtime opens it by that name from its own folder. Several processes may ask for one at a time: one
compiles, the rest wait, and the file appears whole or not at all.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.cutlass.families import Family, Tile, WideTile, source_of
from collage_engine.toolchains.native.builder import build_folder, find_in_wheel, lock
from collage_engine.toolchains.native.nvcc import need_nvcc, nvcc_version

SOURCES = Path(__file__).resolve().parent / "src"
KERNELS = SOURCES / "kernels"
COMPILE_SECONDS = 1800.0
"""Enough for a family on a slow, busy machine; alone it is a minute."""
WHEELS = (("nvidia-cutlass", "include/cutlass"), ("apache-tvm", "include/cutlass"))
"""Distributions that carry CUTLASS's headers, the newer first."""

Tiles = tuple[Tile, ...] | tuple[WideTile, ...]


@cache
def headers() -> Path:
    """Folder of CUTLASS's headers, of CUTLASS_PATH or of a wheel; ``ToolchainError``."""
    chosen = os.environ.get("CUTLASS_PATH")
    if chosen:
        folder = Path(chosen) / "include"
        if not (folder / "cutlass" / "cutlass.h").exists():
            raise ToolchainError(f"CUTLASS_PATH: {folder} holds no cutlass/cutlass.h")
        return folder
    for package, folder_name in WHEELS:
        try:
            return find_in_wheel(package, "cutlass.h", folder_name).parents[1]
        except ToolchainError:
            continue
    raise ToolchainError("CUTLASS's headers are not here (package nvidia-cutlass)")


@cache
def version() -> str:
    """CUTLASS's version, from its headers."""
    numbers = {}
    for line in (headers() / "cutlass" / "version.h").read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("CUTLASS_"):
            numbers[words[1].removeprefix("CUTLASS_")] = words[2]
    if "MAJOR" not in numbers:
        raise ToolchainError(f"{headers()} tells no version of CUTLASS")
    return ".".join(numbers.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))


@cache
def _texts() -> bytes:
    files = [*sorted(KERNELS.glob("*.h")), SOURCES / "collage_cutlass_abi.h"]
    return b"\0".join(path.name.encode() + b"\0" + path.read_bytes() for path in files)


def options(architecture: str) -> list[str]:
    """What nvcc is told beside files; NDEBUG, since assertions make it serialise wgmma."""
    number = architecture.removeprefix("sm_")
    return [
        "-std=c++17", "-O3", "-DNDEBUG", "-w", "--expt-relaxed-constexpr",
        "-gencode", f"arch=compute_{number},code=sm_{number}",
        "-Xcompiler", "-fPIC,-fvisibility=hidden", "-shared", "-cudart", "shared",
    ]  # fmt: skip


def file_name(
    family: Family, generation: str, architecture: str, tiles: Tiles | None = None
) -> str:
    """The library's file name and SONAME. ``ToolchainError`` where there is no compiler."""
    nvcc = need_nvcc()
    digest = hashlib.sha256(_texts())
    for part in (
        source_of(family, generation, tiles), *options(architecture), version(), nvcc_version(nvcc),
    ):  # fmt: skip
        digest.update(part.encode() + b"\0")
    what = f"{architecture}_{family.name}_{generation}"
    return f"libcollage_cutlass_{what}_{digest.hexdigest()[:12]}.so"


def build(family: Family, generation: str, architecture: str, tiles: Tiles | None = None) -> Path:
    """The library, compiled now or taken from the cache; ``ToolchainError`` with nvcc's error."""
    name = file_name(family, generation, architecture, tiles)
    folder = build_folder() / "cutlass"
    library = folder / name
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with lock(folder / f"{name}.lock"):
            if not library.exists():
                _compile(source_of(family, generation, tiles), architecture, library)
    except OSError as error:
        raise ToolchainError(f"cannot write the kernel cache {folder}: {error}") from error
    return library


def build_all(family: Family, architecture: str) -> tuple[Path, ...]:
    """The libraries of a family, one per generation, compiled side by side."""
    generations = family.generations(architecture)
    if not generations:
        raise ToolchainError(f"CUTLASS's kernels need sm_80 or newer, not {architecture}")
    with ThreadPoolExecutor(max_workers=len(generations)) as pool:
        return tuple(pool.map(lambda g: build(family, g, architecture), generations))


def _compile(source: str, architecture: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
        code, result = Path(scratch) / "kernels.cu", Path(scratch) / library.name
        code.write_text(source)
        command = [
            need_nvcc(), *options(architecture), f"-I{headers()}", f"-I{KERNELS}", str(code),
            "-o", str(result), "-Xlinker", f"-soname={library.name}",
            "-Xlinker", "-rpath=$ORIGIN",
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_SECONDS,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ToolchainError(
                f"compiling {library.name} took longer than {COMPILE_SECONDS:g} s"
            ) from None
        if done.returncode or not result.exists():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            first = next((line for line in lines if "error" in line), "")
            raise ToolchainError(
                f"nvcc refuses CUTLASS's kernels: {first or (lines[-1] if lines else 'no message')}"
            )
        os.replace(result, library)


def put_beside(libraries: Iterable[Path], folder: Path) -> None:
    """Symbolic links in the runtime's folder, where it looks for kernel libraries."""
    for library in libraries:
        link = folder / library.name
        if link.exists():
            continue
        with tempfile.TemporaryDirectory(dir=folder, prefix="link-") as scratch:
            made = Path(scratch) / library.name
            made.symlink_to(library)
            os.replace(made, link)  # whoever comes second replaces it by the same


def open_library(library: Path) -> ctypes.CDLL:
    """Known to this process by its SONAME from now on, wherever the runtime was loaded from."""
    from collage_engine.toolchains.native.cuda import cuda_runtime

    ctypes.CDLL(str(cuda_runtime()[1]))  # it asks for it by name
    return ctypes.CDLL(str(library))
