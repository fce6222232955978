"""Legalises operators as computations that our rules write, the others as TVM does."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Call, Expr, Op
from tvm.ir.prim import expr as prim

from collage_engine.kernels.cpu.convolution.problem import NO_KERNEL, ConvProblem, described
from collage_engine.kernels.cpu.operators import normalisation, quantization
from collage_engine.kernels.cpu.runtime_matmul import RuntimeMatmul
from collage_engine.kernels.relax_values import (
    ANCHOR,
    FLOATS,
    const,
    constant_of,
    dtype_of,
    narrowed,
    static_shape,
    widened,
)
from collage_engine.kernels.scheduler import decide
from collage_engine.kernels.target import Cpu


def legalize_convolution(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
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


def legalize_product(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
    """Returns the product as a computation that our rules know, or None.

    A constant right operand that is one matrix is packed; operands in half precision are
    multiplied in single precision.
    """
    left, right = call.args
    a, b, out = static_shape(left), static_shape(right), static_shape(call)
    if a is None or b is None or out is None or len(a) < 2 or len(b) < 2:
        return None
    dtype = dtype_of(call)
    if dtype not in FLOATS or not dtype_of(left) == dtype_of(right) == dtype:
        return None
    problem: ConvProblem | RuntimeMatmul
    array = constant_of(right)
    if array is not None and all(e == 1 for e in b[:-2]) and len(a) >= len(b):
        rows, (depth, columns) = prod(a[:-1]), b[-2:]
        problem = ConvProblem(True, (rows, depth), (rows, columns), (columns, depth), *NO_KERNEL)
        array = array.reshape(depth, columns).T
    else:
        array, problem = None, RuntimeMatmul(a, b, out)
    decision = decide(problem, cpu)
    if decision is None:
        return None
    if array is not None:
        right = const(decision.pack(cpu, array))
    return builder.call_te(
        lambda x, y: narrowed(decision.reference(widened(x), widened(y)), dtype),
        left,
        right,
        primfunc_name_hint="matmul",
        primfunc_attrs=ANCHOR,
    )


Legalize = Callable[[Any, Call], Expr]


def default(builder: relax.BlockBuilder, call: Call) -> Expr:
    """Legalises a call as TVM itself does."""
    return call.op.get_attr("FLegalize")(builder, call)


def _sign(builder: relax.BlockBuilder, call: Call, _: Cpu) -> Expr:
    """Legalise a sign: 1, -1, or the value itself, which is zero or NaN; TVM's own makes NaN 0."""

    def sign(x: te.Tensor) -> te.Tensor:
        zero, positive, negative = (tirx.const(k, x.dtype) for k in (0, 1, -1))

        def of(value: Expr) -> Expr:
            below = prim.Select(value < zero, negative, value)
            return prim.Select(value > zero, positive, below)

        return te.compute(x.shape, lambda *i: of(x(*i)), name="sign")

    return builder.call_te(sign, *call.args, primfunc_name_hint="sign")


def table(cpu: Cpu) -> dict[str, Legalize]:
    """Returns the legalisations by operator name, for ``relax.transform.LegalizeOps``.

    A call that ours does not take is legalised by TVM's own.
    """
    own: dict[str, Any] = {
        "relax.nn.conv1d": legalize_convolution,
        "relax.nn.conv2d": legalize_convolution,
        "relax.nn.conv3d": legalize_convolution,
        "relax.matmul": legalize_product,
        "relax.quantize": quantization.quantize,
        "relax.sign": _sign,
        "relax.nn.instance_norm": normalisation.legalize,
        "relax.nn.group_norm": normalisation.legalize,
    }

    def bind(function: Any) -> Legalize:
        def legalize(builder: relax.BlockBuilder, call: Call) -> Expr:
            result = function(builder, call, cpu)
            return default(builder, call) if result is None else result

        return legalize

    for name in own:
        Op.get(name)
    return {name: bind(function) for name, function in own.items()}
