"""Writes the register tile that the kernels of all anchors share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    int64,
    load,
    local,
    pieces,
    seq,
    store,
    unrolled,
    vectorized,
)


def tile(
    height: int,
    vectors: Sequence[tuple[int, int]],
    reduce: Callable[[Callable[..., Stmt]], Stmt],
    term: Callable[..., Expr],
    finish: Callable[[Index, Index, Expr], Stmt] | None = None,
    columns: Sequence[tuple[int, int]] | None = None,
    start: Callable[[Index, Index], Expr] | None = None,
    dtype: str = "float32",
    finish_vector: Callable[..., Stmt] | None = None,
) -> Stmt:
    """Returns a register tile: ``acc[r, c] = Σ term(r, c, *k)``, then ``finish``.

    Args:
        height: Rows of the tile.
        vectors: (first column, width) of each vector.
        reduce: ``reduce(body)`` writes the reduction's loops around ``body(*k)``.
        term: ``term(r, c, *k)`` is one summand; it is called inside a vector loop over the columns.
        finish: ``finish(r, column, acc)`` stores an element; it is called inside a vector loop over
            ``columns``.
        columns: (first, width) of the columns that exist; all by default.
        start: ``start(r, column)`` is what the sum starts from; zero by default.
        dtype: The element type of the sums.
        finish_vector: ``finish_vector(r, first, width, acc)`` stores ``width`` elements instead of
            ``finish``; ``acc(x)`` is the sum of a lane.
    """
    width = sum(w for _, w in vectors)
    acc = local((height * width,), dtype)
    starts = []
    slot = 0
    for _, w in vectors:
        starts.append(slot)
        slot += w

    def each(body: Callable[[Index, int, int, int, Index], Stmt]) -> Stmt:
        return unrolled(
            height,
            lambda r: seq(
                *(
                    vectorized(w, lambda x, c=c, s=s, w=w: body(r, c, s, w, x))
                    for (c, w), s in zip(vectors, starts, strict=True)
                )
            ),
        )

    def place(r: Index, s: int, x: Index) -> Any:
        return int64(r) * width + (int64(s) + x)

    zero = tirx.const(0, dtype)

    def step(*k: Index) -> Stmt:
        return each(
            lambda r, c, s, w, x: store(
                acc,
                load(acc, place(r, s, x)) + term(r, int64(c) + x, *k),
                place(r, s, x),
            )
        )

    def out() -> Stmt:
        kept = vectors if columns is None else columns
        slots: dict[int, int] = {}
        for (c, w), s in zip(vectors, starts, strict=True):
            for i in range(w):
                slots[c + i] = s + i

        def row(r: Index) -> Stmt:
            def vector(c: int, w: int) -> Stmt:
                def lane(x: Index) -> Expr:
                    return load(acc, int64(r) * width + (int64(slots[c]) + x))

                if finish is None:
                    assert finish_vector is not None
                    return finish_vector(r, c, w, lane)
                return vectorized(w, lambda x: finish(r, int64(c) + x, lane(x)))

            return seq(*(vector(c, w) for c, w in kept))

        return unrolled(height, row)

    return seq(
        allocate(acc),
        each(
            lambda r, c, s, w, x: store(
                acc, zero if start is None else start(r, int64(c) + x), place(r, s, x)
            )
        ),
        reduce(step),
        out(),
    )


def columns_below(vectors: Sequence[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
    """Returns the parts of these vectors below a column, as vectors of powers of two."""
    result = []
    for start, width in vectors:
        if start + width <= limit:
            result.append((start, width))
        elif start < limit:
            result += [(start + s, w) for s, w in pieces(limit - start, width)]
    return result
