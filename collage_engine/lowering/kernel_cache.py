"""Keeps compiled kernels as files, so that each is compiled once on a machine.

A kernel of the processor is an object file, found by what decides about its code: the scheduled
function (names of variables aside), the target, TVM's version and our own passes. Whole models,
mixes, candidates that are measured by themselves, later runs and other models are linked from the
same files. Device code is kept in the same folder (``cubin.py``).

A file ends with a digest of its content and appears whole or not at all; what is damaged is
compiled again, and where nothing can be written nothing is kept. The least recently used files
leave once the folder is larger than ``MOST_BYTES``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import os
import re
import struct
import tempfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

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

# -- files -------------------------------------------------------------------------------


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

# -- kernels of the processor ------------------------------------------------------------


def with_kernel_names(module: Any, target: Any) -> tuple[Any, dict[str, str]]:
    """Return a lowered Relax module whose kernels are named by what they compute.

    A kernel's name is what it was called, without a number, and the digest under which it is kept,
    so that it is the same in every module and two different ones never share a name.

    Args:
        module: The module, lowered so far that its machine code can be generated.
        target: TVM's target.

    Returns:
        The module, and the new name of each kernel by its old one.
    """
    from tvm import relax, tirx

    module = module.clone()
    names = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            old = str(variable.name_hint)
            names[old] = _name_of(old, function, target)
            module.update_func(variable, function.with_attr("global_symbol", names[old]))
    return relax.transform.NormalizeGlobalVar()(module), names


def _name_of(name: str, function: Any, target: Any) -> str:
    import tvm_ffi

    bare = function.without_attr("global_symbol") if "global_symbol" in function.attrs else function
    plain = re.sub(r"\d+$", "", name)
    kinds = ", ".join(f"{p.dtype}{list(p.shape)}" for p in function.params if hasattr(p, "shape"))
    key = (plain, kinds, str(tvm_ffi.structural_hash(bare)), str(target), _compiler())
    return f"{plain}_{digest_of(*key)}"


@cache
def _compiler() -> str:
    """Return what tells this compiler, with our passes, from another one."""
    from collage_engine.kernels import stack_buffers

    passes = Path(stack_buffers.__file__).read_bytes() + Path(__file__).read_bytes()
    return f"{importlib.metadata.version('apache-tvm')} {hashlib.sha256(passes).hexdigest()}"


def compiled_kernels(functions: Mapping[str, Any], target: Any) -> dict[str, bytes]:
    """Return the object files of kernels, compiled on all processors where they are not kept.

    Args:
        functions: The kernels' functions, by the names of ``with_kernel_names``.
        target: TVM's target, a processor.
    """
    compiled = {name: read_kernel(_kept_as(name)) for name in functions}
    missing = [name for name, code in compiled.items() if code is None]
    with tempfile.TemporaryDirectory(prefix="collage-kernels-") as folder:

        def compile_one(number: int) -> None:
            name = missing[number]
            code = _compile(name, functions[name], target)
            write_atomically(Path(folder) / name, code)
            # At once, since a process that waits for all may be ended before the last one is there.
            keep_kernel(_kept_as(name), code)

        on_all_processors(compile_one, len(missing))
        for name in missing:
            file = Path(folder) / name
            code = file.read_bytes() if file.exists() else _compile(name, functions[name], target)
            keep_kernel(_kept_as(name), code)
            compiled[name] = code
    return {name: code for name, code in compiled.items() if code is not None}


def _kept_as(name: str) -> str:
    return name[-NAME_DIGITS:]


def _compile(name: str, function: Any, target: Any) -> bytes:
    """Return the object file of one kernel."""
    import tvm

    from collage_engine.kernels.stack_buffers import PIPELINE

    with tvm.transform.PassContext(), tempfile.TemporaryDirectory() as folder:
        module = tvm.IRModule({name: function})
        library = tvm.tirx.build(module, target=target, pipeline=PIPELINE)
        file = Path(folder) / "kernel.o"
        library.write_to_file(str(file), "o")
        return file.read_bytes()
