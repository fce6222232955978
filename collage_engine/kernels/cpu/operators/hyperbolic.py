"""Computes sinh and cosh by exponentials, as TVM has operators but no code for them."""

from __future__ import annotations

from collections.abc import Callable

from tvm import relax, te, tirx, topi
from tvm.ir import Call, Expr

from collage_engine.kernels.target import Cpu

SERIES = (6, 120, 5040, 362880)
"""3!, 5!, 7!, 9!: divisors of the series of sinh, which is off by less than 2e-13 up to 0.3."""


def sinh(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr:
    """Return (eˣ − e⁻ˣ) / 2, and its series near zero, where the two would cancel each other."""

    def at(v: Expr, const: Callable[[float], Expr]) -> Expr:
        series = const(0)
        for divisor in reversed(SERIES):
            series = (series + const(1 / divisor)) * (v * v)
        rising, falling = _halves(v, const)
        return tirx.if_then_else(
            tirx.abs(v) < const(0.3), v * (const(1) + series), rising - falling
        )

    return _elementwise(builder, call, "sinh", at)


def cosh(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr:
    """Return (eˣ + e⁻ˣ) / 2."""

    def at(v: Expr, const: Callable[[float], Expr]) -> Expr:
        rising, falling = _halves(v, const)
        return rising + falling

    return _elementwise(builder, call, "cosh", at)


def _halves(v: Expr, const: Callable[[float], Expr]) -> tuple[Expr, Expr]:
    """Return eˣ/2 and e⁻ˣ/2 by the exponential of x/2: eˣ itself overflows before its half does."""
    half = const(0.5)
    root = tirx.exp(half * v)
    return half * root * root, half / root / root


def _elementwise(
    builder: relax.BlockBuilder,
    call: Call,
    name: str,
    at: Callable[[Expr, Callable[[float], Expr]], Expr],
) -> Expr:
    def compute(x: te.Tensor) -> te.Tensor:
        def const(value: float) -> Expr:
            return tirx.const(value, x.dtype)

        return te.compute(x.shape, lambda *i: at(x(*i), const), name, tag=topi.tag.ELEMWISE)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name)
