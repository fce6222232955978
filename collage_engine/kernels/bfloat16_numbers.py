"""Converts numbers to bfloat16, held as the upper halves of float32 ones in ``uint16``.

TVM has no type for the operands of AVX-512's instructions (its lowering turns bfloat16 into float32
everywhere), so these are functions in LLVM's language that a kernel brings along and that are
inlined.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx
from tvm.ir import Call, Expr
from tvm.ir.prim import expr as prim

from collage_engine.kernels.expressions import call_name, equal, walk

LANES = 16
"""Number of float32 sums that one AVX-512 instruction for bfloat16 (VDPBF16PS) works on."""
ADD_PRODUCTS = "collage_add_bfloat16_products"
"""Name of the LLVM function that ``PRODUCTS`` defines."""
PRODUCTS = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define weak_odr <16 x float> @{ADD_PRODUCTS}(<16 x float> %sums, <16 x i32> %a, <16 x i32> %b) #0 {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %x,
                                                           <32 x bfloat> %y)
  ret <16 x float> %r
}}
attributes #0 = {{ alwaysinline nounwind readnone }}
"""
"""LLVM code of a function that adds to each of 16 float32 sums the two products of its lane's pairs
of bfloat16 numbers, by the instruction VDPBF16PS."""
ROUND = "collage_round_to_bfloat16"
"""Name of the LLVM function that ``ROUNDING`` defines."""
ROUNDING = f"""
declare <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float>)
define weak_odr <16 x i16> @{ROUND}(<16 x float> %x) #0 {{
  %r = call <16 x bfloat> @llvm.x86.avx512bf16.cvtneps2bf16.512(<16 x float> %x)
  %b = bitcast <16 x bfloat> %r to <16 x i16>
  ret <16 x i16> %b
}}
attributes #0 = {{ alwaysinline nounwind readnone }}
"""
"""LLVM code of a function that rounds 16 float32 numbers to bfloat16 as ``upper_half`` does, by the
instruction VCVTNEPS2BF16."""
LARGEST = 0x7F800000
"""The bits of float32's infinity (IEEE 754). Larger bit patterns, without the sign, are NaN."""


def rounded(x: Any) -> Any:
    """Return a float32 tensor as bfloat16 numbers, to the nearest, half to even."""
    return te.compute(x.shape, lambda *i: upper_half(x(*i)), name="rounded")


def upper_half(value: Expr) -> Expr:
    """Return the nearest bfloat16 number of a float32 one, as ``uint16``; no number stays none."""
    bits = tirx.call_intrin("uint32", "tirx.reinterpret", value)

    def u32(number: int) -> Expr:
        return tirx.const(number, "uint32")

    half = bits >> u32(16)
    nearest = (bits + u32(0x7FFF) + (half & u32(1))) >> u32(16)
    # Written as TVM simplifies it, which ``of_upper_half`` recognises.
    none = tirx.LT(u32(LARGEST), bits & u32(0x7FFFFFFF))
    return tirx.Select(none, half | u32(0x40), nearest).astype("uint16")


def real(bits: Expr) -> Expr:
    """Return the float32 number whose upper half this is."""
    wide = bits.astype("uint32") << tirx.const(16, "uint32")
    return tirx.call_intrin("float32", "tirx.reinterpret", wide)


def widened(x: Any) -> Any:
    """Return a tensor of bfloat16 numbers in float32."""
    return te.compute(x.shape, lambda *i: real(x(*i)), name="widened")


def of_upper_half(value: Expr) -> Expr | None:
    """Return what ``upper_half`` makes this value of; None for other values."""
    if isinstance(value, prim.Let):  # what is rounded is read several times, so it has a name
        return value.value if value.var.same_as(of_upper_half(value.body)) else None
    for node in walk(value):
        if isinstance(node, Call) and call_name(node) == "reinterpret":
            inner = node.args[0]
            return inner if equal(upper_half(inner), value) else None
    return None
