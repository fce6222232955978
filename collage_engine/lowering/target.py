"""What TVM compiles for on this machine, and how many threads its pool uses."""

from __future__ import annotations

import os
from typing import Any

_threads_in_use = 0


def build_target(architecture: str = "") -> Any:
    """TVM's target for this machine's processor, or for a CUDA architecture (sm_90a)."""
    from tvm.target import Target

    from collage_engine.machine.device import cpu_target

    if architecture:
        from collage_engine.lowering.cubin import compile_for_tvm
        from collage_engine.machine.cuda import cuda_target

        compile_for_tvm(architecture)
        return cuda_target(architecture)
    return Target(cpu_target())


def device_of(name: str) -> Any:
    """TVM's device of a name: cpu, cuda:0."""
    import tvm

    kind, _, number = name.partition(":")
    return tvm.runtime.device(kind, int(number or 0))


def use_threads(threads: int) -> None:
    """Let TVM's thread pool in this process use this many threads.

    ``TVM_NUM_THREADS``, read when the pool starts, bounds it; this narrows a larger pool. TVM
    would also bind the caller to one processor, for good and for every other library in the
    process: it is told not to.
    """
    global _threads_in_use
    if threads > 0 and threads != _threads_in_use:
        import tvm_ffi

        os.environ.setdefault("TVM_BIND_THREADS", "0")
        tvm_ffi.get_global_func("runtime.config_threadpool")(1, threads)
        _threads_in_use = threads
