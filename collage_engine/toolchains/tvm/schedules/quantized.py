"""Integer convolutions and products: four 8-bit products a lane and instruction.

Channels last, output channels in the lanes of 32-bit sums. The weight is packed [groups, blocks,
*kernel, quads of channels, block, 4]: one vector of it meets four neighbouring channels of one
position, broadcast. With AVX-512 VNNI that is ``vpdpbusd`` (unsigned data by signed weights,
without saturation); elsewhere the same sums lane by lane. Signed data is read with its top bit
flipped, as value + 128; whoever wrote the computation has taken that off again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    allocate,
    bound,
    int64,
    load,
    local,
    loop,
    pieces,
    product,
    seq,
    split_index,
    store,
    vectorized,
    workspace,
)
from collage_engine.toolchains.tvm.expressions import NotUnderstood, loads
from collage_engine.toolchains.tvm.program import Program, Stage, shape_of
from collage_engine.toolchains.tvm.schedules.anchor import Epilogue, columns_below, surround, tile
from collage_engine.toolchains.tvm.schedules.conv_plan import best_positions, spans
from collage_engine.toolchains.tvm.schedules.pointwise import Context
from collage_engine.toolchains.tvm.schedules.transpose import vector_load, vector_store

QUAD = 4
"""Channels that one instruction multiplies and adds in each lane."""


def write(program: Program, anchor: Stage, context: Context) -> Stmt:
    way = {"depthwise": _Depthwise}.get(str(anchor.note["way"]), _Product)
    geometry = Geometry.of(anchor)
    return surround(program, anchor, context, lambda e: way(geometry, e, context).loops())


@dataclass(frozen=True)
class Geometry:
    """Sizes of one convolution over channels-last data; a product has rows for positions."""

    data: Any
    weight: Any
    lead: tuple[int, ...]
    """Axes before the channels of a product's result; empty for convolutions."""
    batch: int
    ci: int
    co: int
    groups: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    zero: int
    """What the rim holds: the data's zero point as an unsigned number."""
    signed: bool

    @staticmethod
    def of(anchor: Stage) -> Geometry:
        sources = list({str(a.source.name): a.source for a in loads(anchor.value)}.values())
        if len(sources) != 2:
            raise NotUnderstood("an integer product that does not read two tensors")
        data, weight = sources
        note, shape, out = anchor.note, shape_of(data), anchor.extents
        zero, signed = int(note["zero"]), bool(note["signed"])
        if note["way"] == "product":
            rows = product(out[:-1])
            return Geometry(
                data, weight, out[:-1], 1, shape[-1], out[-1], 1, (rows,), (rows,), (1,), (1,),
                (1,), (0,), (0,), zero, signed,
            )  # fmt: skip
        dims = len(shape) - 2
        return Geometry(
            data, weight, (), shape[0], shape[-1], out[-1], int(note["groups"]), shape[1:-1],
            out[1:-1], tuple(note["kernel"]), tuple(note["strides"]), tuple(note["dilation"]),
            tuple(note["padding"][:dims]), tuple(note["padding"][dims:]), zero, signed,
        )  # fmt: skip

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def taps(self) -> int:
        return product(self.kernel)

    @property
    def flat(self) -> bool:
        """Whether output positions are input positions, one by one."""
        return self.taps == 1 and self.padded == self.size and all(s == 1 for s in self.strides)

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns that tiles cover."""
        if self.flat or len(self.out) == 1:
            return product(self.out), 1
        return self.out[-2], self.out[-1]

    @property
    def outer(self) -> tuple[int, ...]:
        return () if self.flat or len(self.out) == 1 else self.out[:-2]

    @property
    def work(self) -> int:
        """What sharing among threads is worth: multiply-adds of vectors."""
        depth = self.taps * self.ci // self.groups
        return self.batch * self.co * product(self.out) * depth // 64


class _Data:
    """The data where the kernel reads it: as it lies, or copied with its rim."""

    def __init__(self, shape: Geometry, context: Context, quads: bool) -> None:
        inside = shape.ci // shape.groups
        uneven = quads and inside % QUAD
        self.shape = shape
        self.pitch = shape.ci
        self.copied = bool(shape.padded != shape.size or uneven)
        self.flat = context.views.flat(shape.data)
        self.size = shape.padded
        self.loops: Stmt | None = None
        if not self.copied:
            return
        if uneven:
            self.pitch = -(-shape.ci // QUAD) * QUAD + (QUAD if shape.groups > 1 else 0)
        source, self.flat = (
            self.flat,
            workspace((shape.batch * product(self.size) * self.pitch,), "uint8", "prepared"),
        )
        context.buffers.append(self.flat)
        self.loops = self._copy(source, context)

    def at(self, n: Any, place: Sequence[Any], channel: Any) -> Any:
        """Flat index of a channel of a position (of the padded image, when there is a copy)."""
        index: Any = int64(n)
        for p, e in zip(place, self.size, strict=True):
            index = index * e + p
        return index * self.pitch + channel

    @property
    def flips(self) -> bool:
        """Whether bytes are still signed where they are read."""
        return self.shape.signed and not self.copied

    def _copy(self, source: Any, context: Context) -> Stmt:
        shape, lanes = self.shape, context.cpu.vector_bytes
        columns = self.size[-1]
        whole = self.pitch == shape.ci

        def fill(at: Any, count: int) -> Stmt:
            value = tirx.const(shape.zero, "uint8")
            return _runs(count, lanes, lambda o: store(self.flat, value, at + o))

        def element(at: Any, start: Any) -> Any:
            def one(offset: Any) -> Stmt:
                return store(self.flat, _unsigned(load(source, start + offset), shape.signed),
                             at + offset)  # fmt: skip

            return one

        def row(index: Any) -> Stmt:
            n, *place = split_index(index, (shape.batch, *self.size[:-1]))
            at = int64(index) * (columns * self.pitch)
            inner = [p - b for p, b in zip(place, shape.before, strict=False)]
            start: Any = int64(n)
            for p, e in zip(inner, shape.size, strict=False):
                start = start * e + p
            start = start * (shape.size[-1] * shape.ci)
            before, after = shape.before[-1], shape.after[-1]
            end = (before + shape.size[-1]) * self.pitch
            if whole:
                middle = _runs(
                    shape.size[-1] * shape.ci, lanes, element(at + before * self.pitch, start)
                )
            else:
                rim = self.pitch - shape.ci

                def point(x: Any) -> Stmt:
                    to = at + (int64(x) + before) * self.pitch
                    return seq(
                        _runs(shape.ci, lanes, element(to, start + int64(x) * shape.ci)),
                        fill(to + shape.ci, rim),
                    )

                middle = loop(shape.size[-1], point)
            filled = seq(fill(at, before * self.pitch), middle, fill(at + end, after * self.pitch))
            tests = [
                t
                for p, e, b, a in zip(inner, shape.size, shape.before, shape.after, strict=False)
                if b or a
                for t in (p >= 0, p < e)
            ]
            if not tests:
                return filled
            condition = tests[0]
            for test in tests[1:]:
                condition = tirx.And(condition, test)
            return tirx.IfThenElse(condition, filled, fill(at, columns * self.pitch))

        share = context.share(shape.batch * product(self.size) * self.pitch // 4)
        return share(shape.batch * product(self.size[:-1]), row)


def _unsigned(value: Expr, signed: bool) -> Expr:
    """A byte as the unsigned number it stands for: signed ones are moved up by 128."""
    if not signed:
        return value
    moved = tirx.BitwiseXor(value, tirx.const(-128, "int8"))
    return tirx.call_intrin("uint8", "tirx.reinterpret", moved)


def _runs(count: int, lanes: int, body: Any) -> Stmt:
    """``body(offset)`` for a run of bytes, in vectors; short ones one by one."""
    if count == 0:
        return seq()
    full = count // lanes
    statements = []
    if full:
        statements.append(
            loop(full, lambda v: vectorized(lanes, lambda x: body(int64(v) * lanes + x)))
        )
    statements += [
        vectorized(width, lambda x, s=start: body(int64(full * lanes + s) + x))
        for start, width in pieces(count - full * lanes, lanes)
    ]
    return seq(*statements)


class _Product:
    """Register tiles of positions by blocks of output channels."""

    def __init__(self, shape: Geometry, epilogue: Epilogue, context: Context) -> None:
        self.shape, self.epilogue, self.context = shape, epilogue, context
        self.lanes = context.cpu.lanes("int32")
        self.groups, self.blocks, *_, self.quads, self.block, _ = shape_of(shape.weight)
        self.co = shape.co // shape.groups
        self.vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]
        self.data = _Data(shape, context, quads=True)
        self.weight = context.views.flat(shape.weight)
        self.tile = best_positions(context.cpu, len(self.vectors), shape.image)

    def loops(self) -> Stmt:
        shape, (rows, columns), (height, width) = self.shape, self.shape.image, self.tile
        share = self.context.share(shape.work)
        inside = product(shape_of(shape.weight)) <= self.context.cpu.l2_bytes // 2
        statements = [self.data.loops]
        for count_r, first_r, h in spans(rows, height):
            spatial = (shape.batch, *shape.outer, count_r)
            channels = (self.groups, self.blocks)

            def task(
                index: Any, spatial: Any = spatial, channels: Any = channels,
                h: int = h, first_r: int = first_r,
            ) -> Stmt:  # fmt: skip
                if inside:
                    parts = split_index(index, (*spatial, *channels))
                    where, (g, b) = parts[: len(spatial)], parts[len(spatial) :]
                else:
                    parts = split_index(index, (*channels, *spatial))
                    (g, b), where = parts[:2], parts[2:]
                n, lead, i = where[0], where[1:-1], where[-1]
                row = int64(i) * h + first_r
                return seq(
                    *(
                        loop(
                            count_c,
                            lambda j, w=w, f=f: self.one(
                                n, lead, g, b, (row, int64(j) * w + f), (h, w)
                            ),
                        )
                        for count_c, f, w in spans(columns, width)
                    )
                )

            statements.append(share(product((*spatial, *channels)), task))
        return seq(*statements)

    def place(self, lead: Sequence[Any], row: Any, column: Any) -> tuple[Any, ...]:
        if self.shape.flat:
            return tuple(split_index(row, self.shape.out))
        return (row,) if len(self.shape.out) == 1 else (*lead, row, column)

    def origin(self, n: Any, lead: Sequence[Any], corner: Any, channel: Any) -> Any:
        """Where the first position's first tap lies."""
        shape = self.shape
        if shape.flat:
            return (int64(n) * product(shape.size) + corner[0]) * self.data.pitch + channel
        place = self.place(lead, *corner)
        return self.data.at(n, [p * s for p, s in zip(place, shape.strides, strict=True)], channel)

    def offset(self, i: int, j: int) -> int:
        """From the first position of a tile to another."""
        shape, pitch = self.shape, self.data.pitch
        if shape.flat:
            return i * pitch
        if len(shape.out) == 1:
            return i * shape.strides[0] * pitch
        return (i * shape.strides[-2] * self.data.size[-1] + j * shape.strides[-1]) * pitch

    def tap(self, t: Any) -> Any:
        """How far a tap lies from the first."""
        index: Any = int64(0)
        for k, e, d in zip(
            split_index(t, self.shape.kernel), self.data.size, self.shape.dilation, strict=True
        ):
            index = index * e + int64(k) * d
        return index * self.data.pitch

    def one(
        self, n: Any, lead: Any, g: Any, b: Any, corner: tuple[Any, Any], size: tuple[int, int]
    ) -> Stmt:
        """The sums of one tile, and what becomes of them."""
        shape, count = self.shape, len(self.vectors)
        positions = [(i, j) for i in range(size[0]) for j in range(size[1])]
        sums = local((len(positions) * self.block,), "int32")
        zero = tirx.Broadcast(tirx.const(0, "int32"), self.lanes)
        inside = shape.ci // shape.groups

        def at(r: int, v: int) -> int:
            return r * self.block + v * self.lanes

        def step(first: Any, weights: Any) -> Stmt:
            statements: list[Stmt] = []
            held = []
            for v in range(count):
                var = tirx.Var("w", f"int8x{self.lanes * QUAD}")
                begin = weights + v * self.lanes * QUAD
                value = vector_load(self.weight, begin, self.lanes * QUAD)
                statements.append(tirx.Bind(var, value))
                held.append(var)
            for r, (i, j) in enumerate(positions):
                four = self.four(first + self.offset(i, j))
                var = tirx.Var("x", str(four.ty.dtype))
                statements.append(tirx.Bind(var, four))
                for v in range(count):
                    total = vector_load(sums, at(r, v), self.lanes)
                    added = self.dot(total, var, held[v])
                    statements.append(vector_store(sums, added, at(r, v), self.lanes))
            return seq(*statements)

        def body(origin: Any) -> Stmt:
            def tap(t: Any) -> Stmt:
                weights = ((int64(g) * self.blocks + b) * shape.taps + t) * (
                    self.quads * self.block * QUAD
                )
                return bound(
                    origin + self.tap(t),
                    lambda begin: bound(
                        weights,
                        lambda packed: loop(
                            self.quads,
                            lambda q: step(
                                begin + int64(q) * QUAD, packed + int64(q) * (self.block * QUAD)
                            ),
                        ),
                    ),
                )

            return loop(shape.taps, tap)

        def finish(kept: Any) -> Stmt:
            def store_one(i: int, j: int, r: int, c: int, w: int) -> Stmt:
                place = self.place(lead, corner[0] + i, corner[1] + j)
                return vectorized(
                    w,
                    lambda x: self.give(
                        n, place, corner[0] + i,
                        int64(g) * self.co + int64(b) * self.block + (int64(c) + x),
                        load(sums, int64(r * self.block + c) + x),
                    ),
                )  # fmt: skip

            return seq(
                *(store_one(i, j, r, c, w) for r, (i, j) in enumerate(positions) for c, w in kept)
            )

        rest = self.co - (self.blocks - 1) * self.block
        if rest == self.block:
            last = finish(self.vectors)
        else:
            last = finish(columns_below(self.vectors, rest))
            if self.blocks > 1:
                last = tirx.IfThenElse(b < self.blocks - 1, finish(self.vectors), last)
        return seq(
            allocate(sums),
            *(
                vector_store(sums, zero, at(r, v), self.lanes)
                for r in range(len(positions))
                for v in range(count)
            ),
            bound(self.origin(n, lead, corner, int64(g) * inside), body),
            last,
        )

    def give(self, n: Any, place: tuple[Any, ...], row: Any, channel: Any, value: Any) -> Stmt:
        if self.shape.lead:
            return self.epilogue.store((*split_index(row, self.shape.lead), channel), value)
        return self.epilogue.store((n, *place, channel), value)

    # Four channels at once ---------------------------------------------------------------------

    def four(self, at: Any) -> Expr:
        """Four neighbouring channels of a position, in every lane where there is VNNI."""
        small = "int8" if self.data.flips else "uint8"
        quad = tirx.BufferLoad(self.data.flat, [tirx.Ramp(int64(at), int64(1), QUAD)])
        if not self.context.cpu.vnni:
            wide = tirx.Cast(f"int32x{QUAD}", quad)
            if small == "int8":
                wide = wide + tirx.Broadcast(tirx.const(128, "int32"), QUAD)
            return wide
        word = tirx.call_intrin("int32", "tirx.reinterpret", quad)
        if self.data.flips:
            word = tirx.BitwiseXor(word, tirx.const(-0x7F7F7F80, "int32"))
        lanes = tirx.Broadcast(word, self.lanes)
        return tirx.call_intrin(f"int8x{self.lanes * QUAD}", "tirx.reinterpret", lanes)

    def dot(self, total: Expr, four: Expr, weights: Expr) -> Expr:
        """The sums with four products added in each lane."""
        wide = f"int32x{self.lanes}"
        if not self.context.cpu.vnni:
            for j in range(QUAD):
                every = [QUAD * lane + j for lane in range(self.lanes)]
                picked = tirx.Cast(wide, tirx.Shuffle([weights], every))
                x = tirx.Shuffle([four], [j])
                total = total + tirx.Broadcast(x, self.lanes) * picked
            return total
        return tirx.call_llvm_pure_intrin(
            wide, "llvm.x86.avx512.vpdpbusd.512", total, four, weights
        )


