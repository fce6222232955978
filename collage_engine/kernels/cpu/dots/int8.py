"""Writes integer convolutions and products: four 8-bit products a lane and instruction.

With AVX-512 VNNI that is ``vpdpbusd`` (unsigned data by signed weights, without saturation);
elsewhere the same sums lane by lane. Signed data is read with its top bit flipped, as value + 128;
whoever wrote the computation has taken that off again.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.dots.dot_data import QUAD, Data
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.tir_builder import Index, int64


class Quads:
    """The step that multiplies four neighbouring 8-bit channels and adds their products."""

    together = QUAD
    stored = "int8"
    sums = "int32"

    def __init__(self, context: Context) -> None:
        self.vnni, self.lanes = context.cpu.vnni, context.cpu.lanes("int32")

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Returns four neighbouring channels of a position.

        With VNNI they stand in every lane as 8-bit numbers; without it they are one vector of four
        int32 numbers. Signed data is made unsigned by adding 128.
        """
        assert not count  # data made ready has zeros there
        small = "int8" if data.flips else "uint8"
        quad = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), QUAD)])
        if not self.vnni:
            wide = tirx.Cast(f"int32x{QUAD}", quad)
            if small == "int8":
                wide = wide + tirx.Broadcast(tirx.const(128, "int32"), QUAD)
            return wide
        word = tirx.call_intrin("int32", "tirx.reinterpret", quad)
        if data.flips:
            word = tirx.BitwiseXor(word, tirx.const(-0x7F7F7F80, "int32"))
        lanes = tirx.Broadcast(word, self.lanes)
        return tirx.call_intrin(f"int8x{self.lanes * QUAD}", "tirx.reinterpret", lanes)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Returns the sums with four products added in each lane."""
        wide = f"int32x{self.lanes}"
        if not self.vnni:
            for j in range(QUAD):
                every = [QUAD * lane + j for lane in range(self.lanes)]
                picked = tirx.Cast(wide, tirx.Shuffle([weights], every))
                x = tirx.Shuffle([several], [j])
                total = total + tirx.Broadcast(x, self.lanes) * picked
            return total
        return tirx.call_llvm_pure_intrin(
            wide, "llvm.x86.avx512.vpdpbusd.512", total, several, weights
        )
