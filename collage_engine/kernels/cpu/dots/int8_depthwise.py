"""Writes integer depthwise convolutions, channels in the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm.ir import Expr

from collage_engine.kernels.cpu.dots.dot_data import Data, DotShape, unsigned
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import tile
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    int64,
    load,
    loop,
    pieces,
    seq,
    split_index,
)


class Depthwise:
    """Each channel by itself: channels in the lanes, products in 16 bits, sums in 32."""

    def __init__(self, shape: DotShape, epilogue: Epilogue, context: Context) -> None:
        self.shape, self.epilogue, self.context = shape, epilogue, context
        self.data = Data(shape, context)

    def loops(self) -> Stmt:
        """Returns the loops, after those that make the data ready."""
        shape, cpu = self.shape, self.context.cpu
        lanes = cpu.lanes("int32")
        weight = self.context.views.flat(shape.weight)
        width = min(4, max(1, shape.out[-1]))
        share = self.context.share(shape.work * 16)
        spatial = (shape.batch, *shape.out[:-1])
        statements = [self.data.loops]

        def at(place: Sequence[Index], k: Sequence[Index]) -> list[Any]:
            return [
                p * s + int64(t) * d
                for p, s, t, d in zip(place, shape.strides, k, shape.dilation, strict=True)
            ]

        def run(
            n: Index, lead: Sequence[Index], column: Index, count: int, first: Index, size: int
        ) -> Stmt:
            def term(r: Index, lane: Index, t: Index) -> Expr:
                channel = int64(first) + lane
                k = split_index(t, shape.kernel)
                index = self.data.at(n, at((*lead, column + r), k), channel)
                x = unsigned(load(self.data.flat, index), self.data.flips)
                w = load(weight, int64(t) * shape.co + channel)
                # 255 · −128 fits 16 bits.
                return (x.astype("int16") * w.astype("int16")).astype("int32")

            return tile(
                count,
                [(0, size)],
                lambda step: loop(shape.taps, step),
                term,
                lambda r, lane, value: self.epilogue.store(
                    (n, *lead, column + r, int64(first) + lane), value
                ),
                dtype="int32",
            )

        def task(index: Index) -> Stmt:
            n, *lead = split_index(index, spatial)
            full = shape.co // lanes
            parts = []
            for number, f, w in spans(shape.out[-1], width):

                def columns(j: Index, w: int = w, f: int = f) -> Stmt:
                    column = int64(j) * w + f
                    rest = pieces(shape.co - full * lanes, lanes)
                    return seq(
                        loop(full, lambda v: run(n, lead, column, w, int64(v) * lanes, lanes))
                        if full
                        else None,
                        *(run(n, lead, column, w, full * lanes + s, e) for s, e in rest),
                    )

                parts.append(loop(number, columns))
            return seq(*parts)

        statements.append(share(prod(spatial), task))
        return seq(*statements)
