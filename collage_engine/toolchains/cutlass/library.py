"""Compiles kernel libraries by nvcc, once per architecture and family.

A library's name carries a hash of everything that decides what it holds, and is its SONAME; the
runtime opens it by that name, from its own folder or because the process has it open. Several
processes may ask for one at a time: one compiles, the rest wait, and the file appears whole or not
at all.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from collage_engine.machine.device import physical_cores
from collage_engine.machine.worker import WorkerError, call_in_child
from collage_engine.support.errors import ToolchainError, compiler_reason
from collage_engine.support.files import atomic_file, locked
from collage_engine.support.time_limits import JOB_S, FlagWhen
from collage_engine.toolchains.runtime.builder import build_folder, find_in_wheel, header_version
from collage_engine.toolchains.runtime.cuda import cuda_runtime
from collage_engine.toolchains.runtime.kept_files import digest_of
from collage_engine.toolchains.sources import hash_files


def find_nvcc() -> str | None:
    """Return the path of nvcc: of $CUDA_HOME, $CUDA_PATH, PATH or the usual place; else None."""
    roots = filter(None, map(os.environ.get, ("CUDA_HOME", "CUDA_PATH")))
    folders = [*(f"{root}/bin" for root in roots), *os.get_exec_path(), "/usr/local/cuda/bin"]
    return shutil.which("nvcc", path=os.pathsep.join(folders))


def need_nvcc() -> str:
    """Return the path of nvcc.

    Raises:
        ToolchainError: There is none; the text says how to get one.
    """
    compiler = find_nvcc()
    if compiler is None:
        raise ToolchainError("no nvcc: install the CUDA toolkit, or set CUDA_HOME to one")
    return compiler


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


KERNELS = Path(__file__).resolve().parent / "src" / "kernels"
"""Folder of the source of all libraries."""
ELEMENTS = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}
"""The C++ type of an element, by element type."""
FUNCTORS = {"none": "Identity", "relu": "ReLu", "silu": "SiLu"}
"""The name of CUTLASS's functor, by activation."""


@dataclass(frozen=True, order=True)
class Family:
    """A family of kernels: what one kernel library is compiled for."""

    dtype: str
    """The type of the operands' elements, float16 or bfloat16; both are summed in float32."""
    activation: str
    architecture: str

    def options(self) -> list[str]:
        """Return what nvcc is told of it."""
        number = self.architecture.removeprefix("sm_")
        return [
            "-std=c++17",
            "-O3",
            "-DNDEBUG",
            "-w",
            "--expt-relaxed-constexpr",
            "-gencode",
            f"arch=compute_{number},code=sm_{number}",
            f"-DCOLLAGE_ELEMENT={ELEMENTS[self.dtype]}",
            f"-DCOLLAGE_ACTIVATION={FUNCTORS[self.activation]}",
            "-Xcompiler",
            "-fPIC,-fvisibility=hidden",
            "-shared",
            "-cudart",
            "shared",
        ]

    def place(self) -> Path:
        """Return where its library lies once it is compiled; the file's name is its SONAME.

        Raises:
            ToolchainError: There is no compiler.
        """
        sources = hash_files([*KERNELS.iterdir(), *KERNELS.parent.glob("*.h")])
        digest = digest_of(sources, *self.options(), version(), nvcc_version(need_nvcc()))
        name = f"libcollage_cutlass_{self.architecture}_{self.dtype}_{self.activation}"
        return build_folder() / "cutlass" / f"{name}_{digest}.so"


@cache
def headers() -> Path:
    """Return the folder of CUTLASS's headers, from CUTLASS_PATH or TVM's wheel.

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
    """Return CUTLASS's version, as its headers state it."""
    return header_version(headers() / "cutlass" / "version.h", "CUTLASS_")


def build(family: Family) -> Path:
    """Compiles a library, or takes it from the cache.

    Returns:
        The path of the library.

    Raises:
        ToolchainError: nvcc fails, or the cache cannot be written.
    """
    library = family.place()
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with locked(library.with_suffix(".lock")):
            if not library.exists():
                _compile(family, library)
    except OSError as error:
        reason = f"cannot write the kernel cache {library.parent}: {error}"
        raise ToolchainError(reason) from error
    return library


def build_many(
    families: Collection[Family], now: Callable[[str], None], stop: Callable[[], bool]
) -> None:
    """Compiles the libraries of families that are missing, several at a time.

    Args:
        families: The families.
        now: Is called with a line of text about the progress.
        stop: Tells whether to give up.

    Raises:
        ToolchainError: nvcc refused a library; those that were compiled beside it are kept.
        Cancelled: ``stop`` told so.
    """
    missing = sorted(family for family in families if not family.place().exists())
    if not missing:
        return
    count = len(missing)
    now(f"CUTLASS's kernels: {count} librar{'y' if count == 1 else 'ies'} to compile, once")
    job = f"{__name__}:build"

    def in_child(family: Family) -> Path:
        # A child, since it ends with the compilers below it when it is to stop.
        try:
            path: Path = call_in_child(job, family, timeout_s=JOB_S, cancel=FlagWhen(stop))
        except WorkerError as error:
            raise ToolchainError(str(error)) from error
        return path

    with ThreadPoolExecutor(physical_cores()) as pool:
        list(pool.map(in_child, missing))


def _compile(family: Family, library: Path) -> None:
    with atomic_file(library) as result:
        command = [
            need_nvcc(),
            *family.options(),
            f"-I{headers()}",
            str(KERNELS / "kernels.cu"),
            "-o",
            str(result),
            "-Xlinker",
            f"-soname={library.name}",
            "-Xlinker",
            "-rpath=$ORIGIN",
        ]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            reason = compiler_reason(done.stderr)
            raise ToolchainError(f"nvcc refuses CUTLASS's kernels: {reason}")


def open_library(library: Path) -> None:
    """Open a kernel library, by whose SONAME this process knows it from then on.

    So a module finds it wherever the runtime was loaded from.

    Raises:
        ToolchainError: It cannot be loaded.
    """
    try:
        ctypes.CDLL(str(cuda_runtime()[1]))  # it asks for it by name
        ctypes.CDLL(str(library))
    except OSError as error:
        raise ToolchainError(f"cannot load CUTLASS's kernels: {error}") from error
