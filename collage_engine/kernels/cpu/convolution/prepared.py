"""Copies the input of a convolution with a rim of zeros, or padded and split by strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm.ir import Expr
from tvm.tirx import Buffer

from collage_engine.kernels.bfloat16_numbers import real
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.target import MOST_LANES
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    all_of,
    f32,
    in_vectors,
    int64,
    load,
    loop,
    nest,
    seq,
    split_index,
    store,
    vectorized,
    when,
    workspace,
)


def fill_run(target: Any, at: Index, size: int, lanes: int, value: Callable[[Index], Expr]) -> Stmt:
    """Return loops that store contiguous elements of a flat buffer, in vectors.

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
    """Return the element of a rim of zeros."""
    return f32(0.0)


def run_of(source: Any, start: Index) -> Callable[[Index], Expr]:
    """Return what reads a run of a flat buffer; numbers held in bfloat16 become float32."""

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


def prepare(problem: ConvProblem, context: Context) -> Prepared:
    """Return the data channels last, with its rim of zeros, and without harmful distances.

    A copy with a few spare channels per position (``spread_pitch``) costs next to nothing beside a
    tile whose positions compete for the same lines. Without cause there is no copy.
    """
    lanes = context.cpu.lanes("float32")
    pitch = spread_pitch(problem.ci, lanes)
    if not problem.channels_last:
        return _turned(problem, context, pitch)
    if prod(problem.out) <= 4:
        pitch = problem.ci
    if not problem.is_padded and pitch == problem.ci:
        return Prepared(context.views.flat(context.data), pitch, problem.size, None)
    buffer = workspace((problem.batch * prod(problem.padded) * pitch,), name="prepared")
    context.buffers.append(buffer)
    loops = pad_into(problem, context, buffer, pitch, run_of, zeros)
    return Prepared(buffer, pitch, problem.padded, loops)


