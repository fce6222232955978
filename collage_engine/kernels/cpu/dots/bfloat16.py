"""Writes convolutions and products of bfloat16: two products a lane and instruction.

AVX-512's ``vdpbf16ps`` adds the products of two neighbouring channels to float32 sums, twice the
work of a float32 multiply-add (see ``kernels/bfloat16_numbers.py``).
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.bfloat16_numbers import ADD_PRODUCTS, LANES
from collage_engine.kernels.cpu.dots.dot_data import PAIR, Data
from collage_engine.kernels.tir_builder import Index, int64, load


class Pairs:
    """The step that multiplies two neighbouring bfloat16 channels and adds their products."""

    together = PAIR
    stored = "uint16"
    sums = "float32"

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Returns two neighbouring channels of a position, in every lane.

        The second may be missing.
        """
        if count:
            word = tirx.Cast("int32", load(data.flat, at))
        else:
            pair = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), PAIR)])
            word = tirx.call_intrin("int32", "tirx.reinterpret", pair)
        return tirx.Broadcast(word, LANES)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Returns the sums with two products added in each lane."""
        words = tirx.call_intrin(f"int32x{LANES}", "tirx.reinterpret", weights)
        return tirx.call_pure_extern(f"float32x{LANES}", ADD_PRODUCTS, total, several, words)
