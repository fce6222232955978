"""Writes register tiles that the kernels of all anchors share, and transposes in registers.

Weaving rows i and i + n/2 together element by element, for all i, is one perfect shuffle of the
whole n × n block; log2(n) of them transpose it (Stone, "Parallel processing with the perfect
shuffle", 1971). A weave is one LLVM intrinsic: far fewer TIR nodes than a shuffle spelled out,
whose visits took most of a kernel's compile time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx import Buffer

from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    int64,
    load,
    local,
    loop,
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
    """Return a register tile: ``acc[r, c] = Σ term(r, c, *k)``, then ``finish``.

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


def in_tiles(extent: int, size: int, body: Callable[[Index, int], Stmt]) -> Stmt:
    """Return ``body(first, size)`` over whole tiles of a run, then over what is left."""

    def some(count: int, first: int, width: int) -> Stmt:
        return loop(count, lambda t: body(int64(t) * width + first, width))

    return seq(*(some(*part) for part in spans(extent, size)))


def columns_below(vectors: Sequence[tuple[int, int]], limit: int) -> list[tuple[int, int]]:
    """Return the parts of these vectors below a column, as vectors of powers of two."""
    result = []
    for start, width in vectors:
        if start + width <= limit:
            result.append((start, width))
        elif start < limit:
            result += [(start + s, w) for s, w in pieces(limit - start, width)]
    return result


def ramp(start: Index, lanes: int) -> Expr:
    """Return the indices of a vector."""
    return tirx.Ramp(int64(start), int64(1), lanes)


def vector_load(buffer: Buffer, start: Index, lanes: int) -> Expr:
    """Read a vector."""
    return tirx.BufferLoad(buffer, [ramp(start, lanes)])


def vector_store(buffer: Buffer, value: Expr, start: Index, lanes: int) -> Stmt:
    """Store a vector."""
    return tirx.BufferStore(buffer, value, [ramp(start, lanes)])


def transposed_tile(
    lanes: int,
    row: Callable[[int], Expr],
    column: Callable[[int, Expr], Stmt],
    dtype: str = "float32",
) -> Stmt:
    """Transposes a square tile in registers.

    Args:
        lanes: The side of the tile: lanes of a vector.
        row: ``row(i)`` loads a row as a vector.
        column: ``column(j, vector)`` stores a column.
        dtype: The element type.

    Returns:
        The statements that transpose the tile and store its columns.
    """
    half = lanes // 2
    wide, narrow = f"{dtype}x{2 * lanes}", f"{dtype}x{lanes}"
    statements: list[Stmt] = []

    def weave(a: Expr, b: Expr) -> Expr:
        var = tirx.Var("v", wide)
        both = tirx.call_llvm_pure_intrin(wide, "llvm.vector.interleave2", a, b)
        statements.append(tirx.Bind(var, both))
        return var

    current = [row(i) for i in range(lanes)]
    size = 1
    while size < lanes:
        woven = [weave(current[i], current[i + half]) for i in range(half)]
        current = [
            part
            for both in woven
            for part in (tirx.vectorlow(narrow, both), tirx.vectorhigh(narrow, both))
        ]
        size *= 2
    return seq(*statements, *(column(j, current[j]) for j in range(lanes)))
