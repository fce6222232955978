"""Builds executables of TVM's virtual machine from modules of scheduled kernels.

Kernels are compiled one by one, on all processors, and kept, so that one is compiled once on a
machine: machine code for a processor, a cubin for a device (``cubin.py``). A kernel of the
processor is an object file, found by what decides about its code: the scheduled function (names of
variables aside), the target, TVM's version and our own passes. Whole models, mixes, candidates that
are measured by themselves, later runs and other models are linked from the same files
(``toolchains/runtime/kept_files.py``).

TVM's own pipeline for CUDA begins by legalising, fusing and scheduling. Here all of that is done;
fused once more, two scheduled kernels of neighbouring partitions would become one function with
two launches and a buffer between them that it allocates in every call, which no CUDA graph bears.
Only TVM's passes from there on are run.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import struct
import tempfile
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build
from tvm.tirx.build import codegen_build, split_host_device_mods

from collage_engine.lowering.link import link_shared, pack_imports
from collage_engine.lowering.virtual_machine import build_target
from collage_engine.machine.processes import on_all_processors
from collage_engine.toolchains.base import MODULES
from collage_engine.toolchains.runtime.kept_files import NAME_DIGITS, digest_of, kept_or_made


class Executable(vm_build.VMExecutable):  # type: ignore[misc,unused-ignore]
    """An executable of TVM's virtual machine that is linked from kept kernels.

    Attributes:
        names: What kernels are called in it, by their names in the module of which it was built.
    """

    def __init__(self, module: Any, architecture: str) -> None:
        """Lower a Relax module, and compile those of its kernels that are not kept.

        Args:
            module: The module.
            architecture: The CUDA architecture; empty: this machine's processor.
        """
        target = build_target(architecture)
        with target:
            lowered = (_device_pipeline if architecture else relax.get_pipeline("default"))(module)
        lowered, self.names = with_kernel_names(lowered, target)
        functions = {
            str(variable.name_hint): function
            for variable, function in lowered.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        library = None
        if functions and architecture:
            library = _device_library(functions, target)
        elif functions:
            kernels = compiled_kernels(functions, target).items()
            library, *others = [static_library(*kernel) for kernel in kernels]
            for other in others:
                library.import_module(other)
        external = dict(lowered.attrs or {}).get(MODULES, [])
        builder = relax.ExecBuilder()
        vm_build._vmcodegen(builder, lowered)
        super().__init__(vm_build._ffi_api.VMLink(builder, target, library, external, {}))

    def jit(self, **_: Any) -> Any:
        """Return it as a module that runs in this process."""
        return super().jit(fcompile=link_shared, libraries=[], fpack_imports=pack_imports)


def _device_library(kernels: Mapping[str, Any], target: Any) -> Any:
    """Return the library that launches kernels, each of which is a module of its own.

    TVM would write all kernels into one CUDA source, which is compiled anew for every placement.
    """
    passes, for_host, for_device = tirx.get_default_tir_pipeline(target)
    renamed = {name: _with_numbered_parameters(kernel) for name, kernel in kernels.items()}
    parts = passes(tirx.transform.BindTarget(target)(tvm.IRModule(renamed)))
    host, on_device = split_host_device_mods(parts)
    sources = [
        tvm.IRModule({variable: function})
        for of_target in on_device.values()
        for variable, function in for_device()(of_target).functions_items()
    ]

    def module_of(number: int) -> Any:
        return codegen_build(sources[number], target)

    # With a device TVM has each compiled as soon as it is written (``cubin.compile_for_tvm``).
    on_all_processors(module_of, len(sources))
    library = codegen_build(for_host()(host), target.host)
    for number in range(len(sources)):
        library.import_module(module_of(number))
    return library


def _with_numbered_parameters(kernel: Any) -> Any:
    """Return a kernel whose parameters are called by their position.

    TVM writes their names into the source and orders them by name; equal kernels have equal source
    only where these do not depend on the module.
    """
    stored = json.loads(tvm.ir.save_json(kernel))
    nodes = stored["nodes"]
    parameters = nodes[nodes[stored["root_index"]]["data"]["params"]]["data"]
    for position, index in enumerate(parameters):
        nodes[index]["data"]["name"] = len(nodes)
        nodes.append({"type": "ffi.String", "data": f"p{position:03}"})
    return tvm.ir.load_json(json.dumps(stored))


def static_library(name: str, code: bytes) -> Any:
    """Return a module that stands for an object file when a library is exported.

    Args:
        name: The function that it defines.
        code: The content of the object file.
    """
    symbol = name.encode()
    fields = struct.pack("<Q", len(code)), code, struct.pack("<QQ", 1, len(symbol)), symbol
    load = tvm_ffi.get_global_func("ffi.Module.load_from_bytes.static_library")
    return load(b"".join(fields))


def _device_pipeline(module: Any) -> Any:
    """Return a module of scheduled kernels, lowered until code can be generated."""
    from tvm.relax.backend.cuda import pipeline as cuda
    from tvm.s_tir import dlight

    target = tvm.target.Target.current()
    passes = [
        # For the stand-in of a module without kernels; ours say that they are scheduled.
        dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
        *cuda.dataflow_lower_passes(target),
        *cuda.finalize_passes(target),
    ]
    return tvm.transform.Sequential(passes)(module)


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
    module = module.clone()
    names = {}
    for variable, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            old = str(variable.name_hint)
            names[old] = _name_of(old, function, target)
            module.update_func(variable, function.with_attr("global_symbol", names[old]))
    return relax.transform.NormalizeGlobalVar()(module), names


def _name_of(name: str, function: Any, target: Any) -> str:
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
    makers = {
        name[-NAME_DIGITS:]: partial(_compile, name, function, target)
        for name, function in functions.items()
    }
    return dict(zip(functions, kept_or_made(makers).values(), strict=True))


def _compile(name: str, function: Any, target: Any) -> bytes:
    """Return the object file of one kernel."""
    from collage_engine.kernels.stack_buffers import PIPELINE

    with tvm.transform.PassContext(), tempfile.TemporaryDirectory() as folder:
        module = tvm.IRModule({name: function})
        library = tvm.tirx.build(module, target=target, pipeline=PIPELINE)
        file = Path(folder) / "kernel.o"
        library.write_to_file(str(file), "o")
        return file.read_bytes()
