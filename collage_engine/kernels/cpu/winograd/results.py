"""Writes the last step of Winograd's method: products of tiles become finished results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.winograd.constant_matrix import on_both_sides
from collage_engine.kernels.cpu.winograd.matrices import Transforms
from collage_engine.kernels.cpu.writing.epilogue import CollapsedEpilogue, Epilogue
from collage_engine.kernels.cpu.writing.register_tile import columns_below
from collage_engine.kernels.cpu.writing.transposed_stores import give_squares
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
    vectorized,
    when,
    workspace,
)


@dataclass(frozen=True)
class Results:
    """The writer of Aᵀ M A for every tile, finished by the epilogue and stored."""

    shape: ConvShape
    epilogue: Epilogue
    collapsed: CollapsedEpilogue | None
    """The epilogue of one position index where results leave by transposed squares; None where each
    vector of channels is stored by itself."""
    matrices: Transforms
    columns: int
    """Tiles in a row of the image."""
    blocks: int
    block: int
    """``blocks`` and ``block``: blocks of output channels, and channels in each."""
    lanes: int

    def write(self, sums: Any, n: Index, first: Index, height: int, b: Index) -> Stmt:
        """Returns the loops for ``height`` rows of tiles from ``first`` and block ``b``.

        ``sums`` holds [points, tiles, block].
        """
        if self.collapsed is None:

            def give(i: Index, j: Index, p: int, q: int, v: Index, out: Any) -> Stmt:
                place = (first + i) * self.matrices.outputs + p, self._column(j, q)
                return self._store(n, b, place, v, out, p * self.matrices.outputs + q)

            return self._tiles(sums, first, height, give)
        return self._by_squares(self.collapsed, sums, n, first, height, b)

    def _column(self, j: Index, q: int) -> Any:
        return int64(j) * self.matrices.outputs + q

    def _tiles(
        self,
        sums: Any,
        first: Index,
        height: int,
        give: Callable[[Index, Index, int, int, Index, Index], Stmt],
    ) -> Stmt:
        """Returns the loops over the results of tiles that exist.

        ``give(i, j, p, q, v, out)`` is called for the one at (p, q) of tile (i, j), whose vector
        ``v`` of the block lies in the local buffer ``out``.
        """
        m, side, lanes = self.matrices.outputs, self.matrices.points, self.lanes
        image_rows, image_columns = self.shape.out
        count = height * self.columns

        def one(i: Index, j: Index, v: Index) -> Stmt:
            t = int64(i) * self.columns + j
            out = local((m * m * lanes,), name="out")

            def element(p: int, q: int, x: Index) -> Expr:
                at = (int64(p * side + q) * count + t) * self.block + int64(v) * lanes
                return load(sums, at + x)

            def keep(p: int, q: int, x: Index, value: Expr) -> Stmt:
                return store(out, value, (p * m + q) * lanes + x)

            def results(p: int) -> Stmt:
                given = []
                for q in range(m):
                    stored: Any = give(i, j, p, q, v, out)
                    if image_columns % m and q:
                        stored = when(self._column(j, q) < image_columns, stored)
                    given.append(stored)
                row: Index = seq(*given)
                if image_rows % m and p:
                    row = when((first + i) * m + p < image_rows, row)
                return row

            return seq(
                allocate(out),
                on_both_sides(self.matrices.back, lanes, element, keep),
                *map(results, range(m)),
            )

        vectors = self.block // lanes
        return loop(
            height, lambda i: loop(self.columns, lambda j: loop(vectors, lambda v: one(i, j, v)))
        )

    def _store(
        self, n: Index, b: Index, place: tuple[Index, Index], v: Index, out: Any, at: int
    ) -> Stmt:
        """Returns a vector of channels at one position; of the last block, those that exist."""
        lanes, co = self.lanes, self.shape.co
        channels = int64(b) * self.block + int64(v) * lanes

        def indices(z: Index) -> tuple[Index, ...]:
            return self.shape.index(n, channels + z, place)

        def value(z: Index) -> Expr:
            return load(out, at * lanes + z)

        def lane(z: Index) -> Stmt:
            return self.epilogue.store(indices(z), value(z))

        if self.shape.channels_last:
            whole = self.epilogue.store_vector(lanes, indices, value)
        else:
            whole = vectorized(lanes, lane)
        if co == self.blocks * self.block:
            return whole
        partly = None
        if co % lanes:
            some = seq(
                *(
                    vectorized(w, lambda z, c=c: lane(int64(c) + z))
                    for c, w in pieces(co % lanes, lanes)
                )
            )
            partly = when(channels < co, some)
        return tirx.IfThenElse(channels + lanes <= co, whole, partly)

    def _by_squares(
        self, collapsed: CollapsedEpilogue, sums: Any, n: Index, first: Index, height: int, b: Index
    ) -> Stmt:
        """Gathers results in a buffer [positions, block] that transposed squares leave."""
        m, lanes = self.matrices.outputs, self.lanes
        image_rows, image_columns = self.shape.out
        flat = workspace((height * m * image_columns * self.block,), name="results")

        def keep(i: Index, j: Index, p: int, q: int, v: Index, out: Any) -> Stmt:
            at = ((int64(i) * m + p) * image_columns + self._column(j, q)) * self.block
            return vectorized(
                lanes,
                lambda z: store(
                    flat, load(out, (p * m + q) * lanes + z), at + (int64(v) * lanes + z)
                ),
            )

        total: Any = int64(height * m * image_columns)
        if image_rows % m:
            total = tirx.min(total, (int64(image_rows) - first * m) * image_columns)

        def leave(kept: Sequence[tuple[int, int]]) -> Stmt:
            return give_squares(
                flat,
                self.block,
                lanes,
                total,
                kept,
                lambda c, position, value: collapsed.store(
                    (n, int64(b) * self.block + c),
                    first * (m * image_columns) + position,
                    (),
                    value,
                ),
            )

        every = [(i * lanes, lanes) for i in range(self.block // lanes)]
        rest = self.shape.co - (self.blocks - 1) * self.block
        last = leave(every if rest == self.block else columns_below(every, rest))
        if rest < self.block and self.blocks > 1:
            last = tirx.IfThenElse(int64(b) < self.blocks - 1, leave(every), last)
        return seq(allocate(flat), self._tiles(sums, first, height, keep), last)
