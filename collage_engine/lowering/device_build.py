"""Builds an executable for an NVIDIA device from a module of scheduled kernels.

TVM's own pipeline for CUDA begins by legalising, fusing and scheduling. Here all of that is done;
fused once more, two scheduled kernels of neighbouring partitions would become one function with
two launches and a buffer between them that it allocates in every call, which no CUDA graph bears.
Only TVM's passes from there on are run.
"""

from __future__ import annotations

from typing import Any

from collage_engine.lowering.target import build_target


def build_module(module: Any, architecture: str) -> Any:
    """Build a Relax module into an executable of TVM's virtual machine.

    Args:
        module: The module.
        architecture: The CUDA architecture; empty: this machine's processor.
    """
    from tvm import relax

    from collage_engine.kernels.stack_buffers import PIPELINE

    target = build_target(architecture)
    if not architecture:
        return relax.build(module, target, tir_pipeline=PIPELINE)
    return relax.build(module, target, relax_pipeline=_pipeline(target))


def _pipeline(target: Any) -> Any:
    import tvm
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
