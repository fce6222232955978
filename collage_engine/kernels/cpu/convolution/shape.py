"""Derives the sizes of a convolution, and copies its input with a rim of zeros.

Some of the sizes are those that convolutions of every layout and element type have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm.ir import Expr
from tvm.tirx import Buffer

from collage_engine.kernels.bfloat16_numbers import real
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.register_transpose import (
    transposed_tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.expressions import NotUnderstood, loads
from collage_engine.kernels.program import Stage
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    all_of,
    bound,
    f32,
    in_vectors,
    int64,
    load,
    loop,
    seq,
    split_index,
    store,
    vectorized,
    when,
    workspace,
)


@dataclass(frozen=True, kw_only=True)
class ConvSizes:
    """Extents of an N-dimensional convolution; spatial tuples have one entry per dimension."""

    data: Any
    weight: Any
    """The weight's buffer, packed as the rule that writes the kernel wants it."""
    batch: int
    ci: int
    co: int
    """``ci`` and ``co``: input and output channels of all groups together."""
    groups: int
    size: tuple[int, ...]
    out: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    """``before`` and ``after``: elements of padding before and behind each spatial axis."""

    @property
    def padded(self) -> tuple[int, ...]:
        """Return the spatial sizes with the padding."""
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def has_padding(self) -> bool:
        """Tells whether there is any padding."""
        return any(self.before) or any(self.after)

    @property
    def pointwise(self) -> bool:
        """Tells whether every output position reads one input position, those skipped left out."""
        return self.taps == 1 and not self.has_padding

    @property
    def taps(self) -> int:
        """Returns the taps of the whole kernel."""
        return prod(self.kernel)


def of_points(data: Any, weight: Any, rows: int, depth: int, columns: int) -> dict[str, Any]:
    """Returns the fields that make a matrix product a convolution of points.

    Rows of the left operand are positions along one spatial axis, columns of the right one are
    output channels, and the kernel is a single tap.
    """
    return {
        "data": data,
        "weight": weight,
        "batch": 1,
        "ci": depth,
        "co": columns,
        "groups": 1,
        "size": (rows,),
        "out": (rows,),
        "kernel": (1,),
        "strides": (1,),
        "dilation": (1,),
        "before": (0,),
        "after": (0,),
    }


@dataclass(frozen=True, kw_only=True)
class ConvShape(ConvSizes):
    """The sizes of a convolution in float32, of data with channels first or last."""

    channels_last: bool

    @staticmethod
    def of(problem: ConvProblem, anchor: Stage) -> ConvShape:
        """Returns the sizes of a problem, with the buffers that its block reads.

        Raises:
            NotUnderstood: The block does not read two tensors (something was fused in front).
        """
        sources = [access.source for access in loads(anchor.value)]
        if len(sources) != 2:
            raise NotUnderstood("a convolution that does not read two tensors")
        data, weight = sources
        return ConvShape(
            channels_last=problem.channels_last,
            data=data,
            weight=weight,
            batch=problem.data[0],
            ci=problem.ci,
            co=problem.co,
            size=problem.size,
            out=problem.out,
            groups=problem.groups,
            kernel=problem.kernel,
            strides=problem.strides,
            dilation=problem.dilation,
            before=problem.before,
            after=problem.after,
        )

    @property
    def work(self) -> int:
        """Returns roughly how many vector multiply-adds the convolution takes.

        ``Context.share`` decides by it whether sharing the loops among threads is worthwhile.
        """
        products = self.batch * self.co * prod(self.out) * self.taps * self.ci // self.groups
        return products // 16

    def index(self, n: Index, c: Index, spatial: Sequence[Index]) -> tuple[Index, ...]:
        """Returns the indices of an element of the data or the output, in its layout's order."""
        return (n, *spatial, c) if self.channels_last else (n, c, *spatial)


def copy_run(
    target: Any, at: Index, source: Any, start: Index, size: int, lanes: int, zero: bool = False
) -> Stmt:
    """Returns loops that copy contiguous elements between flat buffers, or set them to zero.

    Numbers that are held in bfloat16 become float32.

    Args:
        target: The flat buffer that is written.
        at: The index of the first element that is written.
        source: The flat buffer that is read.
        start: The index of the first element that is read.
        size: The number of elements.
        lanes: The lanes of a vector.
        zero: Whether the elements are set to zero and nothing is read.
    """

    def vector(offset: Index, width: int) -> Stmt:
        def lane(x: Index) -> Stmt:
            value = f32(0.0) if zero else load(source, start + (offset + x))
            if not zero and str(source.dtype) == "uint16":
                value = real(value)
            return store(target, value, at + (offset + x))

        return vectorized(width, lane)

    return in_vectors(size, lanes, vector)


