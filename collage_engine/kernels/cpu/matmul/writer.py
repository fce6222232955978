"""Matrix products: two-dimensional, batched, with packed constant or runtime operands.

Columns in the vector lanes, rows broadcast. A constant right operand is packed as the weight of
a convolution of single points, and the product is written as that; a runtime one is read where it
lies, or copied by blocks of columns first when enough rows use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.convolution.sizes import of_points
from collage_engine.kernels.cpu.direct_channels import writer as conv_channels
from collage_engine.kernels.cpu.pointwise.writer import Context
from collage_engine.kernels.cpu.writing import tile_choice as conv_plan
from collage_engine.kernels.cpu.writing.epilogue import Epilogue, surround
from collage_engine.kernels.cpu.writing.register_tile import tile
from collage_engine.kernels.cpu.writing.tile_choice import Plan
from collage_engine.kernels.cpu.writing.tile_cost import cost, fits
from collage_engine.kernels.expressions import NotUnderstood, loads
from collage_engine.kernels.program import Program, Stage, shape_of
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Stmt,
    int64,
    load,
    loop,
    pieces,
    product,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)

PACK_ROWS = 32
"""Rows from which copying a large runtime operand pays."""


def plan_of(cpu: Cpu, rows: int, depth: int, columns: int) -> Plan:
    """How a constant right operand is packed: columns per block, depth per chunk."""
    if rows == 1:
        # One row: bound by reading the operand; several sums in flight hide the latency.
        lanes = cpu.lanes("float32")
        return Plan(min(8, -(-columns // lanes)) * lanes, depth)
    return conv_plan.plan_of(cpu, columns, depth, 1, (rows, 1))


def chosen_plan(cpu: Cpu, rows: int, depth: int, columns: int, chosen: Mapping[str, Any]) -> Plan:
    """``plan_of`` with what tuning chose of it."""
    if rows > 1:
        return conv_plan.chosen_plan(cpu, columns, depth, 1, (rows, 1), chosen)
    lanes = cpu.lanes("float32")
    plan = plan_of(cpu, rows, depth, columns)
    vectors = int(chosen.get("block", 0))
    return Plan(vectors * lanes, depth) if 0 < vectors <= -(-columns // lanes) else plan


def height_of(cpu: Cpu, rows: int, vectors: int) -> int:
    heights = [h for h in range(1, min(28, rows) + 1) if fits(cpu, h, vectors)] or [1]
    return min(heights, key=lambda h: (cost(cpu, rows, vectors, h, vectors), -h))


def write(program: Program, anchor: Stage, context: Context) -> Stmt:
    sources = [access.source for access in loads(anchor.value)]
    if len(sources) != 2:
        raise NotUnderstood("a product that does not read two tensors")
    left, right = sources
    if anchor.note["packed"]:
        return surround(
            program, anchor, context, lambda e: _packed(left, right, anchor, e, context)
        )
    return surround(program, anchor, context, lambda e: _runtime(left, right, anchor, e, context))


@dataclass(frozen=True)
class _Rows:
    """An epilogue over (row, column) for a product whose rows are several axes."""

    plain: Epilogue
    lead: tuple[int, ...]

    def collapsed(self, first: int, count: int) -> _Rows:
        return self

    def store(
        self, before: Sequence[Any], row: Any, after: Sequence[Any], accumulator: Any
    ) -> Stmt:
        together = self.plain.collapsed(0, len(self.lead)) if self.lead else None
        if together is not None:
            return together.store((), row, after, accumulator)
        places = split_index(row, self.lead) if self.lead else ()
        return self.plain.store((*places, *after), accumulator)


def _packed(left: Any, right: Any, anchor: Stage, epilogue: Epilogue, context: Context) -> Stmt:
    """All leading axes of the left operand are rows, positions of a convolution of points."""
    lead = anchor.extents[:-1]
    rows, columns = product(lead), anchor.extents[-1]
    depth = shape_of(left)[-1]
    points = ConvShape(channels_last=True, **of_points(left, right, rows, depth, columns))
    return conv_channels.write_prepared(points, _Rows(epilogue, lead), context)


def _runtime(left: Any, right: Any, anchor: Stage, epilogue: Epilogue, context: Context) -> Stmt:
    """Batched; leading axes broadcast as numpy's do; both operands are row-major."""
    cpu = context.cpu
    lanes = cpu.lanes("float32")
    a_shape, b_shape = shape_of(left), shape_of(right)
    if len(a_shape) < 2 or len(b_shape) < 2:
        raise NotUnderstood("a product with a vector")
    batch = anchor.extents[:-2]
    rows, depth, columns = a_shape[-2], a_shape[-1], b_shape[-1]
    a_flat, b_flat = context.views.flat(left), context.views.flat(right)
    block = conv_plan.block_of(cpu, columns, (rows, 1), chunks=False)
    if "block" in context.plan:
        block = max(1, min(8, int(context.plan["block"]))) * lanes
    wide = max(1, block // lanes)
    height = height_of(cpu, rows, wide)
    chosen = int(context.plan.get("rows", height))
    if 0 < chosen <= rows and fits(cpu, chosen, wide):
        height = chosen
    pack = rows >= PACK_ROWS and 4 * depth * columns > cpu.l1_bytes
    pack = bool(context.plan.get("pack", pack)) and columns >= block
    share = context.share(product(anchor.extents) * depth // 16)
    matrices = product(b_shape[:-2])
    statements: list[Stmt | None] = []
    blocks = -(-columns // block)
    packed = None
    if pack:
        packed = workspace((matrices * blocks * depth * block,), name="packed")
        context.buffers.append(packed)

        def copy(index: Any) -> Stmt:
            m, k = split_index(index, (matrices, depth))

            def vector(column: int, width: int) -> Stmt:
                b, inner = divmod(column, block)
                at = ((int64(m) * blocks + b) * depth + k) * block + inner
                return vectorized(
                    width,
                    lambda x: store(
                        packed,
                        load(b_flat, (int64(m) * depth + k) * columns + (column + x)),
                        at + x,
                    ),
                )

            count = columns // block

            def whole(b: Any) -> Stmt:
                return seq(
                    *(
                        vectorized(
                            lanes,
                            lambda x, v=v: store(
                                packed,
                                load(
                                    b_flat,
                                    (int64(m) * depth + k) * columns
                                    + (int64(b) * block + v * lanes + x),
                                ),
                                ((int64(m) * blocks + b) * depth + k) * block + (v * lanes + x),
                            ),
                        )
                        for v in range(wide)
                    )
                )

            return seq(
                loop(count, whole) if count else None,
                *(vector(count * block + s, w) for s, w in pieces(columns - count * block, lanes)),
            )

        statements.append(share(matrices * depth, copy))

    def matrix(places: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
        """Number of the operand's matrix for a place in the batch."""
        lead = shape[:-2]
        index: Any = int64(0)
        for p, e in zip(places[len(places) - len(lead) :], lead, strict=True):
            index = index * e + (p if e > 1 else 0)
        return index

    def one(places: tuple[Any, ...], first: Any, count: int, b: Any, vectors: Any) -> Stmt:
        a_base = matrix(places, a_shape) * (rows * depth)
        m = matrix(places, b_shape)

        def term(r: Any, column: Any, k: Any) -> Any:
            a = load(a_flat, a_base + (int64(first) + r) * depth + k)
            if packed is not None:
                at = ((m * blocks + b) * depth + k) * block + column
                return a * load(packed, at)
            return a * load(b_flat, (m * depth + k) * columns + (int64(b) * block + column))

        def finish(r: Any, column: Any, value: Any) -> Stmt:
            return epilogue.store((*places, int64(first) + r, int64(b) * block + column), value)

        return tile(count, vectors, lambda step: loop(depth, step), term, finish)

    full_blocks, rest_columns = divmod(columns, block)

    def cover(
        tiles: int, first: int, count: int, low: int, number: int, vectors: Any
    ) -> Stmt | None:
        if tiles == 0 or number == 0 or not vectors:
            return None
        extents = (*batch, number, tiles)

        def task(index: Any) -> Stmt:
            *places, b, t = split_index(index, extents)
            return one(tuple(places), int64(t) * height + first, count, int64(b) + low, vectors)

        return share(product(extents), task)

    full, rest = divmod(rows, height)
    whole = [(i * lanes, lanes) for i in range(wide)]
    part = pieces(rest_columns, lanes)
    statements += [
        cover(full, 0, height, 0, full_blocks, whole),
        cover(full, 0, height, full_blocks, 1, part),
        cover(1 if rest else 0, full * height, rest, 0, full_blocks, whole),
        cover(1 if rest else 0, full * height, rest, full_blocks, 1, part),
    ]
    return seq(*statements)
