"""Links what TVM compiled into a shared library: by the C++ compiler, else by the package ziglang.

``ziglang`` carries LLVM's linker. It is called as such and builds nothing of its own first, which
``zig cc`` does for a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import (
    CannotBuild,
    compiler_command,
    find_in_wheel,
)

SYSTEM_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libc.so.6")
"""What a compiler links to anything, by the names of the files that processes load."""
BYTES = ".bin"
"""How the name of a file ends whose bytes are linked as they are, as the symbol of its name."""


def check_linker() -> None:
    """Find out whether shared libraries can be linked here.

    Raises:
        CannotBuild: There is neither a C++ compiler nor the package ``ziglang``.
    """
    if not compiler_command():
        _zig()


def _zig() -> str:
    try:
        return str(find_in_wheel("ziglang", "zig"))
    except ToolchainError:
        advice = "install g++, set CXX to a C++17 compiler, or pip install ziglang"
        raise CannotBuild(f"there is nothing to link with: {advice}", advice) from None


def link_shared(output: str, objects: Sequence[str], libraries: Sequence[str], **_: Any) -> None:
    """Link a shared library that looks for others beside itself; an ``fcompile`` of TVM.

    Args:
        output: The shared library.
        objects: Object files, and files of bytes (``SYMBOL.bin``).
        libraries: Shared libraries that it names as NEEDED.

    Raises:
        CannotBuild: There is nothing to link with.
        RuntimeError: Linking failed; the text is the linker's.
    """
    options = ["-rpath", "$ORIGIN", "--no-as-needed", "-z", "noexecstack", *_bytes_of(objects)]
    others = [name for name in objects if not name.endswith(BYTES)]
    compiler = compiler_command()
    if compiler:
        passed = [part for option in options for part in ("-Xlinker", option)]
        # The linker mold takes no files of bytes; GNU's is beside it where there are GNU's tools.
        gnu = ["-fuse-ld=bfd"] if shutil.which("ld.bfd") else []
        _run(*compiler, "-shared", "-o", output, "-fPIC", *gnu, *others, *passed, *libraries)
        return
    needed = [*libraries, *_system_libraries()]
    _run(_zig(), "ld.lld", "-shared", "-o", output, *others, *options, *needed)


def _bytes_of(objects: Sequence[str]) -> list[str]:
    """Return a linker's options for the files of bytes among the objects.

    Linkers call the begin of such a file by its path; it gets the symbol's name besides.
    """
    options = []
    for name in objects:
        if name.endswith(BYTES):
            begin = f"_binary_{re.sub('[^A-Za-z0-9]', '_', name)}_start"
            symbol = Path(name).name.removesuffix(BYTES)
            options += ["--format=binary", name, "--format=default", f"--defsym={symbol}={begin}"]
    return options


def _system_libraries() -> list[str]:
    """Return the files of the system's libraries that this process has loaded, as TVM needs."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return [path for path in sorted(loaded) if Path(path).name in SYSTEM_LIBRARIES]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(done.stderr or f"the linker's exit status is {done.returncode}")


def pack_imports(
    module: Any, is_system_lib: bool, prefix: str, workspace: str, architecture: str = ""
) -> str:
    """Write the blob which TVM looks for when it loads a module, for ``link_shared``.

    TVM's own way makes LLVM write the bytes (weights, plans) out as a constant array: 1.3 s per 100
    MB. Here the linker includes the file, which costs a copy.

    It has the signature of TVM's ``fpack_imports``, but for the last argument.

    Args:
        module: The module whose imports are packed.
        is_system_lib: Is ignored; TVM gives it.
        prefix: Is ignored; TVM gives it.
        workspace: The folder for the files.
        architecture: The CUDA architecture (sm_90a) for which kernels that are still CUDA source
            are compiled; empty: none are.

    Returns:
        The path of the file, which is called as the blob's symbol.
    """
    import numpy as np
    import tvm_ffi

    packed = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")(module)
    blob = np.from_dlpack(packed)  # without a copy
    symbol = str(tvm_ffi.get_global_func("runtime.ModuleImportsBlobName")())
    if architecture:
        from collage_engine.lowering.cubin import with_cubins

        blob = np.frombuffer(with_cubins(blob.tobytes(), architecture), dtype=np.uint8)
    path = os.path.join(workspace, symbol + BYTES)
    blob.tofile(path)
    return path