CONFLICTING_BYTES = 2 << 10
"""Distances in memory whose multiples compete for the same few lines of the first-level cache.
Chosen: half of the 4 KiB after which the sets of any cache that is indexed within a page recur."""


def spread_pitch(channels: int, lanes: int) -> int:
    """Return the elements from one position to the next, channels last.

    Where neighbouring positions would lie a multiple of ``CONFLICTING_BYTES`` apart there are a few
    spare channels for each.
    """
    return channels + (lanes if 4 * channels % CONFLICTING_BYTES == 0 else 0)


@dataclass(frozen=True)
class Prepared:
    """Data that a kernel reads at ``flat[position · pitch + channel]``, or channels first."""

    flat: Any
    pitch: int
    """Elements from one position to the next where channels are last; 1 where channels are
    first."""
    size: tuple[int, ...]
    """Positions that the data has along each spatial axis."""
    loops: Stmt | None
    sampled: bool = False
    """Whether the buffer holds only the positions that strides reach."""


def prepare(shape: ConvShape, context: Context, turn: bool = False) -> Prepared:
    """Adds the rim of zeros, drops what strides skip, and avoids harmful distances.

    A copy with a few spare channels per position (``spread_pitch``) costs next to nothing beside a
    tile whose positions compete for the same lines. Without cause there is no copy. ``turn``:
    channels first becomes channels last.
    """
    lanes = context.cpu.lanes("float32")
    sampled = shape.taps == 1 and any(s > 1 for s in shape.strides) and not shape.has_padding
    if turn and not shape.channels_last:
        return _turned(shape, context, sampled)
    pitch = shape.ci if shape.channels_last else 1
    if shape.channels_last and prod(shape.out) > 4:
        pitch = spread_pitch(shape.ci, lanes)
    if not shape.has_padding and not sampled and pitch in (1, shape.ci):
        return Prepared(context.views.flat(shape.data), pitch, shape.size, None)
    size = shape.out if sampled else shape.padded
    planes = shape.batch if shape.channels_last else shape.batch * shape.ci
    buffer = workspace((planes * prod(size) * pitch,), name="prepared")
    context.buffers.append(buffer)
    source = context.views.flat(shape.data)
    share = context.share(shape.batch * shape.ci * prod(shape.padded))

    def point(at: Index, start: Index) -> Stmt:
        return copy_run(buffer, at * pitch, source, start * shape.ci, shape.ci, lanes)

    if sampled:

        def sampled_row(index: Index) -> Stmt:
            plane, *place = split_index(index, (planes, *size[:-1]))
            start: Index = int64(plane)
            for p, s, e in zip(place, shape.strides, shape.size, strict=False):
                start = start * e + p * s
            start = start * shape.size[-1]
            at = int64(index) * size[-1]
            step = shape.strides[-1]
            if shape.channels_last:
                return loop(size[-1], lambda x: point(at + x, start + x * step))
            return loop(size[-1], lambda x: store(buffer, load(source, start + x * step), at + x))

        loops = share(planes * prod(size[:-1]), sampled_row)
        return Prepared(buffer, pitch, size, loops, True)
    return Prepared(buffer, pitch, size, pad_into(shape, context, buffer, pitch))


