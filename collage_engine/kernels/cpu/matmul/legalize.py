"""Legalises matrix products as computations that our rules write."""

from __future__ import annotations

from math import prod

from tvm import relax
from tvm.ir import Call, Expr

from collage_engine.kernels.cpu.convolution.problem import NO_KERNEL, ConvProblem
from collage_engine.kernels.cpu.matmul.problem import RuntimeMatmul
from collage_engine.kernels.registry import decide
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
from collage_engine.kernels.target import Cpu


def legalize(builder: relax.BlockBuilder, call: Call, cpu: Cpu) -> Expr | None:
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
