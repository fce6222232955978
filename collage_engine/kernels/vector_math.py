"""Writes functions so that LLVM can vectorise them and NaN stays NaN.

LLVM has no vector versions of exp, log, tanh, erf, sigmoid and powers without a vector library, so
it calls libm once per lane. They are written with selects and arithmetic only; float32 within a few
units in the last place (constants: Cephes for exp and log; Eigen's rational approximations for tanh
and erf); half precision is computed in float32. The larger and the smaller of two numbers are
selects, too, since TVM's own give the second one where the first is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Call, Expr, Op, register_op_attr
from tvm.ir.prim import expr as prim
from tvm_ffi import get_global_func

from collage_engine.kernels.expressions import call_name, rewrite
from collage_engine.kernels.tir_builder import f32

CALL_IS_PURE = 1
"""TVM's ``CallEffectKind::kPure``: what an operator without side effects is marked with."""
EXP = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)
"""Coefficients of the polynomial of expf in Cephes (Moshier), the highest power first."""
LOG = (
    7.0376836292e-2,
    -1.1514610310e-1,
    1.1676998740e-1,
    -1.2420140846e-1,
    1.4249322787e-1,
    -1.6668057665e-1,
    2.0000714765e-1,
    -2.4999993993e-1,
    3.3333331174e-1,
)
"""Coefficients of the polynomial of logf in Cephes (Moshier), the highest power first."""
TANH = (
    -2.76076847742355e-16,
    2.00018790482477e-13,
    -8.60467152213735e-11,
    5.12229709037114e-08,
    1.48572235717979e-05,
    6.37261928875436e-04,
    4.89352455891786e-03,
)
"""Numerator of the rational approximation of tanh in float32 (Eigen), the highest power first."""
TANH_BELOW = (
    1.19825839466702e-06,
    1.18534705686654e-04,
    2.26843463243900e-03,
    4.89352518554385e-03,
)
"""Denominator of the rational approximation of tanh in float32 (Eigen), the highest power first."""
ERF = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
"""Numerator of the rational approximation of erf in float32 (Eigen), the highest power first."""
ERF_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""Denominator of the rational approximation of erf in float32 (Eigen), the highest power first."""


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Names a value so that the polynomial does not repeat it."""
    if isinstance(value, (tirx.Var, prim.FloatImm)):
        return body(value)
    var = tirx.Var("t", str(value.ty.dtype) if hasattr(value.ty, "dtype") else "float32")
    return prim.Let(var, value, body(var))


def _horner(x: Expr, coefficients: Sequence[float]) -> Expr:
    result: Expr = f32(coefficients[0])
    for c in coefficients[1:]:
        result = result * x + f32(c)
    return result


def _clamp(x: Expr, low: float, high: float) -> Expr:
    """Limits a value to an interval, by comparisons ordered so that NaN passes through."""
    x = prim.Select(x < f32(low), f32(low), x)
    return prim.Select(x > f32(high), f32(high), x)


def exp(x: Expr) -> Expr:
    """Return eˣ, by a polynomial over a reduced range."""

    def reduced(x: Expr) -> Expr:
        clamped = _clamp(x, -87.3365, 88.7228)
        return _let(clamped, lambda c: _let(whole(c), lambda n: scaled(x, c, n)))

    def whole(c: Expr) -> Expr:
        n = tirx.floor(c * f32(1.44269504088896341) + f32(0.5))
        return prim.Select(n > f32(127.0), f32(127.0), n)

    def scaled(x: Expr, c: Expr, n: Expr) -> Expr:
        rest = c - n * f32(0.693359375) - n * f32(-2.12194440e-4)
        power = tirx.reinterpret(
            "float32", (tirx.Cast("int32", n) + tirx.const(127, "int32")) << tirx.const(23, "int32")
        )
        value = _let(rest, lambda r: (_horner(r, EXP) * (r * r) + r + f32(1.0)) * power)
        value = prim.Select(x < f32(-87.3365), f32(0.0), value)
        return prim.Select(x > f32(88.7228), f32(float("inf")), value)

    return _let(x, reduced)


