"""Legalises convolutions with constant weights as computations that our rules write."""

from __future__ import annotations

from tvm import relax
from tvm.ir import Call, Expr

from collage_engine.kernels.cpu.convolution.problem import described
from collage_engine.kernels.registry import decide
from collage_engine.kernels.relax_values import ANCHOR, const, dtype_of, narrowed, widened
from collage_engine.kernels.target import Cpu


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Returns the convolution with its weight packed, or None when it is not one of ours."""
    found = described(call)
    decision = None if found is None else decide(found[0], cpu)
    if found is None or decision is None:
        return None
    problem, weight = found
    dtype = dtype_of(call)
    return builder.call_te(
        lambda x, w: narrowed(decision.reference(widened(x), w), dtype),
        call.args[0],
        const(decision.pack(cpu, weight)),
        primfunc_name_hint=f"conv{problem.dims}d",
        primfunc_attrs=ANCHOR,
    )
