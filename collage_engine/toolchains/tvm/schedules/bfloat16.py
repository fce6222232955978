"""Convolutions and products of bfloat16 numbers: two products a lane and instruction.

AVX-512's ``vdpbf16ps`` adds the products of two neighbouring channels to float32 sums, twice the
work of a float32 multiply-add. TVM has no type for its operands (its lowering turns bfloat16 into
float32 everywhere), so numbers are held as the upper halves of float32 ones, ``uint16``, and the
instruction is a function of LLVM's language that the kernel brings along and that is inlined.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.ir.expr import StringImm

from collage_engine.toolchains.tvm.emit import Stmt, int64, load
from collage_engine.toolchains.tvm.expressions import NotUnderstood
from collage_engine.toolchains.tvm.program import Program, Stage
from collage_engine.toolchains.tvm.schedules.anchor import surround
from collage_engine.toolchains.tvm.schedules.dot_data import PAIR, Data, Geometry
from collage_engine.toolchains.tvm.schedules.dot_tiles import DotTiles
from collage_engine.toolchains.tvm.schedules.pointwise import Context

LANES = 16
NAME = "collage_add_bfloat16_products"
FUNCTION = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define weak_odr <16 x float> @{NAME}(<16 x float> %sums, <16 x i32> %a, <16 x i32> %b) #0 {{
  %x = bitcast <16 x i32> %a to <32 x bfloat>
  %y = bitcast <16 x i32> %b to <32 x bfloat>
  %r = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %x, <32 x bfloat> %y)
  ret <16 x float> %r
}}
attributes #0 = {{ alwaysinline nounwind readnone }}
"""  # noqa: E501


def write(program: Program, anchor: Stage, context: Context) -> Stmt:
    if not context.cpu.bfloat16:
        raise NotUnderstood("no instruction for bfloat16 products")
    geometry = Geometry.of(anchor)
    body = surround(
        program, anchor, context, lambda e: DotTiles(geometry, e, context, Pairs()).loops()
    )
    return tirx.AttrStmt(tirx.const(0, "int32"), "pragma_import_llvm", StringImm(FUNCTION), body)


class Pairs:
    """Two bfloat16 channels at once."""

    together = PAIR
    stored = "uint16"
    sums = "float32"

    def several(self, data: Data, at: Any, count: int = 0) -> Expr:
        """Two neighbouring channels of a position, in every lane; the second may be missing."""
        if count:
            word = tirx.Cast("int32", load(data.flat, at))
        else:
            pair = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), PAIR)])
            word = tirx.call_intrin("int32", "tirx.reinterpret", pair)
        return tirx.Broadcast(word, LANES)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """The sums with two products added in each lane."""
        words = tirx.call_intrin(f"int32x{LANES}", "tirx.reinterpret", weights)
        return tirx.call_pure_extern(f"float32x{LANES}", NAME, total, several, words)
