"""Links what TVM compiled into a shared library.

The linker is called as such: a compiler's driver takes three times as long for a kernel, and
``zig cc`` would build libraries of its own first, for a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from collage_engine.support.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import CannotBuild, find_in_wheel

OPTIONS = (
    *("-rpath", "$ORIGIN", "--no-as-needed", "--eh-frame-hdr", "--hash-style=gnu"),
    *("-z", "noexecstack"),
)
"""Options of the linker: libraries are found where the result lies, and all of them are needed."""
SYSTEM_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libc.so.6")
"""What a compiler links to anything, by the names of the files that processes load."""
BYTES = ".bin"
"""How the name of a file ends whose bytes are linked as they are, as the symbol of its name."""


def linker() -> tuple[str, ...]:
    """Return how the linker is called: GNU's, LLVM's, or LLVM's in the package ``ziglang``.

    Others take no files of bytes.

    Raises:
        CannotBuild: There is none.
    """
    for name in ("ld.bfd", "ld.lld"):
        file = shutil.which(name)
        if file is not None:
            return (file,)
    try:
        return str(find_in_wheel("ziglang", "zig")), "ld.lld"
    except ToolchainError:
        advice = "install binutils, or pip install ziglang"
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
    others = [os.path.abspath(name) for name in objects if not name.endswith(BYTES)]
    raw = [name for name in objects if name.endswith(BYTES)]
    command = [*linker(), "-shared", "-o", os.path.abspath(output), *others, *OPTIONS]
    done = subprocess.run(
        [*command, *_bytes_of(raw), *map(os.path.abspath, libraries), *_system_libraries()],
        cwd=os.path.dirname(raw[0]) if raw else None,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr or f"the linker's exit status is {done.returncode}")


def _bytes_of(files: Sequence[str]) -> list[str]:
    """Return a linker's options for files of bytes in the folder that it works in.

    Linkers call the begin of such a file by its path as given, which is the file's name, so that
    equal modules are equal files; it gets the symbol's name besides.
    """
    options = []
    for name in map(os.path.basename, files):
        begin = f"_binary_{re.sub('[^A-Za-z0-9]', '_', name)}_start"
        symbol = name.removesuffix(BYTES)
        options += ["--format=binary", name, "--format=default", f"--defsym={symbol}={begin}"]
    return options


def _system_libraries() -> list[str]:
    """Return the files of the system's libraries that this process has loaded, as TVM needs."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return [path for path in sorted(loaded) if Path(path).name in SYSTEM_LIBRARIES]


def pack_imports(
    module: Any,
    is_system_lib: bool,
    prefix: str,
    workspace: str,
    architecture: str = "",
    cut: Callable[[bytes], bytes] | None = None,
) -> str:
    """Write the blob which TVM looks for when it loads a module, for ``link_shared``.

    TVM's own way makes LLVM write the bytes (weights, plans) out as a constant array: 1.3 s per 100
    MB. Here the linker includes the file, which costs a copy.

    It has the signature of TVM's ``fpack_imports``, but for the last arguments.

    Args:
        module: The module whose imports are packed.
        is_system_lib: Is ignored; TVM gives it.
        prefix: Is ignored; TVM gives it.
        workspace: The folder for the files.
        architecture: The CUDA architecture (sm_90a) for which kernels that are still CUDA source
            are compiled; empty: none are.
        cut: Returns the blob without what lies in other files; None: the blob holds everything.

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
    if cut is not None:
        blob = np.frombuffer(cut(blob.tobytes()), dtype=np.uint8)
    path = os.path.join(workspace, symbol + BYTES)
    blob.tofile(path)
    return path
