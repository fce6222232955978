"""Describes what kernels of narrow elements read: the data, with its rim where it is copied.

Of integers there are four 8-bit products a lane and instruction. With AVX-512 VNNI that is
``vpdpbusd`` (unsigned data by signed weights, without saturation); elsewhere the same sums lane by
lane. Signed data is read with its top bit flipped, as value + 128; what wrote the computation
has taken that off again.

Of bfloat16 there are two products a lane and instruction. AVX-512's ``vdpbf16ps`` adds the products
of two neighbouring channels to float32 sums, twice the work of a float32 multiply-add (see
``kernels/bfloat16_numbers.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.bfloat16_numbers import ADD_PRODUCTS, LANES
from collage_engine.kernels.cpu.convolution.prepared import pad_into
from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    int64,
    load,
    workspace,
)

QUAD = 4
"""8-bit channels that one instruction multiplies and adds in each lane (AVX512-VNNI, VPDPBUSD)."""
PAIR = 2
"""bfloat16 channels that one instruction multiplies and adds in each lane (VDPBF16PS)."""


class Data:
    """The data where the kernel reads it: as it lies, or copied with its rim."""

    def __init__(self, problem: DotProblem, context: Context, together: int = 1) -> None:
        inside = problem.ci // problem.groups
        uneven = inside % together and not problem.run
        self.problem = problem
        self.pitch = problem.ci
        # The last step of a run may reach beyond it, so there must be something.
        beyond = together if problem.run % together else 0
        self.copied = bool(problem.padded != problem.size or uneven or beyond)
        self.flat = context.views.flat(context.data)
        self.size = problem.padded
        self.loops: Stmt | None = None
        if not self.copied:
            return
        if uneven:
            self.pitch = -(-problem.ci // together) * together
            self.pitch += together if problem.groups > 1 else 0
        length = problem.batch * prod(self.size) * self.pitch + beyond
        self.flat = workspace((length,), problem.stored, "prepared")
        context.buffers.append(self.flat)

        def copied(source: Any, start: Index) -> Callable[[Index], Expr]:
            return lambda offset: unsigned(load(source, start + offset), problem.signed)

        def rim(_: Index) -> Expr:
            return tirx.const(problem.zero, problem.stored)

        self.loops = pad_into(problem, context, self.flat, self.pitch, copied, rim)

    def at(self, n: Index, position: Sequence[Index], channel: Index) -> Any:
        """Return the flat index of a channel at a position.

        It is a position of the padded image when there is a copy.
        """
        index: Index = int64(n)
        for p, e in zip(position, self.size, strict=True):
            index = index * e + p
        return index * self.pitch + channel

    @property
    def flips(self) -> bool:
        """Tells whether bytes are still signed where they are read."""
        return self.problem.signed and not self.copied


def unsigned(value: Expr, signed: bool) -> Expr:
    """Return a byte as the unsigned number it stands for: signed ones are moved up by 128."""
    if not signed:
        return value
    moved = tirx.BitwiseXor(value, tirx.const(-128, "int8"))
    return tirx.call_intrin("uint8", "tirx.reinterpret", moved)


class Quads:
    """The step that multiplies four neighbouring 8-bit channels and adds their products."""

    together = QUAD
    stored = "int8"
    sums = "int32"

    def __init__(self, context: Context) -> None:
        self.vnni, self.lanes = context.cpu.vnni, context.cpu.lanes("int32")

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Return four neighbouring channels of a position.

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
        """Return the sums with four products added in each lane."""
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


class Pairs:
    """The step that multiplies two neighbouring bfloat16 channels and adds their products."""

    together = PAIR
    stored = "uint16"
    sums = "float32"

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Return two neighbouring channels of a position, in every lane.

        The second may be missing.
        """
        if count:
            word = tirx.Cast("int32", load(data.flat, at))
        else:
            pair = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), PAIR)])
            word = tirx.call_intrin("int32", "tirx.reinterpret", pair)
        return tirx.Broadcast(word, LANES)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Return the sums with two products added in each lane."""
        words = tirx.call_intrin(f"int32x{LANES}", "tirx.reinterpret", weights)
        return tirx.call_pure_extern(f"float32x{LANES}", ADD_PRODUCTS, total, several, words)
