"""sinh and cosh, which TVM has operators for and no code: by exponentials."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx, topi
from tvm.ir import Call, Expr

from collage_engine.kernels.target import Cpu


def sinh(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr:
    """(eˣ − e⁻ˣ) / 2, and its series near zero, where the two would cancel each other."""

    def at(v: Any, const: Any) -> Any:
        series = v * (const(1) + v * v * (const(1 / 6) + v * v * const(1 / 120)))
        whole = const(0.5) * (tirx.exp(v) - tirx.exp(-v))
        return tirx.if_then_else(tirx.abs(v) < const(0.3), series, whole)

    return _elementwise(builder, call, "sinh", at)


def cosh(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr:
    """Return (eˣ + e⁻ˣ) / 2."""
    return _elementwise(
        builder, call, "cosh", lambda v, const: const(0.5) * (tirx.exp(v) + tirx.exp(-v))
    )


def _elementwise(builder: relax.BlockBuilder, call: Call, name: str, at: Any) -> Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        def const(value: float) -> Any:
            return tirx.const(value, x.dtype)

        return te.compute(x.shape, lambda *i: at(x(*i), const), name, tag=topi.tag.ELEMWISE)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)
