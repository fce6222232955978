"""Convolution of channels-first data with positions in the vector lanes.

The input is padded, and split into as many phases as the strides skip, so that every tap of the
kernel is one constant offset: output position ``row · pitch + column`` reads phase position
``row · pitch + column + offset``, and a vector of positions is one unaligned load whatever the
image's width (the columns between the output's width and the pitch are computed for nothing).
A register tile is some output channels by some vectors of positions; a band of rows of a block
of channels is gathered in the first-level cache and then stored without the surplus columns.
The weight is packed [groups, blocks, channels in, *kernel, channels of the block].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from collage_engine.kernels.cpu.convolution.padded_phases import Planes, make_planes
from collage_engine.kernels.cpu.convolution.shape import ConvShape
from collage_engine.kernels.cpu.pointwise.writer import Context
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import tile
from collage_engine.kernels.cpu.writing.tile_cost import cost, fits
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Stmt,
    allocate,
    int64,
    load,
    loop,
    nest,
    pieces,
    product,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)

BAND_BYTES = 48 << 10


def rows_of(cpu: Cpu, channels: int, positions: int) -> int:
    """Output channels of a register tile."""
    lanes = cpu.lanes("float32")
    vectors = -(-positions // lanes)
    best = None
    for h in range(1, min(16, channels) + 1):
        for v in range(1, min(6, vectors) + 1):
            if not fits(cpu, h, v):
                continue
            padded = -(-channels // h) * h
            estimate = (cost(cpu, padded, vectors, h, v), -h)
            if best is None or estimate < best:
                best = estimate
    assert best is not None
    return -best[1]


def vectors_of(cpu: Cpu, height: int, vectors: int) -> int:
    """Vectors of a register tile of this height."""
    widths = [v for v in range(1, min(6, vectors) + 1) if fits(cpu, height, v)] or [1]
    return min(widths, key=lambda v: (cost(cpu, height, vectors, height, v), -v))


def write(shape: ConvShape, epilogue: Epilogue, context: Context) -> Stmt:
    cpu = context.cpu
    lanes = cpu.lanes("float32")
    groups, blocks, ci, *_, height = shape_of(shape.weight)
    co = shape.co // groups
    collapsed = epilogue.collapsed(2, len(shape.out))
    phases = make_planes(shape, context, may_alias=collapsed is not None)
    direct = phases.prepare is None
    if direct and collapsed is not None:
        spans = [(0, 1, product(shape.out))]
    else:
        spans = _bands(shape, phases, height, lanes, int(context.plan.get("band", BAND_BYTES)))
    weight_bytes = 4 * product(shape_of(shape.weight))
    channels_inside = bool(context.plan.get("inside", weight_bytes <= cpu.l2_bytes // 2))

    def reduce(step: Callable[..., Stmt]) -> Stmt:
        return loop(ci, lambda c: nest(shape.kernel, lambda *k: step(c, *k)))

    def tiles(
        n: Any, g: Any, b: Any, base: Any, size: int, finish: Callable[[Any, Any, Any], Stmt]
    ) -> Stmt:
        """All positions ``base … base + size`` for one channel block."""
        vectors = -(-size // lanes)
        wide = vectors_of(cpu, height, vectors)
        chosen = int(context.plan.get("vectors", wide))
        if 0 < chosen <= vectors and fits(cpu, height, chosen):
            wide = chosen

        def one(first: Any, count: int) -> Stmt:
            """The register tile of ``count`` vectors from position ``first`` on."""

            def term(r: Any, column: Any, c: Any, *k: Any) -> Any:
                at = (int64(n) * shape.ci + g * ci + c) * phases.size
                here = load(
                    phases.buffer, at + phases.offset(k, shape.dilation) + base + first + column
                )
                return load(shape.weight, g, b, c, *k, r) * here

            return tile(
                height,
                [(v * lanes, lanes) for v in range(count)],
                reduce,
                term,
                lambda r, column, value: finish(r, first + column, value),
            )

        # Without a copy of the input nothing may be read behind its end: the last vectors
        # then start earlier and compute some positions twice.
        exact = not direct or size % lanes == 0
        whole = vectors if exact else size // lanes
        full, rest = divmod(whole, wide)
        return seq(
            loop(full, lambda t: one(int64(t) * (wide * lanes), wide)) if full else None,
            one(int64(full * wide * lanes), rest) if rest else None,
            None if exact else one(int64(size - lanes), 1),
        )

    def block_rows(b: Any, body: Callable[[int], Stmt]) -> Stmt:
        """The body with the number of channels that exist in block ``b``."""
        rest = co - (blocks - 1) * height
        if rest == height:
            return body(height)
        if blocks == 1:
            return body(rest)
        return tirx.IfThenElse(b < blocks - 1, body(height), body(rest))

    def task_body(n: Any, g: Any, b: Any, first_row: Any, rows: int, size: int) -> Stmt:
        channel = g * co + b * height
        if direct and collapsed is not None:

            def finish(r: Any, position: Any, value: Any) -> Stmt:
                statement = collapsed.store((n, channel + r), position, (), value)
                if co % height:
                    return tirx.IfThenElse(b * height + r < co, statement, None)
                return statement

            return tiles(n, g, b, int64(0), size, finish)
        pitch = phases.pitches[-1]
        vectors = -(-size // lanes)
        band = workspace((height, vectors * lanes), name="band")
        base = first_row * (product(phases.pitches[1:]) if len(shape.out) > 1 else 1)

        def keep(r: Any, position: Any, value: Any) -> Stmt:
            return store(band, value, r, position)

        def give(count: int) -> Stmt:
            def line(r: Any, *place: Any) -> Stmt:
                inner: Any = int64(0)
                for p, e in zip(place, phases.pitches, strict=False):
                    inner = inner * e + p
                inner = inner * pitch
                row = (first_row + place[0], *place[1:]) if place else ()
                return seq(
                    *(
                        vectorized(
                            w,
                            lambda x, s=s: epilogue.store(
                                (n, channel + r, *row, int64(s) + x),
                                load(band, r, inner + (int64(s) + x)),
                            ),
                        )
                        for s, w in pieces(shape.out[-1], lanes)
                    )
                )

            inner_rows = (rows, *shape.out[1:-1]) if len(shape.out) > 1 else ()
            return nest((count, *inner_rows), line)

        return seq(allocate(band), tiles(n, g, b, base, size, keep), block_rows(b, give))

    statements: list[Stmt | None] = [phases.prepare]
    share = context.share(shape.work)
    start = 0
    for rows, count, size in spans:
        if count == 0:
            continue
        spatial = (shape.batch, count)
        channels = (groups, blocks)
        extents = (*spatial, *channels) if channels_inside else (*channels, *spatial)

        def task(
            index: Any,
            extents: tuple[int, ...] = extents,
            rows: int = rows,
            size: int = size,
            start: int = start,
        ) -> Stmt:
            parts = split_index(index, extents)
            n, s, g, b = parts if channels_inside else (*parts[2:], *parts[:2])
            return task_body(n, g, b, int64(s) * rows + start, rows, size)

        statements.append(share(product(extents), task))
        start += rows * count
    return seq(*statements)


def _bands(
    shape: ConvShape, phases: Planes, height: int, lanes: int, band_bytes: int
) -> list[tuple[int, int, int]]:
    """(rows, how many such bands, positions of one) that cover the first spatial axis."""
    total = shape.out[0] if len(shape.out) > 1 else 1
    pitch_row = product(phases.pitches[1:]) if len(shape.out) > 1 else phases.pitches[0]

    def positions(rows: int) -> int:
        """From the band's first position to its last, surplus columns between included."""
        size = (rows - 1) * pitch_row
        inner = 0
        for o, p in zip(shape.out[1:], phases.pitches[1:], strict=True):
            inner = inner * p + (o - 1)
        return size + inner + 1 if len(shape.out) > 1 else shape.out[0]

    best = None
    for rows in range(1, total + 1):
        size = positions(rows)
        if rows > 1 and height * size * 4 > band_bytes:
            break
        count, rest = divmod(total, rows)
        vectors = count * -(-size // lanes) + (-(-positions(rest) // lanes) if rest else 0)
        estimate = (vectors * (1.02 if rest else 1.0), -rows)
        if best is None or estimate < best[0]:
            best = (estimate, rows)
    assert best is not None
    rows = best[1]
    count, rest = divmod(total, rows)
    spans = [(rows, count, positions(rows))]
    if rest:
        spans.append((rest, 1, positions(rest)))
    return spans
