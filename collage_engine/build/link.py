"""Links what TVM compiled into a shared library: by the C++ compiler, else by the package ziglang.

``ziglang`` carries LLVM's linker and assembler. They are called as such and build nothing of their
own first, which ``zig cc`` does for a minute.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from collage_engine.records.errors import ToolchainError
from collage_engine.toolchains.runtime.builder import (
    CannotBuild,
    compiler_command,
    find_in_wheel,
)

SYSTEM_LIBRARIES = ("libm.so.6", "libgcc_s.so.1", "libc.so.6")
"""What a compiler links to anything, by the names of the files that processes load."""


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
        objects: Object files, and assembler (``.S``).
        libraries: Shared libraries that it names as NEEDED.

    Raises:
        CannotBuild: There is nothing to link with.
        RuntimeError: Linking failed; the text is the linker's.
    """
    compiler = compiler_command()
    if compiler:
        options = ["-fPIC", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
        _run(*compiler, "-shared", "-o", output, *options, *objects, *libraries)
        return
    zig = _zig()
    assembled = [name + ".o" if name.endswith(".S") else name for name in objects]
    for source, made in zip(objects, assembled, strict=True):
        if made != source:
            _run(zig, "clang", "-c", source, "-o", made)
    options = ["-rpath", "$ORIGIN", *libraries, *_system_libraries()]
    _run(zig, "ld.lld", "-shared", "-o", output, *assembled, *options)


def _system_libraries() -> list[str]:
    """Return the files of the system's libraries that this process has loaded, as TVM needs."""
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return [path for path in sorted(loaded) if Path(path).name in SYSTEM_LIBRARIES]


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise RuntimeError(done.stderr or f"the linker's exit status is {done.returncode}")
