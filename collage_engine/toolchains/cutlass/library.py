"""Compiles kernel libraries by nvcc, once per architecture and family.

A library's name carries a hash of everything that decides what it holds, and is its SONAME; the
runtime opens it by that name, from its own folder or because the process has it open. Several
processes may ask for one at a time: one compiles, the rest wait, and the file appears whole or not
at all.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from collage_engine.machine.cgroups import available_bytes
from collage_engine.machine.device import physical_cores
from collage_engine.records.errors import ToolchainError
from collage_engine.records.locks import locked
from collage_engine.records.reasons import compiler_reason
from collage_engine.records.time_limits import JOB_S
from collage_engine.toolchains.cutlass.families import Family, source_of
from collage_engine.toolchains.cutlass.headers import headers, version
from collage_engine.toolchains.runtime.builder import build_folder
from collage_engine.toolchains.runtime.nvcc import need_nvcc, nvcc_version

SOURCES = Path(__file__).resolve().parent / "src"
KERNELS = SOURCES / "kernels"
"""Folders of the C++ sources, and of the headers from which kernels are compiled."""
COMPILER_BYTES = 1 << 30
"""Bytes of memory that one compiler takes at most: 0.57 GiB of nvcc 13.0 on two families for
sm_90a, rounded up."""


def _texts(source: str) -> bytes:
    """Returns the texts of our headers that a source includes, directly or not."""
    found: dict[Path, bytes] = {}
    waiting = [KERNELS / name for name in _INCLUDE.findall(source)]
    while waiting:
        path = waiting.pop().resolve()
        if path not in found:
            found[path] = path.read_bytes()
            waiting += [path.parent / name for name in _INCLUDE.findall(found[path].decode())]
    return b"\0".join(path.name.encode() + b"\0" + found[path] for path in sorted(found))


_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def options(architecture: str) -> list[str]:
    """Returns nvcc's options."""
    number = architecture.removeprefix("sm_")
    return [
        "-std=c++17",
        "-O3",
        "-DNDEBUG",
        "-w",
        "--expt-relaxed-constexpr",
        "-gencode",
        f"arch=compute_{number},code=sm_{number}",
        "-Xcompiler",
        "-fPIC,-fvisibility=hidden",
        "-shared",
        "-cudart",
        "shared",
    ]


def file_name(family: Family, architecture: str) -> str:
    """Returns the library's file name, which is its SONAME.

    Raises:
        ToolchainError: There is no compiler.
    """
    nvcc = need_nvcc()
    source = source_of(family)
    digest = hashlib.sha256(_texts(source))
    for part in (source, *options(architecture), version(), nvcc_version(nvcc)):
        digest.update(part.encode() + b"\0")
    return f"libcollage_cutlass_{architecture}_{family.name}_{digest.hexdigest()[:12]}.so"


def _place(family: Family, architecture: str) -> Path:
    return build_folder() / "cutlass" / file_name(family, architecture)


def build(family: Family, architecture: str, stop: Callable[[], bool] = lambda: False) -> Path:
    """Compiles a library, or takes it from the cache.

    Args:
        family: The kernels of the library.
        architecture: The device's architecture.
        stop: Tells whether the compilation is to be given up.

    Returns:
        The path of the library.

    Raises:
        ToolchainError: nvcc fails, the cache cannot be written, or ``stop`` returned true.
    """
    library = _place(family, architecture)
    if library.exists():
        return library
    folder = library.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / f"{library.name}.lock"):
            if not library.exists():
                _compile(source_of(family), architecture, library, stop)
    except OSError as error:
        raise ToolchainError(f"cannot write the kernel cache {folder}: {error}") from error
    return library


def build_many(
    families: Iterable[Family],
    architecture: str,
    now: Callable[[str], None],
    stop: Callable[[], bool],
) -> None:
    """Compiles the libraries of families that are missing, several at a time.

    Args:
        families: The families.
        architecture: The device's architecture.
        now: Is called with a line of text about the progress.
        stop: Tells whether to give up.

    Raises:
        ToolchainError: nvcc refused a library; the others have been tried.
    """
    missing = [family for family in families if not _place(family, architecture).exists()]
    if not missing:
        return
    room = available_bytes() // COMPILER_BYTES
    workers = max(1, min(len(missing), physical_cores(), room))
    errors: list[ToolchainError] = []
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting = {pool.submit(build, family, architecture, stop) for family in missing}
        while waiting:
            left = len(waiting)
            now(f"CUTLASS's kernels: {left} librar{'y' if left == 1 else 'ies'} to compile, once")
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for one in done:
                try:
                    one.result()
                except ToolchainError as error:
                    errors.append(error)
    if errors and not stop():
        raise errors[0]


def _compile(source: str, architecture: str, library: Path, stop: Callable[[], bool]) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix="build-") as scratch:
        code, result = Path(scratch) / "kernels.cu", Path(scratch) / library.name
        code.write_text(source)
        command = [
            need_nvcc(),
            *options(architecture),
            f"-I{headers()}",
            f"-I{KERNELS}",
            str(code),
            "-o",
            str(result),
            "-Xlinker",
            f"-soname={library.name}",
            "-Xlinker",
            "-rpath=$ORIGIN",
        ]
        log = Path(scratch) / "log"
        with open(log, "wb") as written:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                start_new_session=True,
            )
            try:
                status = _wait(child, stop)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)  # nvcc's own children too
                    child.wait()
        if status is None:
            raise ToolchainError(f"compiling {library.name} was stopped or took too long")
        if status or not result.exists():
            reason = compiler_reason(log.read_text(errors="replace"))
            raise ToolchainError(f"nvcc refuses CUTLASS's kernels: {reason}")
        os.replace(result, library)


def _wait(child: subprocess.Popen[bytes], stop: Callable[[], bool]) -> int | None:
    """Return its exit status; None when it took too long or was to be stopped."""
    deadline = time.monotonic() + JOB_S
    while time.monotonic() < deadline and not stop():
        try:
            return child.wait(timeout=0.25)
        except subprocess.TimeoutExpired:
            continue
    return None


def open_library(library: Path) -> ctypes.CDLL:
    """Opens a kernel library, by whose SONAME this process knows it from then on.

    So a module finds it wherever the runtime was loaded from.
    """
    from collage_engine.toolchains.runtime.cuda import cuda_runtime

    ctypes.CDLL(str(cuda_runtime()[1]))  # it asks for it by name
    return ctypes.CDLL(str(library))