class _Depthwise:
    """Each channel by itself: channels in the lanes, products in 16 bits, sums in 32."""

    def __init__(self, shape: Geometry, epilogue: Epilogue, context: Context) -> None:
        self.shape, self.epilogue, self.context = shape, epilogue, context
        self.data = _Data(shape, context, quads=False)

    def loops(self) -> Stmt:
        shape, cpu = self.shape, self.context.cpu
        lanes = cpu.lanes("int32")
        weight = self.context.views.flat(shape.weight)
        width = min(4, max(1, shape.out[-1]))
        share = self.context.share(shape.work * 16)
        spatial = (shape.batch, *shape.out[:-1])
        statements = [self.data.loops]

        def at(place: Sequence[Any], k: Sequence[Any]) -> list[Any]:
            return [
                p * s + int64(t) * d
                for p, s, t, d in zip(place, shape.strides, k, shape.dilation, strict=True)
            ]

        def run(
            n: Any, lead: Sequence[Any], column: Any, count: int, first: Any, size: int
        ) -> Stmt:
            def term(r: Any, lane: Any, t: Any) -> Any:
                channel = int64(first) + lane
                k = split_index(t, shape.kernel)
                index = self.data.at(n, at((*lead, column + r), k), channel)
                x = _unsigned(load(self.data.flat, index), self.data.flips)
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

        def task(index: Any) -> Stmt:
            n, *lead = split_index(index, spatial)
            full = shape.co // lanes
            parts = []
            for number, f, w in spans(shape.out[-1], width):

                def columns(j: Any, w: int = w, f: int = f) -> Stmt:
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

        statements.append(share(product(spatial), task))
        return seq(*statements)