def log(x: Expr) -> Expr:
    """Return the natural logarithm, by a polynomial over a reduced range."""

    def of(x: Expr) -> Expr:
        bits = tirx.reinterpret("int32", x)
        exponent = tirx.Cast(
            "float32", (bits >> tirx.const(23, "int32")) - tirx.const(126, "int32")
        )
        mantissa = tirx.reinterpret(
            "float32",
            (bits & tirx.const(0x007FFFFF, "int32")) | tirx.const(0x3F000000, "int32"),
        )
        return _let(mantissa, lambda m: _let(exponent, lambda e: series(x, m, e)))

    def series(x: Expr, m: Expr, e: Expr) -> Expr:
        small = m < f32(0.707106781186547524)
        shifted = prim.Select(small, m + m - f32(1.0), m - f32(1.0))
        power = prim.Select(small, e - f32(1.0), e)
        return _let(shifted, lambda y: _let(power, lambda k: total(x, y, k)))

    def total(x: Expr, y: Expr, k: Expr) -> Expr:
        square = y * y
        value = _horner(y, LOG) * y * square + k * f32(-2.12194440e-4) - f32(0.5) * square
        value = y + value + k * f32(0.693359375)
        value = prim.Select(x < f32(float("inf")), value, x)
        # Subnormal arguments count as zero.
        value = prim.Select(x < f32(1.17549435e-38), f32(float("-inf")), value)
        return prim.Select(x < f32(0.0), f32(float("nan")), value)

    return _let(x, of)


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent, by a quotient of polynomials."""
    return _let(
        _clamp(x, -7.90531110763549805, 7.90531110763549805),
        lambda c: _let(c * c, lambda s: c * _horner(s, TANH) / _horner(s, TANH_BELOW)),
    )


def erf(x: Expr) -> Expr:
    """Return the error function, by a quotient of polynomials."""

    def value(c: Expr) -> Expr:
        return _let(c * c, lambda s: c * _horner(s, ERF) / _horner(s, ERF_BELOW))

    return _let(_clamp(x, -4.0, 4.0), value)


def sigmoid(x: Expr) -> Expr:
    """Return the sigmoid through tanh, without an exponential; absolute error below 2e-7."""
    return f32(0.5) * tanh(f32(0.5) * x) + f32(0.5)


def power(base: Expr, exponent: Expr) -> Expr | None:
    """Return a power by a constant exponent that is finite; None for other exponents."""
    if not isinstance(exponent, prim.FloatImm):
        return None
    e = float(exponent.value)
    if not math.isfinite(e):
        return None
    if e == 0.5:
        return tirx.sqrt(base)
    if e == int(e) and 1 <= e <= 4:
        return _let(base, lambda b: {1: b, 2: b * b, 3: b * b * b, 4: (b * b) * (b * b)}[int(e)])
    if e == int(e):
        return None
    # A negative base has no real power then: log gives the NaN.
    return exp(log(base) * f32(e))


UNARY: dict[str, Callable[[Expr], Expr]] = {
    "exp": exp,
    "log": log,
    "tanh": tanh,
    "erf": erf,
    "sigmoid": sigmoid,
}


ORDERED = {prim.Max: "tirx.collage_larger", prim.Min: "tirx.collage_smaller"}
"""Operators that give the larger or the smaller of two values, and the second one where one is NaN,
by the expressions of TVM's that do so as long as no pass changes the order of the two."""


def _register() -> None:
    """Make the operators of ``ORDERED`` known to TVM, which lowers them behind its other passes."""
    for kind, name in ORDERED.items():
        get_global_func("ir.RegisterOp")(name, "is not changed by TVM's simplifier")
        for key, value in (("TCallEffectKind", CALL_IS_PURE), ("TVectorizable", True)):
            register_op_attr(name, key, value)
        tirx.register_intrin_lowering(name, "llvm", f=lambda call, kind=kind: kind(*call.args))


def extreme(kind: type[prim.Max | prim.Min], a: Expr, b: Expr) -> Expr:
    """Return the larger or the smaller of two values; NaN where one of them is NaN.

    LLVM makes of TVM's ``Max(a, b)`` ``a > b ? a : b``, which is one instruction of x86 and gives
    ``b`` where one is NaN. With a constant as ``a`` that is all. Otherwise it is done in both
    orders, one of which gives NaN; the bits of both together are those of a NaN then, and else of
    the one number.

    Args:
        kind: ``prim.Max`` or ``prim.Min``.
        a: A value.
        b: Another one of its type.
    """
    dtype = _dtype(a)
    if not dtype.startswith("float"):
        return kind(a, b)

    def ordered(a: Expr, b: Expr) -> Expr:
        return Call(Op.get(ORDERED[kind]), [a, b], ret_ty=a.ty)

    for first, second in ((a, b), (b, a)):
        if isinstance(first, prim.FloatImm) and not math.isnan(first.value):
            return ordered(first, second)

    def both(a: Expr, b: Expr) -> Expr:
        bits = dtype.replace("float", "int")
        one, other = (tirx.reinterpret(bits, each) for each in (ordered(a, b), ordered(b, a)))
        return tirx.reinterpret(dtype, one | other)

    return _let(a, lambda a: _let(b, lambda b: both(a, b)))


def _dtype(e: Expr) -> str:
    return str(e.ty.dtype)


def vector_functions(value: Expr) -> Expr:
    """Return the expression with these functions written out, in the types that they are for.

    Extremes are written out in all types of floating-point numbers, the others in float32 and
    float16.
    """

    def replace(node: Expr) -> Expr | None:
        if isinstance(node, (prim.Max, prim.Min)):
            return extreme(type(node), rewrite(node.a, replace), rewrite(node.b, replace))
        if not isinstance(node, Call):
            return None
        name = call_name(node)
        if name not in UNARY and name != "pow":
            return None
        dtype = _dtype(node)
        if dtype not in ("float32", "float16"):
            return None
        arguments = [rewrite(a, replace) for a in node.args]
        if dtype == "float16":
            arguments = [tirx.Cast("float32", a) for a in arguments]
        if name == "pow":
            written = power(arguments[0], arguments[1])
            if written is None:
                return None
        else:
            written = UNARY[name](arguments[0])
        return tirx.Cast("float16", written) if dtype == "float16" else written

    return rewrite(value, replace)


_register()
