"""TVM's virtual machine, which runs every placement: its target and its threads."""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from collage_engine.records.toolchain import SHORT_SPIN_TURNS
from collage_engine.support.errors import ToolchainError

_threads_in_use = 0
"""Threads that TVM's pool was last told to use; 0: it was told nothing yet."""


def build_target(architecture: str = "") -> Any:
    """Return the target for which TVM compiles.

    Args:
        architecture: A CUDA architecture such as ``sm_90a``; empty: this machine's processor.
    """
    from tvm.target import Target

    from collage_engine.machine.device import cpu_target

    if architecture:
        from collage_engine.lowering.cubin import compile_for_tvm
        from collage_engine.machine.cuda import cuda_target

        load_cuda()
        compile_for_tvm(architecture)
        return cuda_target(architecture)
    return Target(cpu_target())


def device_of(name: str) -> Any:
    """Return TVM's device of a name such as ``cpu`` or ``cuda:0``."""
    import tvm

    kind, _, number = name.partition(":")
    if kind == "cuda":
        load_cuda()
    return tvm.runtime.device(kind, int(number or 0))


@cache
def load_cuda() -> None:
    """Load TVM's library for NVIDIA devices, unless TVM has loaded it.

    With its runtime alone TVM leaves the library out. It also leaves it out, without a word, where
    the loader does not find CUDA's runtime, which a wheel puts into a folder of its own.
    """
    import tvm_ffi
    from tvm import base

    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    from collage_engine.toolchains.runtime.cuda import CUDART, cuda_runtime

    try:
        ctypes.CDLL(CUDART, ctypes.RTLD_GLOBAL)
    except OSError:
        with contextlib.suppress(OSError, ToolchainError):
            ctypes.CDLL(str(cuda_runtime()[1]), ctypes.RTLD_GLOBAL)
    library = Path(base._LOADED_LIBS["tvm_runtime"]._name).resolve().with_name(TVM_CUDA)
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(library))


TVM_CUDA = "libtvm_runtime_cuda.so"
"""TVM's library for NVIDIA devices, beside its runtime."""


def use_threads(threads: int) -> None:
    """Let TVM's thread pool in this process use this many threads.

    ``TVM_NUM_THREADS``, which is read when the pool starts, bounds it; this narrows a larger pool.
    TVM would also bind the caller to one processor, for good and for every other library in the
    process, unless ``TVM_BIND_THREADS`` is 0, as it is set here.
    """
    global _threads_in_use
    if threads > 0 and threads != _threads_in_use:
        import tvm_ffi

        os.environ.setdefault("TVM_BIND_THREADS", "0")
        tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
        _threads_in_use = threads


VIRTUAL_MACHINE = "virtual machine"
"""To whom a library is accounted that the virtual machine itself needs."""


def virtual_machine_environment(threads: int, spin: bool) -> dict[str, str]:
    """Return the environment variables that TVM's runtime reads when its thread pool starts.

    Args:
        threads: How many threads the pool has; they are not bound to processors.
        spin: Whether idle ones may spin as long as they do by themselves.
    """
    chosen = {"TVM_NUM_THREADS": str(threads), "TVM_BIND_THREADS": "0"}
    if not spin:
        chosen["TVM_THREAD_POOL_SPIN_COUNT"] = SHORT_SPIN_TURNS
    return chosen
