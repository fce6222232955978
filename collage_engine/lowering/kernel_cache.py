"""Keeps compiled kernels as files, so that each is compiled once on a machine.

A kernel of the processor is an object file, found by what decides about its code: the scheduled
function (names of variables aside), the target, TVM's version and our own passes. Whole models,
mixes, candidates that are measured by themselves, later runs and other models are linked from the
same files (``toolchains/runtime/kept_files.py``), among which device code is, too (``cubin.py``).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.machine.processes import on_all_processors
from collage_engine.toolchains.runtime.kept_files import (
    NAME_DIGITS,
    digest_of,
    keep_kernel,
    read_kernel,
)


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

    def compile_one(number: int) -> None:
        name = missing[number]
        keep_kernel(_kept_as(name), _compile(name, functions[name], target))

    on_all_processors(compile_one, len(missing))
    for name in missing:
        code = read_kernel(_kept_as(name))
        if code is None:
            code = _compile(name, functions[name], target)
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
