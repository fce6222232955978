"""Writes batched products of two values that are known only at run time.

Columns are in the vector lanes, rows broadcast. The right operand is read where it lies, or copied
by blocks of columns first when enough rows use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from tvm import te
from tvm.ir import Expr

from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import tile
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_POSITIONS,
    MOST_VECTORS,
    block_of,
    cost,
    fits,
    near,
    spans,
)
from collage_engine.kernels.rule import AtLeastOne, KernelRule, Plan, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    flat_index,
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


class RuntimeMatmul(msgspec.Struct, frozen=True, tag_field="family", tag="runtime"):
    """A batched product of two values; leading axes broadcast as NumPy's do."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    out: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Returns the rows of one matrix of the left operand."""
        return self.left[-2]

    @property
    def depth(self) -> int:
        """Returns how many products are added up to one result."""
        return self.left[-1]

    @property
    def columns(self) -> int:
        """Return the columns of one matrix of the right operand."""
        return self.right[-1]

    @property
    def multiply_adds(self) -> float:
        """Returns how many products are added up."""
        return float(prod(self.out) * self.depth)

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return random matrices; results are about as large as the left one's elements."""
        left, right = (
            random.standard_normal(shape, dtype=np.float32) for shape in (self.left, self.right)
        )
        return left, right * np.float32(self.depth**-0.5)


class RuntimePlan(Plan, frozen=True):
    """The parameters of a product of two values that are known only at run time."""

    block: AtLeastOne
    """Columns per block, counted in vectors."""
    rows: AtLeastOne
    """Rows that a register tile covers."""
    pack: bool
    """Whether the right operand is copied by blocks of columns first."""


class _Runtime:
    """One product, cut into tiles of rows by blocks of columns."""

    def __init__(self, problem: RuntimeMatmul, plan: RuntimePlan, epilogue: Epilogue) -> None:
        self.problem, self.plan, self.epilogue = problem, plan, epilogue
        self.context = epilogue.context
        self.lanes = self.context.cpu.lanes("float32")
        self.block = plan.block * self.lanes
        self.blocks = -(-problem.columns // self.block)
        views = self.context.views
        self.left, self.right = views.flat(self.context.data), views.flat(self.context.weight)
        self.matrices = prod(problem.right[:-2])
        self.packed: Any = None
        if plan.pack and problem.columns >= self.block:
            length = self.matrices * self.blocks * problem.depth * self.block
            self.packed = workspace((length,), name="packed")
            self.context.buffers.append(self.packed)
        self.share = self.context.share_products(problem.multiply_adds)

    def write(self) -> Stmt:
        problem = self.problem
        copy = None
        if self.packed is not None:
            copy = self.share(self.matrices * problem.depth, self._copy)
        full_blocks, rest_columns = divmod(problem.columns, self.block)
        whole = [(i * self.lanes, self.lanes) for i in range(self.plan.block)]
        part = pieces(rest_columns, self.lanes)
        return seq(
            copy,
            *(
                self._cover(tiles, first, count, low, number, vectors)
                for tiles, first, count in spans(problem.rows, self.plan.rows)
                for low, number, vectors in ((0, full_blocks, whole), (full_blocks, 1, part))
                if number and vectors
            ),
        )

    def _copy(self, index: Index) -> Stmt:
        """Return a row of the right operand, by blocks of columns."""
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
    ) -> Stmt:
        """Write some tiles of equal height for some blocks of columns, shared among threads.

        Args:
            tiles: How many tiles there are.
            first: The first row of the first tile.
            count: Rows of each tile.
            low: The first block of columns.
            number: How many blocks of columns there are.
            vectors: The vectors of a block.
        """
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
    """Return the number of an operand's matrix for a place in the batch."""
    lead = shape[:-2]
    own = zip(places[len(places) - len(lead) :], lead, strict=True)
    return flat_index([p if e > 1 else 0 for p, e in own], lead, int64(0))


class RuntimeProduct(KernelRule[RuntimeMatmul, RuntimePlan, Cpu]):
    """The rule that writes products of two values that are known only at run time."""

    name = "matmul runtime"

    def matches(self, problem: RuntimeMatmul, machine: Cpu) -> bool:
        """Tells whether both operands are matrices."""
        return min(len(problem.left), len(problem.right)) >= 2

    def default(self, problem: RuntimeMatmul, machine: Cpu) -> RuntimePlan:
        """Return the block and the tile that are estimated to cost least."""
        lanes = machine.lanes("float32")
        block = block_of(machine, problem.columns, (problem.rows, 1)) // lanes
        large = 4 * problem.depth * problem.columns > machine.l1_bytes
        # A copy reads and writes each element once, which rows of several tiles repay.
        pack = problem.rows > MOST_POSITIONS and large
        return RuntimePlan(block, height_of(machine, problem.rows, block), pack)

    def neighbours(
        self, problem: RuntimeMatmul, plan: RuntimePlan, machine: Cpu
    ) -> Iterator[RuntimePlan]:
        """Yield the other way to read the right operand, other blocks and tiles."""
        yield replace(plan, pack=not plan.pack)
        vectors = -(-problem.columns // machine.lanes("float32"))
        for block in near(plan.block, min(MOST_VECTORS, vectors)):
            rows = height_of(machine, problem.rows, block)
            yield replace(plan, block=block, rows=rows)
        for rows in near(plan.rows, min(problem.rows, MOST_POSITIONS)):
            if fits(machine, rows, plan.block):
                yield replace(plan, rows=rows)

    def reference(
        self, problem: RuntimeMatmul, plan: RuntimePlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of products, leading axes broadcast."""
        left, right = operands
        k = te.reduce_axis((0, int(left.shape[-1])), "k")

        def element(*index: Index) -> Expr:
            *batch, m, n = index

            def of(tensor: Any, *last: Index) -> Any:
                lead = [int(e) for e in tensor.shape[:-2]]
                places = batch[len(batch) - len(lead) :]
                return tensor(
                    *(p if e > 1 else 0 for p, e in zip(places, lead, strict=True)), *last
                )

            return te.sum(of(left, m, k) * of(right, k, n), axis=k)

        return te.compute(problem.out, element, name="matmul", attrs=note(self, problem, plan))

    def write(self, problem: RuntimeMatmul, plan: RuntimePlan, epilogue: Epilogue) -> Stmt:
        """Return the loops, after a copy of the right operand where the plan says so."""
        return _Runtime(problem, plan, epilogue).write()


def height_of(cpu: Cpu, rows: int, vectors: int) -> int:
    """Return the rows of a register tile of so many vectors that are estimated to cost least."""
    most = min(MOST_POSITIONS, rows)
    heights = [h for h in range(1, most + 1) if fits(cpu, h, vectors)] or [1]
    return min(heights, key=lambda h: (cost(cpu, rows, vectors, h, vectors), -h))
