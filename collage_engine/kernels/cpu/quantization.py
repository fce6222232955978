"""Computes and legalises the quantisation of elements.

The value that leaves a kernel is made of its sums in float32, in registers, and rounded half to
even.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from collage_engine.kernels.relax_values import constant_of
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import f32
from collage_engine.partition.quantized import SMALL
from collage_engine.partition.quantized_numbers import Scaling

# What is done with an element ------------------------------------------------------------------


def real(value: Expr, scaling: Scaling) -> Expr:
    """Return an 8-bit element as the number it stands for."""
    scale, zero = scaling.single("an operand")
    wide = value.astype("int32")
    return (wide - zero if zero else wide).astype("float32") * f32(scale)


def rounded(value: Expr, scaling: Scaling, scale: bool = True) -> Expr:
    """Return a number as an 8-bit element, half to even, saturated.

    ``scale`` False: divided already.
    """
    step, zero = scaling.single("the result")
    steps = value * f32(1.0 / step) if scale else value
    low, high = f32(scaling.lowest - zero), f32(scaling.highest - zero)
    return (_whole(tirx.max(tirx.min(steps, high), low)) + zero).astype(scaling.dtype)


HALF_EVEN = 1.5 * 2**23
"""A float32 beside which a small number's fraction has no place: their sum is rounded half to
even, and its lowest bits are the whole number (TVM vectorises no call that rounds)."""
HALF_EVEN_BITS = int(np.float32(HALF_EVEN).view(np.int32))


def _whole(value: Expr) -> Expr:
    """Return a float32 between −2²² and 2²² rounded half to even, as int32."""
    bits = tirx.call_intrin("int32", "tirx.reinterpret", value + f32(HALF_EVEN))
    return bits - HALF_EVEN_BITS


def quantized(value: Expr, scale: Expr, zero: Expr, dtype: str) -> Expr:
    """Return an element as ONNX's QuantizeLinear quantises it: divided, then rounded."""
    low, high = tirx.min_value(dtype), tirx.max_value(dtype)
    offset = zero.astype("float32")
    kept = tirx.max(
        tirx.min(value / scale, f32(int(high.value)) - offset), f32(int(low.value)) - offset
    )
    return (_whole(kept) + zero.astype("int32")).astype(dtype)


def quantize(builder: relax.BlockBuilder, call: Any, _cpu: Cpu) -> Expr | None:
    """Legalises a QuantizeLinear by itself, rounded as ONNX says.

    Returns:
        The quantised tensor; None for types of other than 8 bits.
    """
    if str(call.attrs.out_dtype) not in SMALL:
        return None
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)
    # Numbers of the whole tensor are written into the code.
    arrays = [constant_of(a) for a in call.args[1:3]]
    arguments = [
        tirx.const(a.reshape(-1)[0].item(), str(a.dtype)) if a is not None and a.size == 1 else e
        for a, e in zip(arrays, call.args[1:3], strict=True)
    ]

    def body(x: te.Tensor, scale: Any, zero: Any) -> Any:
        def of(parameter: Any, i: Any) -> Any:
            if not isinstance(parameter, te.Tensor):
                return parameter
            if all(int(e) == 1 for e in parameter.shape):
                return parameter(*([0] * len(parameter.shape)))
            return parameter(i[axis])

        return te.compute(
            x.shape,
            lambda *i: quantized(x(*i), of(scale, i), of(zero, i), dtype),
            "quantized",
        )

    return builder.call_te(body, call.args[0], *arguments, primfunc_name_hint="quantize")
