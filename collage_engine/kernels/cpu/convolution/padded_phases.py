"""Pads channels-first images and splits them by strides, for vectors of positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from tvm.tirx import Buffer

from collage_engine.kernels.cpu.convolution.prepared import fill_run, run_of, zeros
from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    all_of,
    int64,
    load,
    loop,
    nest,
    seq,
    store,
    when,
    workspace,
)


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
        """Returns where a tap's first element lies in a channel's plane."""
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
    """Returns all channels' planes, with slack behind so that vectors may read past the end."""
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
    """Returns one channel's plane into a flat buffer from ``base`` on, zeros around.

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

        def row(*place: Index) -> Stmt:
            inner: Index = int64(0)
            start: Index = int64(channel)
            tests: list[Any] = []
            for q, p, s, b, e, extent in zip(
                place, phase, problem.strides, problem.before, problem.size, pitches, strict=False
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
    """Returns loops that copy elements, a stride apart, to contiguous places.

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
