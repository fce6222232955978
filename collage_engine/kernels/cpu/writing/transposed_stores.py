"""Stores results with channels in the lanes to channels-first images, by transposed squares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from collage_engine.kernels.cpu.writing.register_transpose import (
    transposed_tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    for_range,
    int64,
    load,
    local,
    loop,
    seq,
    vectorized,
)


def give_squares(
    sums: Any,
    block: int,
    lanes: int,
    total: Any,
    kept: Sequence[tuple[int, int]],
    give: Callable[[Index, Index, Index], Stmt],
) -> Stmt:
    """Stores ``total`` positions of a buffer [positions, block] with positions in the lanes.

    The last square overlaps the one before, so there must be as many positions as lanes.

    Args:
        sums: The buffer [positions, block].
        block: Channels of the buffer.
        lanes: Lanes of a vector, which is also the side of a square.
        total: Positions that are stored, at least ``lanes``.
        kept: (first, width) of the runs of channels that exist.
        give: ``give(channel, position, value)`` stores an element; it is called inside a vector
            loop over positions.
    """

    def square(i: Index) -> Stmt:
        start = tirx.min(i * lanes, total - lanes)

        def part(c: Index, w: int) -> Stmt:
            held = local((lanes * lanes,), name="square")

            def channel(j: Index) -> Stmt:
                return vectorized(
                    lanes, lambda x: give(c + j, start + x, load(held, int64(j) * lanes + x))
                )

            return seq(
                allocate(held),
                transposed_tile(
                    lanes,
                    lambda r: vector_load(sums, (start + r) * block + c, lanes),
                    lambda j, v: vector_store(held, v, j * lanes, lanes),
                    columns=w,
                ),
                loop(w, channel),
            )

        if all(w == lanes for _, w in kept):
            return loop(len(kept), lambda v: part(int64(v) * lanes, lanes))
        merged: dict[int, int] = {}
        for c, w in kept:
            merged[c // lanes] = merged.get(c // lanes, 0) + w
        return seq(*(part(v * lanes, w) for v, w in merged.items()))

    return for_range((total + (lanes - 1)) // lanes, square)
