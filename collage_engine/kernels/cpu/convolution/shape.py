"""Derives the sizes of a convolution, and copies its input with a rim of zeros.

Some of the sizes are those that convolutions of every layout and element type have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import tirx
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
        """Tells whether output positions are input positions, one by one."""
        return self.taps == 1 and not self.has_padding and all(s == 1 for s in self.strides)

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


def fill_run(target: Any, at: Index, size: int, lanes: int, value: Callable[[Index], Expr]) -> Stmt:
    """Returns loops that store contiguous elements of a flat buffer, in vectors.

    Args:
        target: The flat buffer that is written.
        at: The index of the first element that is written.
        size: The number of elements.
        lanes: The lanes of a vector.
        value: A function that returns an element by its place in the run.
    """

    def vector(offset: Index, width: int) -> Stmt:
        return vectorized(width, lambda x: store(target, value(offset + x), at + (offset + x)))

    return in_vectors(size, lanes, vector)


def zeros(_: Index) -> Expr:
    """Returns the element of a rim of zeros."""
    return f32(0.0)


def run_of(source: Any, start: Index) -> Callable[[Index], Expr]:
    """Returns what reads a run of a flat buffer; numbers held in bfloat16 become float32."""

    def element(offset: Index) -> Expr:
        value = load(source, start + offset)
        return real(value) if str(source.dtype) == "uint16" else value

    return element


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
    """Data that a kernel reads at ``flat[position · pitch + channel]``, channels last."""

    flat: Any
    pitch: int
    """Elements from one position to the next."""
    size: tuple[int, ...]
    """Positions that the data has along each spatial axis."""
    loops: Stmt | None


def prepare(shape: ConvShape, context: Context) -> Prepared:
    """Returns the data channels last, with its rim of zeros, and without harmful distances.

    A copy with a few spare channels per position (``spread_pitch``) costs next to nothing beside a
    tile whose positions compete for the same lines. Without cause there is no copy.
    """
    lanes = context.cpu.lanes("float32")
    pitch = spread_pitch(shape.ci, lanes)
    if not shape.channels_last:
        return _turned(shape, context, pitch)
    if prod(shape.out) <= 4:
        pitch = shape.ci
    if not shape.has_padding and pitch == shape.ci:
        return Prepared(context.views.flat(shape.data), pitch, shape.size, None)
    buffer = workspace((shape.batch * prod(shape.padded) * pitch,), name="prepared")
    context.buffers.append(buffer)
    loops = pad_into(shape, context, buffer, pitch, run_of, zeros)
    return Prepared(buffer, pitch, shape.padded, loops)


def _turned(shape: ConvShape, context: Context, pitch: int) -> Prepared:
    """Turns channels-first data into a channels-last copy with its rim of zeros.

    Squares of vectors are transposed in registers; the last ones of a row overlap those before.
    """
    lanes = context.cpu.lanes("float32")
    size, positions = shape.padded, prod(shape.size)
    length = shape.batch * prod(size) * pitch
    buffer = workspace((length + lanes,), name="prepared")
    context.buffers.append(buffer)
    source = context.views.flat(shape.data)
    share = context.share(shape.batch * shape.ci * prod(size))
    clear = None
    if shape.has_padding:
        row = size[-1] * pitch
        clear = share(
            shape.batch * prod(size[:-1]),
            lambda i: fill_run(buffer, int64(i) * row, row, lanes, zeros),
        )

    def target(n: Index, position: Index, c: Index) -> Any:
        index: Index = int64(n)
        for p, e, b in zip(split_index(position, shape.size), size, shape.before, strict=True):
            index = index * e + (p + b)
        return index * pitch + c

    def origin(n: Index, c: Index, position: Index) -> Any:
        return (int64(n) * shape.ci + c) * positions + position

    def square(n: Index, c: Index, p: Index) -> Stmt:
        def put(j: Index, value: Expr) -> Stmt:
            return vector_store(buffer, value, target(n, p + j, c), lanes)

        return bound(
            origin(n, c, p),
            lambda begin: transposed_tile(
                lanes, lambda i: vector_load(source, begin + i * positions, lanes), put
            ),
        )

    def single(n: Index, c: Index, p: Index) -> Stmt:
        return store(buffer, load(source, origin(n, c, p)), target(n, p, c))

    side = lanes if lanes >= 4 and min(shape.ci, positions) >= lanes else 1
    one = square if side > 1 else single

    def start(number: Index, count: int) -> Any:
        return tirx.min(int64(number) * side, int64(count - side))

    def block(index: Index) -> Stmt:
        n, b = split_index(index, (shape.batch, -(-shape.ci // side)))
        c = start(b, shape.ci)
        return loop(-(-positions // side), lambda p: one(n, c, start(p, positions)))

    loops = seq(
        # Keeps the buffer longer than its source, also after TVM has shortened it to what is
        # used: StorageRewrite would put it in the place of a source of equal size, an
        # intermediate of the kernel, while that is still read (its check misses bound values).
        store(buffer, f32(0.0), int64(length + lanes - 1)),
        clear,
        share(shape.batch * -(-shape.ci // side), block),
    )
    return Prepared(buffer, pitch, size, loops)


def pad_into(
    shape: ConvSizes,
    context: Context,
    buffer: Buffer,
    pitch: int,
    copied: Callable[[Any, Index], Callable[[Index], Expr]],
    outside: Callable[[Index], Expr],
) -> Stmt:
    """Returns loops that copy channels-last data into a flat buffer with a rim.

    Args:
        shape: The sizes of the convolution.
        context: The context in which the kernel is written.
        buffer: The flat buffer.
        pitch: Elements from one position to the next; those behind the channels are like the rim.
        copied: A function from the flat data and a start in it to what gives the run's elements.
        outside: A function that gives the elements of the rim.
    """
    lanes = context.cpu.lanes(str(buffer.dtype))
    padded, size, before, after = shape.padded, shape.size, shape.before, shape.after
    source = context.views.flat(shape.data)

    def rim(at: Index, count: int) -> Stmt | None:
        return fill_run(buffer, at, count, lanes, outside) if count else None

    def row(index: Index) -> Stmt:
        n, *place = split_index(index, (shape.batch, *padded[:-1]))
        inside = all_of(
            [
                test
                for p, b, s, a in zip(place, before, size, after, strict=False)
                for test in ((p >= b) if b else True, (p < b + s) if a else True)
            ]
        )
        start: Index = int64(n)
        for p, b, s in zip(place, before, size, strict=False):
            start = start * s + (p - b)
        start = start * (size[-1] * shape.ci)
        at = int64(index) * (padded[-1] * pitch)
        first = at + before[-1] * pitch

        def point(x: Index) -> Stmt:
            to = first + x * pitch
            run = fill_run(buffer, to, shape.ci, lanes, copied(source, start + x * shape.ci))
            return seq(run, rim(to + shape.ci, pitch - shape.ci))

        whole = size[-1] * shape.ci
        body = seq(
            rim(at, before[-1] * pitch),
            fill_run(buffer, first, whole, lanes, copied(source, start))
            if pitch == shape.ci
            else loop(size[-1], point),
            rim(first + size[-1] * pitch, after[-1] * pitch),
        )
        return when(inside, body, rim(at, padded[-1] * pitch)) or seq()

    share = context.share(shape.batch * prod(padded) * pitch)
    return share(shape.batch * prod(padded[:-1]), row)