def _turned(problem: ConvProblem, context: Context, pitch: int) -> Prepared:
    """Turn channels-first data into a channels-last copy with its rim of zeros."""
    lanes = context.cpu.lanes("float32")
    size, positions = problem.padded, prod(problem.size)
    length = problem.batch * prod(size) * pitch
    buffer = workspace((length + lanes,), name="prepared")
    context.buffers.append(buffer)
    source = context.views.flat(context.data)
    clear = None
    if problem.is_padded:
        row = size[-1] * pitch
        clear = context.share(problem.batch * problem.ci * prod(size))(
            problem.batch * prod(size[:-1]),
            lambda i: fill_run(buffer, int64(i) * row, row, lanes, zeros),
        )

    def target(n: Index, position: Index, c: Index) -> Any:
        index: Index = int64(n)
        for p, e, b in zip(split_index(position, problem.size), size, problem.before, strict=True):
            index = index * e + (p + b)
        return index * pitch + c

    def block(channels: tuple[int, int, int], run: tuple[int, int, int]) -> Stmt:
        """Turn all blocks of so many channels by runs of so many positions."""
        (blocks, first_c, wide), (runs, first_p, long) = channels, run

        def one(index: Index) -> Stmt:
            n, r, b = split_index(index, (problem.batch, runs, blocks))
            start, at = int64(b) * wide + first_c, int64(r) * long + first_p

            def element(c: Index, p: Index) -> Stmt:
                plane = (int64(n) * problem.ci + (start + c)) * positions
                return store(buffer, load(source, plane + (at + p)), target(n, at + p, start + c))

            return loop(wide, lambda c: loop(long, lambda p: element(c, p)))

        count = problem.batch * runs * blocks
        return context.share(count * wide * long)(count, one)

    # A block of channels is one cache line, where the pitch is whole lines, so that two threads do
    # not write into the same one. The lines of a run fill an eighth of the first-level cache
    # (chosen), and stay there until they are full.
    run = max(1, context.cpu.l1_bytes // 8 // (4 * MOST_LANES))
    turned = (block(c, r) for c in spans(problem.ci, MOST_LANES) for r in spans(positions, run))
    loops = seq(
        # Keeps the buffer longer than its source, also after TVM has shortened it to what is
        # used: StorageRewrite would put it in the place of a source of equal size, an
        # intermediate of the kernel, while that is still read (its check misses bound values).
        store(buffer, f32(0.0), int64(length + lanes - 1)),
        clear,
        *turned,
    )
    return Prepared(buffer, pitch, size, loops)


def pad_into(
    problem: ConvProblem,
    context: Context,
    buffer: Buffer,
    pitch: int,
    copied: Callable[[Any, Index], Callable[[Index], Expr]],
    outside: Callable[[Index], Expr],
) -> Stmt:
    """Return loops that copy channels-last data into a flat buffer with a rim.

    Args:
        problem: The sizes of the convolution.
        context: The context in which the kernel is written.
        buffer: The flat buffer.
        pitch: Elements from one position to the next; those behind the channels are like the rim.
        copied: A function from the flat data and a start in it to what gives the run's elements.
        outside: A function that gives the elements of the rim.
    """
    lanes = context.cpu.lanes(str(buffer.dtype))
    padded, size, before, after = problem.padded, problem.size, problem.before, problem.after
    source = context.views.flat(context.data)

    def rim(at: Index, count: int) -> Stmt | None:
        return fill_run(buffer, at, count, lanes, outside) if count else None

    def row(index: Index) -> Stmt:
        n, *position = split_index(index, (problem.batch, *padded[:-1]))
        inside = all_of(
            [
                test
                for p, b, s, a in zip(position, before, size, after, strict=False)
                for test in ((p >= b) if b else True, (p < b + s) if a else True)
            ]
        )
        start: Index = int64(n)
        for p, b, s in zip(position, before, size, strict=False):
            start = start * s + (p - b)
        start = start * (size[-1] * problem.ci)
        at = int64(index) * (padded[-1] * pitch)
        first = at + before[-1] * pitch

        def point(x: Index) -> Stmt:
            to = first + x * pitch
            run = fill_run(buffer, to, problem.ci, lanes, copied(source, start + x * problem.ci))
            return seq(run, rim(to + problem.ci, pitch - problem.ci))

        whole = size[-1] * problem.ci
        body = seq(
            rim(at, before[-1] * pitch),
            fill_run(buffer, first, whole, lanes, copied(source, start))
            if pitch == problem.ci
            else loop(size[-1], point),
            rim(first + size[-1] * pitch, after[-1] * pitch),
        )
        return when(inside, body, rim(at, padded[-1] * pitch)) or seq()

    share = context.share(problem.batch * prod(padded) * pitch)
    return share(problem.batch * prod(padded[:-1]), row)


@dataclass(frozen=True)
class Planes:
    """The padded input of a convolution: one plane per channel, one part of it per phase."""

    buffer: Buffer
    size: int
    """Elements from one channel to the next (all its phases)."""
    pitches: tuple[int, ...]
    """Extents of one phase, in elements along each spatial axis."""
    strides: tuple[int, ...]
    prepare: Stmt | None
    """The loops that write the buffer; None when the kernel reads the data itself."""

    def offset(self, k: Sequence[Index], dilation: Sequence[int]) -> Any:
        """Return where a tap's first element lies in a channel's plane."""
        phase: Index = 0
        inside: Index = 0
        for t, d, s, p in zip(k, dilation, self.strides, self.pitches, strict=True):
            at = t * d
            phase = phase * s + (at % s if s > 1 else 0)
            inside = inside * p + (at // s if s > 1 else at)
        return phase * prod(self.pitches) + inside


def layout_of(problem: ConvProblem) -> tuple[int, tuple[int, ...]]:
    """Return (elements of a channel's plane, extents of one phase)."""
    pitches = tuple(-(-p // s) for p, s in zip(problem.padded, problem.strides, strict=True))
    return prod(problem.strides) * prod(pitches), pitches


def make_planes(problem: ConvProblem, context: Context, may_alias: bool) -> Planes:
    """Return all channels' planes, with slack behind so that vectors may read past the end."""
    size, pitches = layout_of(problem)
    if may_alias and problem.pointwise:
        return Planes(context.views.flat(context.data), size, pitches, problem.strides, None)
    count = problem.batch * problem.ci
    slack = 8 * context.cpu.lanes("float32")
    buffer = workspace((count * size + slack,), name="planes")
    context.buffers.append(buffer)
    share = context.share(count * size)
    prepare = share(count, lambda i: write_plane(problem, context, buffer, int64(i) * size, i))
    return Planes(buffer, size, pitches, problem.strides, prepare)


def write_plane(
    problem: ConvProblem, context: Context, buffer: Buffer, base: Index, channel: Index
) -> Stmt:
    """Return one channel's plane into a flat buffer from ``base`` on, zeros around.

    ``channel`` counts over batch and channels.
    """
    lanes = context.cpu.lanes("float32")
    _, pitches = layout_of(problem)
    phase_size = prod(pitches)
    source = context.views.flat(context.data)
    used = sorted(
        {
            tuple(t * d % s for t, d, s in zip(k, problem.dilation, problem.strides, strict=True))
            for k in product(*map(range, problem.kernel))
        }
    )
    stride, pitch, width = problem.strides[-1], pitches[-1], problem.size[-1]

    def one(phase: tuple[int, ...]) -> Stmt:
        number = 0
        for p, s in zip(phase, problem.strides, strict=True):
            number = number * s + p
        # Column q of this phase holds input column q·stride + first.
        first = phase[-1] - problem.before[-1]
        low = -(first // stride) if first < 0 else 0
        high = max(low, min(pitch, (width - 1 - first) // stride + 1))

        def row(*position: Index) -> Stmt:
            inner: Index = int64(0)
            start: Index = int64(channel)
            tests: list[Any] = []
            for q, p, s, b, e, extent in zip(
                position,
                phase,
                problem.strides,
                problem.before,
                problem.size,
                pitches,
                strict=False,
            ):
                inner = inner * extent + q
                y = int64(q) * s + (p - b)
                start = start * e + y
                if p - b < 0:
                    tests.append(y >= 0)
                if (extent - 1) * s + p - b >= e:
                    tests.append(y < e)
            at = base + (number * phase_size + inner * pitch)
            begin = start * width + (low * stride + first)
            rims = [(o, n) for o, n in ((0, low), (high, pitch - high)) if n]
            inside = seq(
                *(fill_run(buffer, at + o, n, lanes, zeros) for o, n in rims),
                gather(
                    buffer,
                    at + low,
                    source,
                    begin,
                    high - low,
                    stride,
                    lanes,
                ),
            )
            empty = fill_run(buffer, at, pitch, lanes, zeros)
            return when(all_of(tests), inside, empty) or seq()

        return nest(pitches[:-1], row)

    return seq(*(one(phase) for phase in used))


def gather(
    target: Any,
    at: Index,
    source: Any,
    start: Index,
    count: int,
    stride: int,
    lanes: int,
) -> Stmt:
    """Return loops that copy elements, a stride apart, to contiguous places.

    Args:
        target: The flat buffer that is written.
        at: The index of the first element that is written.
        source: The flat buffer that is read.
        start: The index of the first element that is read.
        count: The number of elements.
        stride: The distance of two elements that are read.
        lanes: The lanes of a vector.
    """
    if stride == 1:
        return fill_run(target, at, count, lanes, run_of(source, start))
    return loop(count, lambda q: store(target, load(source, start + q * stride), at + q))
