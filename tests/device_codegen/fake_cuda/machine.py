"""A machine with an NVIDIA device that is not there, for child processes of tests.

``environment`` gives the variables under which a process finds the pretended driver, runtime and
compiler (``device.cc``, ``nvcc.py``) and nothing else of CUDA's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = ("libcuda.so.1", "libcudart.so.13")


def headers() -> Path | None:
    """Where CUDA's headers are; None: they are not here."""
    from collage_engine.records.errors import ToolchainError
    from collage_engine.toolchains.runtime.cuda import find_file

    try:
        runtime = find_file(("nvidia-cuda-runtime",), "cuda_runtime_api.h").parent
    except ToolchainError:
        return None
    if (runtime / "cuda_fp16.h").exists() and (runtime / "cuda.h").exists():
        return runtime
    return None


def environment(folder: Path) -> dict[str, str]:
    """Variables of a process on that machine; its libraries are built into ``folder``."""
    from collage_engine.toolchains.runtime.cuda import cuda_includes

    include = headers()
    assert include is not None
    libraries, tools = folder / "lib", folder / "bin"
    libraries.mkdir(parents=True, exist_ok=True)
    tools.mkdir(exist_ok=True)
    real = libraries / "device.so"
    if not real.exists() or real.stat().st_mtime < (HERE / "device.cc").stat().st_mtime:
        folders = [f"-I{path}" for path in (include, *cuda_includes())]
        done = subprocess.run(
            [
                "g++",
                "-std=c++17",
                "-O1",
                "-shared",
                "-fPIC",
                "-fvisibility=hidden",
                "-w",
                *folders,
                str(HERE / "device.cc"),
                "-o",
                str(real),
                "-ldl",
                "-lpthread",
                "-Wl,-soname,libcudart.so.13",
                f"-Wl,--version-script={HERE / 'exports.map'}",
            ],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[:4000]
    for name in NAMES:
        (libraries / name).unlink(missing_ok=True)
        (libraries / name).symlink_to(real)
    compiler = tools / "nvcc"
    compiler.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "nvcc.py"} "$@"\n')
    compiler.chmod(0o755)
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(
            filter(None, (str(libraries), os.environ.get("LD_LIBRARY_PATH")))
        ),
        "CUDA_HOME": str(folder),
        "PRETENDED_CUDA": str(folder),
        "PRETENDED_CUDA_INCLUDE": str(include),
    }
