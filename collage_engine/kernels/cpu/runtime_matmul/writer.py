"""Writes a batched product of two values, columns in the vector lanes, rows broadcast.

The right operand is read where it lies, or copied by blocks of columns first when enough rows use
it.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.ir import Expr

from collage_engine.kernels.cpu.matmul.problem import RuntimeMatmul
from collage_engine.kernels.cpu.runtime_matmul.plan import RuntimePlan
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import tile
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    int64,
    load,
    loop,
    pieces,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)


def write(
    problem: RuntimeMatmul, plan: RuntimePlan, epilogue: Epilogue, left: Any, right: Any
) -> Stmt:
    """Returns the loops over the buffers ``left`` and ``right``, which are row-major."""
    return _Runtime(problem, plan, epilogue, left, right).write()


class _Runtime:
    """One product, cut into tiles of rows by blocks of columns."""

    def __init__(
        self, problem: RuntimeMatmul, plan: RuntimePlan, epilogue: Epilogue, left: Any, right: Any
    ) -> None:
        self.problem, self.plan, self.epilogue = problem, plan, epilogue
        self.context = epilogue.context
        self.lanes = self.context.cpu.lanes("float32")
        self.block = plan.block * self.lanes
        self.blocks = -(-problem.columns // self.block)
        views = self.context.views
        self.left, self.right = views.flat(left), views.flat(right)
        self.matrices = prod(problem.right[:-2])
        self.packed: Any = None
        if plan.pack and problem.columns >= self.block:
            length = self.matrices * self.blocks * problem.depth * self.block
            self.packed = workspace((length,), name="packed")
            self.context.buffers.append(self.packed)
        self.share = self.context.share(prod(problem.out) * problem.depth // 16)

    def write(self) -> Stmt:
        problem = self.problem
        copy = None
        if self.packed is not None:
            copy = self.share(self.matrices * problem.depth, self._copy)
        full_blocks, rest_columns = divmod(problem.columns, self.block)
        full, rest = divmod(problem.rows, self.plan.rows)
        whole = [(i * self.lanes, self.lanes) for i in range(self.plan.block)]
        part = pieces(rest_columns, self.lanes)
        below = full * self.plan.rows
        return seq(
            copy,
            self._cover(full, 0, self.plan.rows, 0, full_blocks, whole),
            self._cover(full, 0, self.plan.rows, full_blocks, 1, part),
            self._cover(1 if rest else 0, below, rest, 0, full_blocks, whole),
            self._cover(1 if rest else 0, below, rest, full_blocks, 1, part),
        )

    def _copy(self, index: Index) -> Stmt:
        """Returns a row of the right operand, by blocks of columns."""
        depth, columns, block = self.problem.depth, self.problem.columns, self.block
        m, k = split_index(index, (self.matrices, depth))
        count = columns // block

        def element(column: Index) -> Expr:
            return load(self.right, (int64(m) * depth + k) * columns + column)

        def place(b: Index, inner: Index) -> Any:
            return ((int64(m) * self.blocks + b) * depth + k) * block + inner

        def vector(column: int, width: int) -> Stmt:
            at = place(*divmod(column, block))
            return vectorized(width, lambda x: store(self.packed, element(column + x), at + x))

        def whole(b: Index) -> Stmt:
            return seq(
                *(
                    vectorized(
                        self.lanes,
                        lambda x, v=v: store(
                            self.packed,
                            element(int64(b) * block + v * self.lanes + x),
                            place(b, v * self.lanes + x),
                        ),
                    )
                    for v in range(self.plan.block)
                )
            )

        return seq(
            loop(count, whole) if count else None,
            *(vector(count * block + s, w) for s, w in pieces(columns - count * block, self.lanes)),
        )

    def _cover(
        self, tiles: int, first: int, count: int, low: int, number: int, vectors: Any
    ) -> Stmt | None:
        """Writes some tiles of equal height for some blocks of columns, shared among threads.

        Args:
            tiles: How many tiles there are.
            first: The first row of the first tile.
            count: Rows of each tile.
            low: The first block of columns.
            number: How many blocks of columns there are.
            vectors: The vectors of a block.
        """
        if tiles == 0 or number == 0 or not vectors:
            return None
        extents = (*self.problem.out[:-2], number, tiles)
        height = self.plan.rows

        def task(index: Index) -> Stmt:
            *places, b, t = split_index(index, extents)
            return self._tile(
                tuple(places), int64(t) * height + first, count, int64(b) + low, vectors
            )

        return self.share(prod(extents), task)

    def _tile(
        self, places: tuple[Index, ...], first: Index, count: int, b: Index, vectors: Any
    ) -> Stmt:
        problem, block = self.problem, self.block
        depth, columns = problem.depth, problem.columns
        a_base = _matrix(places, problem.left) * (problem.rows * depth)
        m = _matrix(places, problem.right)

        def term(r: Index, column: Index, k: Index) -> Expr:
            a = load(self.left, a_base + (int64(first) + r) * depth + k)
            if self.packed is not None:
                at = ((m * self.blocks + b) * depth + k) * block + column
                return a * load(self.packed, at)
            return a * load(self.right, (m * depth + k) * columns + (int64(b) * block + column))

        def finish(r: Index, column: Index, value: Expr) -> Stmt:
            return self.epilogue.store(
                (*places, int64(first) + r, int64(b) * block + column), value
            )

        return tile(count, vectors, lambda step: loop(depth, step), term, finish)


def _matrix(places: tuple[Index, ...], shape: tuple[int, ...]) -> Any:
    """Returns the number of an operand's matrix for a place in the batch."""
    lead = shape[:-2]
    index: Index = int64(0)
    for p, e in zip(places[len(places) - len(lead) :], lead, strict=True):
        index = index * e + (p if e > 1 else 0)
    return index
