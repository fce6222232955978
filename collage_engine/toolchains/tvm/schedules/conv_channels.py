"""Convolution with output channels in the vector lanes.

For data with channels last, and for small channels-first images. The weight is packed
[groups, blocks, chunks, *kernel, channels of the chunk, block] so that a step of the reduction
reads one contiguous row of it; a register tile is some positions by one block of channels.
Products with a packed operand are written the same way: rows are positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    allocate,
    bound,
    f32,
    for_range,
    int64,
    load,
    local,
    loop,
    nest,
    prefetch,
    product,
    seq,
    split_index,
    store,
    vectorized,
    when,
    workspace,
)
from collage_engine.toolchains.tvm.program import shape_of
from collage_engine.toolchains.tvm.schedules.anchor import (
    Epilogue,
    columns_below,
    fits,
    tile,
)
from collage_engine.toolchains.tvm.schedules.conv_plan import (
    best_positions,
    image_of,
    is_plain,
    spans,
)
from collage_engine.toolchains.tvm.schedules.conv_shape import ConvShape, Prepared, prepare
from collage_engine.toolchains.tvm.schedules.pointwise import Context
from collage_engine.toolchains.tvm.schedules.transpose import (
    transposed_tile,
    vector_load,
    vector_store,
)


def write(shape: ConvShape, epilogue: Epilogue, context: Context) -> Stmt:
    if turns_by_group(shape, epilogue, context):
        # Each group of positions is turned where it is used, so it stays in the caches.
        nothing = Prepared(None, shape.ci, shape.size, None)
        return ChannelsWriter(shape, epilogue, context, nothing).by_chunks()
    return write_prepared(shape, epilogue, context)


def write_prepared(shape: ConvShape, epilogue: Any, context: Context) -> Stmt:
    prepared = prepare(shape, context, turn=True)
    return seq(prepared.loops, ChannelsWriter(shape, epilogue, context, prepared).all_tiles())


def turns_by_group(shape: ConvShape, epilogue: Epilogue, context: Context) -> bool:
    """Whether channels-first data is made channels last group by group."""
    lanes = context.cpu.lanes("float32")
    return (
        not shape.channels_last
        and is_plain(shape.taps, shape.has_padding)
        and all(s == 1 for s in shape.strides)
        and shape.groups == 1
        and shape.ci % lanes == 0
        and lanes >= 4
        and context.plan.get("turn", "group") == "group"
        and (
            "turn" in context.plan
            or (
                4 * product(shape_of(shape.weight)) <= context.cpu.l2_bytes // 2
                and 4 * shape.ci * product(shape.size) > context.cpu.l2_bytes // 2
            )
        )
        and epilogue.collapsed(2, len(shape.out)) is not None
    )


class ChannelsWriter:
    """Writes the loops of one convolution over its prepared data."""

    def __init__(self, shape: ConvShape, epilogue: Any, context: Context, data: Prepared) -> None:
        self.shape, self.epilogue, self.context, self.data = shape, epilogue, context, data
        cpu = context.cpu
        self.lanes = cpu.lanes("float32")
        self.groups, self.blocks, self.chunks, *_, self.chunk, self.block = shape_of(shape.weight)
        self.co = shape.co // self.groups
        self.ci = self.chunks * self.chunk
        self.plain = is_plain(shape.taps, shape.has_padding)
        self.flat = self.plain or len(shape.out) == 1
        """Whether positions are one run of rows of one column."""
        self.outer = () if self.flat else shape.out[:-2]
        self.image = image_of(shape.out, self.plain)
        self.tile = self.planned_tile() or best_positions(cpu, self.block // self.lanes, self.image)
        self.ahead_in_steps = context.cpu.threads == 1 and context.plan.get("ahead") != "tile"
        """Whether the next chunk is fetched a little in every step, or before each tile. In a
        loop that threads share LLVM knows of no two pointers that they differ: a prefetch in a
        step would make it store all sums there (2.5 times as slow)."""
        self.collapsed = epilogue.collapsed(1 if shape.channels_last else 2, len(shape.out))
        inside = 4 * product(shape_of(shape.weight)) <= cpu.l2_bytes // 2
        self.channels_inside = bool(context.plan.get("inside", inside))
        self.first: Any = 0
        """The first position that ``data`` holds, when it holds one group's only."""
        self.vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]

    def planned_tile(self) -> tuple[int, int] | None:
        """The tile that tuning chose, if it did and it can be."""
        rows, columns = (int(self.context.plan.get(k, 0)) for k in ("rows", "columns"))
        vectors = self.block // self.lanes
        if not (0 < rows <= self.image[0] and 0 < columns <= self.image[1]):
            return None
        if rows > 1 and columns != self.image[1]:
            return None
        return (rows, columns) if fits(self.context.cpu, rows * columns, vectors) else None

    # Where things are --------------------------------------------------------------------------

    def place(self, lead: tuple[Any, ...], row: Any, column: Any) -> tuple[Any, ...]:
        return (row,) if self.flat else (*lead, row, column)

    def input(self, n: Any, c: Any, place: tuple[Any, ...], k: tuple[Any, ...]) -> Any:
        """The input element that tap ``k`` of the output at ``place`` reads."""
        shape, data = self.shape, self.data
        if data.loops is None and not shape.channels_last:
            return load(data.flat, (place[-1] - self.first) * data.pitch + c)
        if self.plain:
            spatial: Any = place[-1]
        else:
            spatial = int64(0)
            for p, e, s, t, d in zip(
                place, data.size, shape.strides, k, shape.dilation, strict=True
            ):
                spatial = spatial * e + (p * s + t * d)
        return load(data.flat, (int64(n) * product(data.size) + spatial) * data.pitch + c)

    def give(self, n: Any, place: tuple[Any, ...], channel: Any, value: Any) -> Stmt:
        """Stores a finished output element."""
        shape, collapsed = self.shape, self.collapsed
        if self.plain:
            if collapsed is not None and shape.channels_last:
                return collapsed.store((n,), place[-1], (channel,), value)
            if collapsed is not None:
                return collapsed.store((n, channel), place[-1], (), value)
            place = split_index(place[-1], shape.out)
        return self.epilogue.store(shape.index(n, channel, place), value)

    def block_columns(self, b: Any, body: Callable[[Any], Stmt]) -> Stmt:
        """The body for the columns that exist in channel block ``b``."""
        rest = self.co - (self.blocks - 1) * self.block
        if rest == self.block:
            return body(self.vectors)
        last = body(columns_below(self.vectors, rest))
        if self.blocks == 1:
            return last
        return tirx.IfThenElse(b < self.blocks - 1, body(self.vectors), last)

    # Tiles -------------------------------------------------------------------------------------

    def product_tile(
        self,
        n: Any,
        lead: tuple[Any, ...],
        g: Any,
        b: Any,
        chunk: Any,
        corner: tuple[Any, Any],
        size: tuple[int, int],
        finish: Callable[[tuple[Any, Any], Any, Any], Stmt],
        columns: Any = None,
        start: Callable[[tuple[Any, Any], Any], Any] | None = None,
        ahead: Callable[[Any], Stmt] | None = None,
    ) -> Stmt:
        """Sums over one chunk of input channels for ``size`` positions and one block."""
        shape, weight = self.shape, self.shape.weight

        def position(r: Any) -> tuple[Any, Any]:
            i, j = split_index(r, size)
            return corner[0] + i, corner[1] + j

        def reduce(step: Callable[..., Stmt]) -> Stmt:
            # One loop over all taps: LLVM would unroll a loop over three completely.
            def tap(t: Any) -> Stmt:
                k = split_index(t, shape.kernel)
                if ahead is None or not self.ahead_in_steps:
                    return loop(self.chunk, lambda c: step(c, *k))
                return loop(
                    self.chunk, lambda c: seq(ahead(int64(t) * self.chunk + c), step(c, *k))
                )

            first = None
            if ahead is not None and not self.ahead_in_steps:
                first = loop(shape.taps * self.chunk, ahead)
            return seq(first, loop(shape.taps, tap))

        def term(r: Any, lane: Any, c: Any, *k: Any) -> Any:
            channel = g * self.ci + (int64(chunk) * self.chunk + c)
            here = self.input(n, channel, self.place(lead, *position(r)), k)
            return here * load(weight, g, b, chunk, *k, c, lane)

        return tile(
            size[0] * size[1],
            self.vectors,
            reduce,
            term,
            lambda r, lane, value: finish(position(r), lane, value),
            columns,
            None if start is None else lambda r, lane: start(position(r), lane),
        )

    def all_tiles(self) -> Stmt:
        if self.chunks == 1 and (self.shape.channels_last or not self.turns_back()):
            return self.in_registers()
        return self.by_chunks()

    def turns_back(self) -> bool:
        """Whether sums leave channels first by transposed squares."""
        return (
            not self.shape.channels_last
            and self.collapsed is not None
            and self.lanes >= 4
            and product(self.image) >= self.lanes
        )

    def groups_of(self) -> tuple[int, int, int]:
        """(tile rows per group, groups, image rows of the last group).

        As many as their sums fit the first-level cache beside the weights, evenly; no group has
        fewer positions than a vector has lanes unless the image has.
        """
        (rows, columns), height = self.image, self.tile[0]
        full = rows // height
        row_bytes = 4 * height * columns * self.block
        most = max(1, min(full, self.context.cpu.l1_bytes * 2 // 3 // row_bytes))
        most = max(1, min(full, int(self.context.plan.get("group", most))))
        per_group = -(-full // -(-full // most))
        while True:
            groups = -(-full // per_group)
            last = rows - (groups - 1) * per_group * height
            smallest = min(last, per_group * height) if groups > 1 else last
            if groups == 1 or smallest * columns >= self.lanes:
                return per_group, groups, last
            per_group += 1

    def spread(self, extents: tuple[int, ...], body: Callable[..., Stmt]) -> Stmt:
        """The body over batch, outer axes and ``extents``, and over blocks of channels."""
        share = self.context.share(self.shape.work)
        spatial = (self.shape.batch, *self.outer, *extents)
        channels = (self.groups, self.blocks)
        count = len(spatial)

        def task(index: Any) -> Stmt:
            if self.channels_inside:
                parts = split_index(index, (*spatial, *channels))
                where, (g, b) = parts[:count], parts[count:]
            else:
                parts = split_index(index, (*channels, *spatial))
                (g, b), where = parts[:2], parts[2:]
            n, rest = where[0], where[1:]
            lead = rest[: len(self.outer)]
            return body(n, lead, g, b, *rest[len(self.outer) :])

        return share(product((*spatial, *channels)), task)

    def in_registers(self) -> Stmt:
        """Each tile's sums stay in registers until they are finished."""
        (rows, columns), (height, width) = self.image, self.tile
        statements = []
        for count_r, first_r, h in spans(rows, height):
            for count_c, first_c, w in spans(columns, width):

                def body(
                    n: Any,
                    lead: Any,
                    g: Any,
                    b: Any,
                    i: Any,
                    j: Any,
                    h: int = h,
                    w: int = w,
                    first_r: int = first_r,
                    first_c: int = first_c,
                ) -> Stmt:
                    corner = (int64(i) * h + first_r, int64(j) * w + first_c)

                    def finish(position: tuple[Any, Any], lane: Any, value: Any) -> Stmt:
                        channel = g * self.co + b * self.block + lane
                        return self.give(n, self.place(lead, *position), channel, value)

                    return self.block_columns(
                        b,
                        lambda kept: self.product_tile(
                            n, lead, g, b, int64(0), corner, (h, w), finish, kept
                        ),
                    )

                statements.append(self.spread((count_r, count_c), body))
        return seq(*statements)

    def by_chunks(self) -> Stmt:
        """Groups of rows whose sums wait in a buffer while all chunks are added."""
        (rows, columns), (height, width) = self.image, self.tile
        per_group, groups, last_rows = self.groups_of()
        full_rows, rest_rows = divmod(rows, height)
        most = max(per_group * height if groups > 1 else 0, last_rows)
        sums = workspace((most * columns * self.block,), name="sums")
        by_group = self.data.flat is None
        if by_group:
            pitch = self.shape.ci + (self.lanes if self.shape.ci % 512 == 0 else 0)
            turned_data = workspace((most * pitch,), name="turned")
            self.data = Prepared(turned_data, pitch, self.shape.size, None)

        def body(n: Any, lead: Any, g: Any, b: Any, group: Any) -> Stmt:
            first = int64(group) * (per_group * height)
            last = group == groups - 1 if groups > 1 else True
            if full_rows % per_group:
                tiles = tirx.Select(
                    last, int64(full_rows - (groups - 1) * per_group), int64(per_group)
                )
            else:
                tiles = int64(per_group)
            count: Any = int64(per_group * height)
            if groups == 1 or last_rows != per_group * height:
                count = tirx.Select(last, int64(last_rows), count) if groups > 1 else last_rows
                count = int64(count)

            def at(position: tuple[Any, Any], lane: Any) -> Any:
                row, column = position
                return ((row - first) * columns + column) * self.block + lane

            steps = self.shape.taps * self.chunk
            tiles_of_group = per_group * len(spans(columns, width)) * max(1, columns // width)
            stride = -(-self.block // tiles_of_group)
            flat_weight = self.context.views.flat(self.shape.weight)

            def across(chunk: Any, row: Any, h: int) -> Stmt:
                # While this chunk is used, the next one is fetched, a little in every step.
                number = (row - first) // height * -(-columns // width)
                next_chunk = ((int64(g) * self.blocks + b) * self.chunks + chunk + 1) * (
                    steps * self.block
                )

                def one(column: Any, w: int) -> Stmt:
                    begin = next_chunk + (number + column // width) * (steps * stride)

                    def ahead(step: Any) -> Stmt:
                        at = begin + step * stride
                        return seq(*(prefetch(flat_weight, at + o) for o in range(0, stride, 16)))

                    return self.product_tile(
                        n, lead, g, b, chunk, (row, column), (h, w),
                        lambda position, lane, value: store(sums, value, at(position, lane)),
                        None,
                        lambda position, lane: load(sums, at(position, lane)),
                        ahead,
                    )  # fmt: skip

                return seq(
                    *(
                        loop(number, lambda j, w=w, f=f: one(int64(j) * w + f, w))
                        for number, f, w in spans(columns, width)
                    )
                )

            def add(chunk: Any) -> Stmt:
                statements = [for_range(tiles, lambda i: across(chunk, first + i * height, height))]
                if rest_rows:
                    rest = across(chunk, int64(full_rows * height), rest_rows)
                    statements.append(when(last, rest) or seq())
                return seq(*statements)

            def clear(i: Any) -> Stmt:
                return nest(
                    (columns, len(self.vectors)),
                    lambda j, v: vectorized(
                        self.lanes,
                        lambda x: store(
                            sums, f32(0.0), (i * columns + j) * self.block + v * self.lanes + x
                        ),
                    ),
                )

            def finish(i: Any, kept: Any) -> Stmt:
                def point(j: Any) -> Stmt:
                    place = self.place(lead, first + i, j)

                    def vector(c: int, w: int) -> Stmt:
                        return vectorized(
                            w,
                            lambda x: self.give(
                                n, place, g * self.co + b * self.block + (int64(c) + x),
                                load(sums, (i * columns + j) * self.block + (int64(c) + x)),
                            ),
                        )  # fmt: skip

                    return seq(*(vector(c, w) for c, w in kept))

                return loop(columns, point)

            def turned(kept: Any) -> Stmt:
                """Positions into the lanes: squares of the sums, transposed; the last overlaps."""
                total = count * columns
                squares = (total + (self.lanes - 1)) // self.lanes
                origin: Any = int64(0)
                for p, e in zip((*lead, first), (*self.outer, rows), strict=True):
                    origin = origin * e + p

                def square(i: Any) -> Stmt:
                    start = tirx.min(i * self.lanes, total - self.lanes)

                    def part(c: Any, w: int) -> Stmt:
                        square_ = local((self.lanes * self.lanes,), name="square")

                        def channel(j: Any) -> Stmt:
                            where = g * self.co + b * self.block + (c + j)
                            return vectorized(
                                self.lanes,
                                lambda x: self.collapsed.store(
                                    (n, where),
                                    origin * columns + start + x,
                                    (),
                                    load(square_, int64(j) * self.lanes + x),
                                ),
                            )

                        return seq(
                            allocate(square_),
                            transposed_tile(
                                self.lanes,
                                lambda r: vector_load(
                                    sums, (start + r) * self.block + c, self.lanes
                                ),
                                lambda j, v: vector_store(square_, v, j * self.lanes, self.lanes),
                                columns=w,
                            ),
                            loop(w, channel),
                        )

                    if kept == self.vectors:
                        return loop(len(kept), lambda v: part(int64(v) * self.lanes, self.lanes))
                    merged: dict[int, int] = {}
                    for c, w in kept:
                        merged[c // self.lanes] = merged.get(c // self.lanes, 0) + w
                    return seq(*(part(v * self.lanes, w) for v, w in merged.items()))

                return for_range(squares, square)

            def leave(kept: Any) -> Stmt:
                if self.turns_back():
                    return turned(kept)
                return for_range(count, lambda i: finish(i, kept))

            return seq(
                allocate(sums),
                for_range(count, clear),
                loop(self.chunks, add),
                self.block_columns(b, leave),
            )

        if not by_group:
            return self.spread((groups,), body)

        def task(index: Any) -> Stmt:
            n, group = split_index(index, (self.shape.batch, groups))
            self.first = int64(group) * (per_group * height)
            held: Any = int64(last_rows if groups == 1 else per_group * height)
            if groups > 1 and last_rows != per_group * height:
                held = tirx.Select(group == groups - 1, int64(last_rows), held)
            return seq(
                allocate(turned_data),
                self.turn(n, turned_data, pitch, held),
                loop(self.blocks, lambda b: body(n, (), int64(0), b, group)),
            )

        share = self.context.share(self.shape.work)
        return share(self.shape.batch * groups, task)

    def turn(self, n: Any, target: Any, pitch: int, count: Any) -> Stmt:
        """The group's positions of all channels, channels last; the last square overlaps."""
        shape, lanes = self.shape, self.lanes
        plane = product(shape.size)
        source = self.context.views.flat(shape.data)

        def square(c: Any, i: Any) -> Stmt:
            start = tirx.min(int64(i) * lanes, count - lanes)
            channel = (int64(n) * shape.ci + int64(c) * lanes) * plane + self.first + start
            return bound(
                channel,
                lambda begin: bound(
                    start * pitch + int64(c) * lanes,
                    lambda end: transposed_tile(
                        lanes,
                        lambda r: vector_load(source, begin + r * plane, lanes),
                        lambda j, v: vector_store(target, v, end + j * pitch, lanes),
                    ),
                ),
            )

        squares = (count + (lanes - 1)) // lanes
        return loop(shape.ci // lanes, lambda c: for_range(squares, lambda i: square(c, i)))
