"""States convolutions with constant weights as problems, and makes their data ready.

A convolution is recognised and its plain computation given; its weights are packed in blocks of
output channels. Its input is copied with a rim of zeros, or padded and split by strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Self

import msgspec
import numpy as np
from tvm import te, tirx
from tvm.ir import Call, Expr
from tvm.tirx import Buffer

from collage_engine.kernels.bfloat16_numbers import real
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.tile_choice import spans
from collage_engine.kernels.relax_values import both_sides, float_operands
from collage_engine.kernels.target import MOST_LANES
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    all_of,
    f32,
    flat_index,
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

SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
"""Letters of the spatial axes in TVM's layouts, by the number of all axes."""
NO_KERNEL: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]] = (1, (), (), ())
"""Groups, strides, padding and dilation of a product, which has no kernel."""


class ConvProblem(msgspec.Struct, frozen=True, tag_field="family", tag="conv"):
    """The sizes of one convolution in float32, in TVM's argument conventions, or of a product.

    ``data`` and ``out_shape`` are in the layout's order, ``weight`` is output channels, input
    channels of a group, kernel. ``padding`` is before every spatial axis, then behind every one.
    A product with a constant matrix has no kernel: its columns are output channels, which are last,
    and ``data`` and ``out_shape`` may have several leading axes.
    """

    channels_last: bool
    data: tuple[int, ...]
    out_shape: tuple[int, ...]
    weight: tuple[int, ...]
    groups: int
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def dims(self) -> int:
        """Returns how many spatial axes there are."""
        return len(self.kernel)

    @property
    def batch(self) -> int:
        """Returns how many images there are."""
        return self.data[0]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Returns the taps along each spatial axis."""
        return self.weight[2:]

    @property
    def taps(self) -> int:
        """Returns the taps of the whole kernel."""
        return prod(self.kernel)

    @property
    def co(self) -> int:
        """Returns how many output channels all groups have together."""
        return self.weight[0]

    @property
    def ci(self) -> int:
        """Returns how many input channels all groups have together."""
        return self.ci_group * self.groups

    @property
    def co_group(self) -> int:
        """Returns how many output channels one group has."""
        return self.co // self.groups

    @property
    def ci_group(self) -> int:
        """Returns how many input channels one group has."""
        return self.weight[1]

    @property
    def size(self) -> tuple[int, ...]:
        """Return the spatial sizes of the data."""
        return self.data[1:-1] if self.channels_last else self.data[2:]

    @property
    def out(self) -> tuple[int, ...]:
        """Return the spatial sizes of the result."""
        return self.out_shape[1:-1] if self.channels_last else self.out_shape[2:]

    @property
    def before(self) -> tuple[int, ...]:
        """Return the padding before each spatial axis."""
        return self.padding[: self.dims]

    @property
    def after(self) -> tuple[int, ...]:
        """Return the padding behind each spatial axis."""
        return self.padding[self.dims :]

    @property
    def padded(self) -> tuple[int, ...]:
        """Return the spatial sizes with the padding."""
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def is_padded(self) -> bool:
        """Tells whether there is any padding."""
        return any(self.padding)

    @property
    def depthwise(self) -> bool:
        """Tells whether every channel is convolved by itself.

        Channels first, an input channel may have several outputs (a multiplier).
        """
        if self.ci_group != 1 or self.groups == 1:
            return False
        return not self.channels_last or self.co == self.groups

    @property
    def pointwise(self) -> bool:
        """Tells whether output positions are input positions, one by one."""
        return self.taps == 1 and not self.is_padded and all(s == 1 for s in self.strides)

    @property
    def image(self) -> tuple[int, int]:
        """Returns the rows and columns that tiles of positions cover.

        A run of positions is one column, and so are all rows of a product.
        """
        if not self.kernel:
            return prod(self.out_shape[:-1]), 1
        if self.pointwise or self.dims == 1:
            return prod(self.out), 1
        return self.out[-2], self.out[-1]

    def read_at(self, position: Sequence[Index], taps: Sequence[Index]) -> list[Any]:
        """Return where in the padded data a tap of the output at a position reads."""
        each = zip(position, self.strides, taps, self.dilation, strict=True)
        return [p * s + t * d for p, s, t, d in each]

    def of_points(self) -> Self:
        """Return a product as a convolution of single points; a convolution as it is.

        Rows are positions along one spatial axis, and the kernel is a single tap.
        """
        if self.kernel:
            return self
        rows = self.image[0]
        return msgspec.structs.replace(
            self,
            data=(1, rows, self.ci),
            out_shape=(1, rows, self.co),
            weight=(*self.weight, 1),
            strides=(1,),
            padding=(0, 0),
            dilation=(1,),
        )

    @property
    def multiply_adds(self) -> float:
        """Returns how many products are added up."""
        return float(prod(self.out_shape) * self.depth)

    @property
    def depth(self) -> int:
        """Returns how many products are added up to one result."""
        return prod(self.weight[1:])

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return random data and a random weight; results are about as large as the data."""
        data, weight = (
            random.standard_normal(shape, dtype=np.float32) for shape in (self.data, self.weight)
        )
        return data, weight * np.float32(self.depth**-0.5)


