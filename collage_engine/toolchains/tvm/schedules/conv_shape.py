"""The sizes of a convolution, and the copy of its input with a rim of zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collage_engine.toolchains.tvm.emit import (
    Stmt,
    all_of,
    f32,
    int64,
    load,
    loop,
    parallel,
    pieces,
    seq,
    split_index,
    store,
    vectorized,
    when,
    workspace,
)
from collage_engine.toolchains.tvm.expressions import NotUnderstood, loads
from collage_engine.toolchains.tvm.program import Stage, shape_of
from collage_engine.toolchains.tvm.schedules.pointwise import Context


@dataclass(frozen=True)
class ConvShape:
    """Extents of an N-dimensional convolution; spatial tuples have one entry per dimension."""

    data: Any
    weight: Any
    """Packed as the way to write it wants (see ``legalize/conv.py``)."""
    channels_last: bool
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

    @staticmethod
    def of(anchor: Stage) -> ConvShape:
        note = anchor.note
        sources = [access.source for access in loads(anchor.value)]
        if len(sources) != 2:
            raise NotUnderstood("a convolution that does not read two tensors")
        data, weight = sources
        shape, out = shape_of(data), anchor.extents
        last = bool(note["channels_last"])
        dims = len(shape) - 2
        spatial = slice(1, 1 + dims) if last else slice(2, 2 + dims)
        return ConvShape(
            data, weight, last, shape[0],
            shape[-1] if last else shape[1], out[-1] if last else out[1], int(note["groups"]),
            tuple(shape[spatial]), tuple(out[spatial]), tuple(note["kernel"]),
            tuple(note["strides"]), tuple(note["dilation"]),
            tuple(note["padding"][:dims]), tuple(note["padding"][dims:]),
        )  # fmt: skip

    @property
    def padded(self) -> tuple[int, ...]:
        return tuple(b + s + a for b, s, a in zip(self.before, self.size, self.after, strict=True))

    @property
    def has_padding(self) -> bool:
        return any(self.before) or any(self.after)

    @property
    def taps(self) -> int:
        n = 1
        for k in self.kernel:
            n *= k
        return n

    def index(self, n: Any, c: Any, spatial: Sequence[Any]) -> tuple[Any, ...]:
        """Indices of an element of the data or the output, in its layout's order."""
        return (n, *spatial, c) if self.channels_last else (n, c, *spatial)


def product(values: Sequence[int]) -> int:
    n = 1
    for v in values:
        n *= v
    return n


def copy_run(
    target: Any, at: Any, source: Any, start: Any, size: int, lanes: int, zero: bool = False
) -> Stmt:
    """``size`` contiguous elements copied between flat buffers (or set to zero)."""

    def vector(offset: Any, width: int) -> Stmt:
        def lane(x: Any) -> Stmt:
            value = f32(0.0) if zero else load(source, start + (offset + x))
            return store(target, value, at + (offset + x))

        return vectorized(width, lane)

    full = size // lanes
    statements = []
    if full:
        statements.append(loop(full, lambda v: vector(int64(v) * lanes, lanes)))
    for start_, width in pieces(size - full * lanes, lanes):
        statements.append(vector(int64(full * lanes + start_), width))
    return seq(*statements)


def write_padded(shape: ConvShape, context: Context) -> tuple[Any, Stmt | None]:
    """The data with its rim of zeros, flat, in the same layout, and the loops that make it.

    Without padding it is the data itself (a flat view) and no loops.
    """
    if not shape.has_padding:
        return context.views.flat(shape.data), None
    buffer = workspace((shape.batch * shape.ci * product(shape.padded),), name="padded")
    context.buffers.append(buffer)
    return buffer, pad_into(shape, context, buffer)


def pad_into(shape: ConvShape, context: Context, buffer: Any) -> Stmt:
    """Loops that copy the data into a flat buffer with its rim of zeros."""
    lanes = context.cpu.lanes("float32")
    padded = shape.padded
    source = context.views.flat(shape.data)
    unit = shape.ci if shape.channels_last else 1
    planes = shape.batch if shape.channels_last else shape.batch * shape.ci
    outer = padded[:-1]
    size, before, after = shape.size, shape.before, shape.after

    def row(index: Any) -> Stmt:
        plane, *place = split_index(index, (planes, *outer))
        inside = all_of(
            [
                test
                for p, b, s, a in zip(place, before, size, after, strict=False)
                for test in ((p >= b) if b else True, (p < b + s) if a else True)
            ]
        )
        start: Any = int64(plane)
        for p, b, s in zip(place, before, size, strict=False):
            start = start * s + (p - b)
        at = int64(index) * (padded[-1] * unit)
        body = seq(
            *(
                copy_run(buffer, at + offset, None, 0, count, lanes, zero=True)
                for offset, count in (
                    (0, before[-1] * unit),
                    ((before[-1] + size[-1]) * unit, after[-1] * unit),
                )
                if count
            ),
            copy_run(
                buffer,
                at + before[-1] * unit,
                source,
                start * (size[-1] * unit),
                size[-1] * unit,
                lanes,
            ),  # fmt: skip
        )
        empty = copy_run(buffer, at, None, 0, padded[-1] * unit, lanes, zero=True)
        return when(inside, body, empty) or seq()

    share = parallel if context.threads and context.cpu.threads > 1 else loop
    return share(planes * product(outer), row)