def _turned(shape: ConvShape, context: Context, sampled: bool) -> Prepared:
    """Turns channels-first data into a channels-last copy with its rim of zeros."""
    lanes = context.cpu.lanes("float32")
    size = shape.out if sampled else shape.padded
    step = shape.strides if sampled else (1,) * len(size)
    pitch = spread_pitch(shape.ci, lanes)
    length = shape.batch * prod(size) * pitch
    buffer = workspace((length + lanes,), name="prepared")
    context.buffers.append(buffer)
    source = context.views.flat(shape.data)
    plane = prod(shape.size)
    before = (0,) * len(size) if sampled else shape.before
    inner = shape.out if sampled else shape.size
    share = context.share(shape.batch * shape.ci * prod(shape.padded))
    clear = None
    if shape.has_padding:
        row = size[-1] * pitch
        clear = share(
            shape.batch * prod(size[:-1]),
            lambda i: copy_run(buffer, int64(i) * row, None, 0, row, lanes, zero=True),
        )

    def target(n: Index, position: Index, c: Index) -> Any:
        index: Index = int64(n)
        for p, e, b in zip(split_index(position, inner), size, before, strict=True):
            index = index * e + (p + b)
        return index * pitch + c

    def origin(n: Index, c: Index, position: Index) -> Any:
        if not sampled:
            return (int64(n) * shape.ci + c) * plane + position
        index: Index = int64(n) * shape.ci + c
        for p, s, e in zip(split_index(position, inner), step, shape.size, strict=True):
            index = index * e + p * s
        return index

    positions = prod(inner)
    squares = 0 if sampled or lanes < 4 else positions // lanes

    def square(n: Index, c: Index, p: Index) -> Stmt:
        def put(j: Index, value: Expr) -> Stmt:
            return vector_store(buffer, value, target(n, p + j, c), lanes)

        return bound(
            origin(n, c, p),
            lambda begin: transposed_tile(
                lanes, lambda i: vector_load(source, begin + i * plane, lanes), put
            ),
        )

    def single(n: Index, first: Index, count: int, p: Index) -> Stmt:
        return loop(
            count,
            lambda c: store(buffer, load(source, origin(n, first + c, p)), target(n, p, first + c)),
        )

    blocks, rest = divmod(shape.ci, lanes)
    if squares == 0:
        blocks, rest = 0, shape.ci

    def block(index: Index) -> Stmt:
        n, b = split_index(index, (shape.batch, blocks))
        c = int64(b) * lanes
        return seq(
            loop(squares, lambda p: square(n, c, int64(p) * lanes)),
            loop(
                positions - squares * lanes,
                lambda p: single(n, c, lanes, int64(squares * lanes) + p),
            )
            if positions % lanes
            else None,
        )

    loops = seq(
        # Keeps the buffer longer than its source, also after TVM has shortened it to what is
        # used: StorageRewrite would put it in the place of a source of equal size, an
        # intermediate of the kernel, while that is still read (its check misses bound values).
        store(buffer, f32(0.0), int64(length + lanes - 1)),
        clear,
        share(shape.batch * blocks, block) if blocks else None,
        share(
            shape.batch * positions,
            lambda i: single(
                split_index(i, (shape.batch, positions))[0],
                int64(blocks * lanes),
                rest,
                split_index(i, (shape.batch, positions))[1],
            ),
        )
        if rest
        else None,
    )
    return Prepared(buffer, pitch, size, loops, sampled)


def pad_into(shape: ConvShape, context: Context, buffer: Buffer, pitch: int) -> Stmt:
    """Returns loops that copy the data into a flat buffer with its rim of zeros.

    Args:
        shape: The sizes of the convolution.
        context: The context in which the kernel is written.
        buffer: The flat buffer.
        pitch: Elements from one position to the next, where channels are last.
    """
    lanes = context.cpu.lanes("float32")
    padded = shape.padded
    source = context.views.flat(shape.data)
    unit = shape.ci if shape.channels_last else 1
    planes = shape.batch if shape.channels_last else shape.batch * shape.ci
    outer = padded[:-1]
    size, before, after = shape.size, shape.before, shape.after

    def zeros(at: Index, positions: int) -> Stmt:
        return copy_run(buffer, at, None, 0, positions * pitch, lanes, zero=True)

    def row(index: Index) -> Stmt:
        plane, *place = split_index(index, (planes, *outer))
        inside = all_of(
            [
                test
                for p, b, s, a in zip(place, before, size, after, strict=False)
                for test in ((p >= b) if b else True, (p < b + s) if a else True)
            ]
        )
        start: Index = int64(plane)
        for p, b, s in zip(place, before, size, strict=False):
            start = start * s + (p - b)
        at = int64(index) * (padded[-1] * pitch)
        begin = start * (size[-1] * unit)
        if pitch == unit:
            middle = copy_run(
                buffer, at + before[-1] * pitch, source, begin, size[-1] * unit, lanes
            )
        else:
            middle = loop(
                size[-1],
                lambda x: copy_run(
                    buffer, at + (before[-1] + x) * pitch, source, begin + x * unit, unit, lanes
                ),
            )
        body = seq(
            zeros(at, before[-1]) if before[-1] else None,
            zeros(at + (before[-1] + size[-1]) * pitch, after[-1]) if after[-1] else None,
            middle,
        )
        return when(inside, body, zeros(at, padded[-1])) or seq()

    share = context.share(shape.batch * shape.ci * prod(shape.padded))
    return share(planes * prod(outer), row)