def described(call: Call) -> tuple[ConvProblem, np.ndarray] | None:
    """Return a convolution's problem and its weight (OIHW…), or None when it is not one of ours."""
    operands = float_operands(call)
    if operands is None:
        return None
    shape, weight, out = operands
    axes = SPATIAL.get(len(shape))
    attributes = call.attrs
    if axes is None or str(attributes.out_layout or attributes.data_layout) != str(
        attributes.data_layout
    ):
        return None
    layout, kernel_layout = str(attributes.data_layout), str(attributes.kernel_layout)
    if layout not in (f"NC{axes}", f"N{axes}C") or sorted(kernel_layout) != sorted(f"OI{axes}"):
        return None
    weight = weight.transpose([kernel_layout.index(a) for a in f"OI{axes}"])
    problem = ConvProblem(
        layout == f"N{axes}C",
        shape,
        out,
        weight.shape,
        int(attributes.groups),
        tuple(int(v) for v in attributes.strides),
        both_sides([int(v) for v in attributes.padding], len(axes)),
        tuple(int(v) for v in attributes.dilation),
    )
    return problem, weight


def in_blocks(problem: ConvProblem, weight: np.ndarray, block: int) -> np.ndarray:
    """Return a weight [O, I, *kernel] cut into blocks of output channels.

    Args:
        problem: The convolution.
        weight: Its weight: output channels, input channels of a group, kernel.
        block: Output channels per block.

    Returns:
        A float32 array [groups, blocks, block, input channels of a group, *kernel]; the channels
        that the last block lacks are zero.
    """
    channels = (problem.ci_group, *problem.kernel)
    wide = np.asarray(weight, np.float32).reshape(problem.groups, problem.co_group, *channels)
    lacking = -problem.co_group % block
    if lacking:
        wide = np.pad(wide, [(0, 0), (0, lacking), *[(0, 0)] * len(channels)])
    return wide.reshape(problem.groups, -1, block, *channels)


def taps_of(problem: ConvProblem) -> list[Any]:
    """Return a reduction axis for each of the kernel's axes."""
    return [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(problem.kernel)]


def input_at(
    problem: ConvProblem,
    data: Any,
    index: Sequence[Index],
    taps: Sequence[Index],
    channel: Index,
    rim: Any = None,
) -> Any:
    """Return the input element that a tap of the output at ``index`` reads.

    Args:
        problem: The convolution.
        data: The data's tensor, or what gives an element for indices in the layout's order.
        index: The output element, in the layout's order.
        taps: The tap's place along each axis of the kernel.
        channel: The input channel, of all groups.
        rim: What stands outside the image; 0 by default.
    """
    if not taps:
        return data(*index[:-1], channel)
    position = index[1:-1] if problem.channels_last else index[2:]
    at = [p - b for p, b in zip(problem.read_at(position, taps), problem.before, strict=True)]
    x = data(index[0], *at, channel) if problem.channels_last else data(index[0], channel, *at)
    if problem.is_padded:
        tests = [t for a, s in zip(at, problem.size, strict=True) for t in (a >= 0, a < s)]
        x = tirx.if_then_else(tirx.all(*tests), x, tirx.const(0, "float32") if rim is None else rim)
    return x


def blocked_sum(
    problem: ConvProblem,
    data: Any,
    block: int,
    taps: Sequence[Index],
    weight_at: Callable[[Index, Index, Index, Index], Any],
    note: dict[str, str],
    number: Callable[[Any], Any] = lambda element: element,
    rim: Any = None,
) -> Any:
    """Return a convolution or product over a weight that is packed by blocks of output channels.

    Args:
        problem: The convolution or product.
        data: The data's tensor; that of a product may have several leading axes.
        block: Output channels of a block.
        taps: Reduction axes; the kernel's own come first.
        weight_at: The weight's element for (group, block, input channel of the group, output
            channel of the block), at the taps.
        note: The annotation for the block that adds up.
        number: Makes of an element of the data the number that is multiplied.
        rim: What stands outside the image; 0 by default.
    """
    channel = te.reduce_axis((0, problem.ci_group), "rc")

    def element(*index: Index) -> Expr:
        c = index[-1] if problem.channels_last else index[1]
        group: Index = tirx.floordiv(c, problem.co_group) if problem.groups > 1 else 0
        source = group * problem.ci_group + channel if problem.groups > 1 else channel
        taps_ = taps[: problem.dims]
        x = input_at(problem, lambda *i: number(data(*i)), index, taps_, source, rim)
        inner = tirx.floormod(c, problem.co_group) if problem.groups > 1 else c
        b, r = tirx.floordiv(inner, block), tirx.floormod(inner, block)
        return te.sum(x * weight_at(group, b, channel, r), axis=[channel, *taps])

    shape = problem.out_shape if problem.kernel else (*data.shape[:-1], problem.co)
    return te.compute(shape, element, name="sums", attrs=note)


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
        places = zip(split_index(position, problem.size), problem.before, strict=True)
        return flat_index([p + b for p, b in places], size, int64(n)) * pitch + c

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
        places = [p - b for p, b in zip(position, before, strict=False)]
        start = flat_index(places, size[:-1], int64(n)) * (size[-1] * problem.ci)
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
        number = flat_index(phase, problem.strides)
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
                fill_run(buffer, at + low, high - low, lanes, run_of(source, begin))
                if stride == 1
                else loop(
                    high - low,
                    lambda q: store(buffer, load(source, begin + q * stride), at + low + q),
                ),
            )
            empty = fill_run(buffer, at, pitch, lanes, zeros)
            return when(all_of(tests), inside, empty) or seq()

        return nest(pitches[:-1], row)

    return seq(*(one(phase) for phase in used))
