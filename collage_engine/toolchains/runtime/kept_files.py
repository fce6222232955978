"""Keeps what was compiled or chosen on a machine as files, which all later runs share.

They are kernels for processors (``lowering/executable.py``) and devices (``lowering/cubin.py``),
and which algorithm of a library was the fastest for a product (``toolchains/runtime/cuda.py``). A
file is found by a digest of all that decides about its content.

It ends with a digest of its content and appears whole or not at all; what is damaged counts as
missing, and where nothing can be written nothing is kept. The least recently used files leave once
the folder is larger than ``MOST_BYTES``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from collage_engine.machine.processes import on_all_processors
from collage_engine.support.files import write_atomically
from collage_engine.toolchains.runtime.builder import build_folder

MOST_BYTES = 2 << 30
"""Bytes of all kept kernels, above which the least recently used leave; chosen: 2 GiB are some
eighty thousand kernels of 25 kB, which is what those of a MobileNetV2 take on average."""
NAME_DIGITS = 16
"""Hexadecimal digits under which a kernel is kept: 64 bits, as TVM's hash of a function has."""
DIGEST_BYTES = 32
"""Bytes of the digest of its content (SHA-256) at the end of a file."""


def digest_of(*parts: str | bytes) -> str:
    """Return the name under which a kernel is kept that these texts decide about."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(struct.pack("<Q", len(data)) + data)
    return whole.hexdigest()[:NAME_DIGITS]


def read_kernel(name: str) -> bytes | None:
    """Return a kept kernel; None where there is none, or a damaged one, which is removed."""
    if name in _not_kept:
        return _not_kept[name]
    file = _file(name)
    try:
        content = file.read_bytes()
        code, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if hashlib.sha256(code).digest() != digest:
            file.unlink()
            return None
    except OSError:
        return None
    with contextlib.suppress(OSError):  # a folder that is only read
        os.utime(file)
    return code


def keep_kernel(name: str, code: bytes) -> None:
    """Keep a compiled kernel, unless it is kept; where it cannot be written, in this process."""
    file = _file(name)
    if file.exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, code + hashlib.sha256(code).digest())
    except OSError:
        _not_kept[name] = code
        return
    if not _looked:
        _looked.append(True)
        remove_least_used()


def kept_or_made(makers: Mapping[str, Callable[[], bytes]]) -> dict[str, bytes]:
    """Return kernels by their names; what is not kept is made on all processors at once.

    Args:
        makers: What makes the kernel of a name, and raises where it fails.
    """
    found = {name: read_kernel(name) for name in makers}
    missing = [name for name, code in found.items() if code is None]
    # What the processes made is handed on by this folder also where nothing can be kept.
    with tempfile.TemporaryDirectory(prefix="collage-kernels-") as folder:

        def make(number: int) -> None:
            name = missing[number]
            code = makers[name]()
            write_atomically(Path(folder) / name, code)
            # At once, since a process that waits for all may be ended before the last one is there.
            keep_kernel(name, code)

        on_all_processors(make, len(missing))
        for name in missing:
            file = Path(folder) / name
            found[name] = code = file.read_bytes() if file.exists() else makers[name]()
            keep_kernel(name, code)
    return {name: code for name, code in found.items() if code is not None}


def kernel_files() -> Iterator[Path]:
    """Return the files of all kept kernels."""
    return _folder().glob("*/*")


def remove_least_used(most_bytes: int | None = None) -> None:
    """Remove the kernels that were not used for longest, where all take too many bytes.

    Args:
        most_bytes: What all may take; None: ``MOST_BYTES``; 0: all are removed.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    kept = []
    for file in kernel_files():
        with contextlib.suppress(OSError):
            state = file.stat()
            kept.append((state.st_mtime, state.st_size, file))
    too_much = sum(size for _, size, _ in kept) - most_bytes
    for _, size, file in sorted(kept):
        if too_much <= 0:
            break
        with contextlib.suppress(OSError):
            file.unlink()
            too_much -= size


def _folder() -> Path:
    return build_folder() / "kernels"


def _file(name: str) -> Path:
    return _folder() / name[:2] / name


_not_kept: dict[str, bytes] = {}
"""Kernels that could not be written, by name: this process compiles them once all the same."""
_looked: list[bool] = []
"""Not empty once this process has looked at how large the folder is: when it first writes."""
