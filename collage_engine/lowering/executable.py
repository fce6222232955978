"""Builds executables of TVM's virtual machine from modules of scheduled kernels.

For a processor an executable is linked from kernels that are compiled one by one and kept
(``kernel_cache.py``).

TVM's own pipeline for CUDA begins by legalising, fusing and scheduling. Here all of that is done;
fused once more, two scheduled kernels of neighbouring partitions would become one function with
two launches and a buffer between them that it allocates in every call, which no CUDA graph bears.
Only TVM's passes from there on are run.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import vm_build

from collage_engine.lowering.kernel_cache import compiled_kernels, with_kernel_names
from collage_engine.lowering.link import link_shared
from collage_engine.lowering.virtual_machine import build_target
from collage_engine.toolchains.base import MODULES


def build_module(module: Any, architecture: str) -> Any:
    """Build a Relax module into an executable of TVM's virtual machine.

    Args:
        module: The module.
        architecture: The CUDA architecture; empty: this machine's processor.
    """
    target = build_target(architecture)
    if not architecture:
        return HostExecutable(module, target)
    return relax.build(module, target, relax_pipeline=_pipeline(target))


class HostExecutable(vm_build.VMExecutable):  # type: ignore[misc,unused-ignore]
    """An executable for a processor, linked from kept kernels.

    Attributes:
        names: What kernels are called in it, by their names in the module of which it was built.
    """

    def __init__(self, module: Any, target: Any) -> None:
        """Lower the module, and compile those of its kernels that are not kept."""
        with target:
            lowered = relax.get_pipeline("default")(module)
        self._lowered, self.names = with_kernel_names(lowered, target)
        self._target = target
        functions = {
            str(variable.name_hint): function
            for variable, function in self._lowered.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        self._kernels = compiled_kernels(functions, target)
        libraries = [static_library(*kernel) for kernel in self._kernels.items()]
        for other in libraries[1:]:
            libraries[0].import_module(other)
        super().__init__(self._linked_to(libraries[0] if libraries else None))
        self._running: Any = None

    def jit(self, **_: Any) -> Any:
        """Return it as a module that runs in this process."""
        if not self._kernels:
            return self.mod
        if self._running is None:
            with tempfile.TemporaryDirectory(prefix="collage-kernels-") as folder:
                objects = [Path(folder) / f"{name}.o" for name in self._kernels]
                for file, code in zip(objects, self._kernels.values(), strict=True):
                    file.write_bytes(code)
                library = Path(folder) / "kernels.so"
                link_shared(str(library), list(map(str, objects)), ())
                self._running = self._linked_to(tvm.runtime.load_module(str(library)))
        return self._running

    def _linked_to(self, library: Any) -> Any:
        """Return the bytecode and constants of ``main`` with a library of its kernels."""
        external = dict(self._lowered.attrs or {}).get(MODULES, [])
        builder = relax.ExecBuilder()
        vm_build._vmcodegen(builder, self._lowered)
        return vm_build._ffi_api.VMLink(builder, self._target, library, external, {})


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


def _pipeline(target: Any) -> Any:
    from tvm.relax.backend.cuda import pipeline as cuda
    from tvm.s_tir import dlight

    @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator,unused-ignore]
    def lowered(module: Any, _: Any) -> Any:
        with target:
            passes = [
                # For the stand-in of a module without kernels; ours say that they are scheduled.
                dlight.ApplyDefaultSchedule(dlight.gpu.Fallback()),
                *cuda.dataflow_lower_passes(target),
                *cuda.finalize_passes(target),
            ]
            return tvm.transform.Sequential(passes)(module)

    return lowered
