"""Writes depthwise convolutions, in which every channel (times a multiplier) is by itself.

Channels last: channels in the vector lanes, weight packed [*kernel, channels].
Channels first: each channel's padded plane is made in the first-level cache and read by
vectors of positions; weight [channels, *kernel].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from msgspec.structs import replace
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution import (
    ConvProblem,
    Planes,
    blocked_sum,
    fill_run,
    layout_of,
    prepare,
    run_of,
    taps_of,
    write_plane,
    zeros,
)
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import columns_below, in_tiles, tile
from collage_engine.kernels.cpu.writing.tile_choice import near
from collage_engine.kernels.rule import AtLeastOne, KernelRule, Plan, note
from collage_engine.kernels.target import SUMS_IN_FLIGHT, Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    all_of,
    allocate,
    constant_value,
    divisor,
    flat_index,
    int64,
    load,
    loop,
    nest,
    pieces,
    seq,
    split_index,
    when,
    workspace,
)

MOST_VECTORS = SUMS_IN_FLIGHT // 2
"""Vectors of a register tile: two rows or columns of so many keep a processor busy."""


class DepthwiseFirstPlan(Plan, frozen=True):
    """The parameters of depthwise kernels over channels-first data, positions in the lanes."""

    vectors: Annotated[int, Meta(ge=1, le=MOST_VECTORS)]
    """Vectors of positions of a register tile."""
    rows: AtLeastOne
    """Rows of the image that a register tile covers."""


class DepthwiseLastPlan(Plan, frozen=True):
    """The parameters of depthwise kernels over channels-last data, channels in the lanes."""

    vectors: Annotated[int, Meta(ge=1, le=MOST_VECTORS)]
    """Vectors of channels of a register tile."""
    columns: AtLeastOne
    """Positions of a row in a register tile."""


UNROLL_TAPS = 25
"""Taps up to which the kernel's loops are unrolled. Chosen: a kernel of 5 × 5, whose weights and
addresses are code of a few KiB."""


def _taps(problem: ConvProblem) -> Callable[[Callable[..., Stmt]], Stmt]:
    kind = tirx.ForKind.UNROLLED if problem.taps <= UNROLL_TAPS else tirx.ForKind.SERIAL
    return lambda step: nest(problem.kernel, step, kind)


def _by_bands(problem: ConvProblem, plan: DepthwiseLastPlan, epilogue: Epilogue) -> Stmt:
    context, cpu = epilogue.context, epilogue.context.cpu
    lanes = cpu.lanes("float32")
    stride = problem.strides[0]
    reach = problem.dilation[0] * (problem.kernel[0] - 1) + 1
    wide = problem.padded[1]
    line_size = wide * problem.ci
    most = max(1, (cpu.l2_bytes // 4 // (4 * line_size) - reach) // stride + 1)
    each = max(1, problem.out[0] * problem.batch // cpu.threads)
    rows = divisor(problem.out[0], min(most, each))
    held = (rows - 1) * stride + reach
    flat = context.views.flat(context.data)
    band = workspace((held * line_size,), name="band")
    left, right = problem.before[1] * problem.ci, problem.after[1] * problem.ci
    inside = problem.size[1] * problem.ci

    def task(index: Index) -> Stmt:
        n, b = split_index(index, (problem.batch, problem.out[0] // rows))
        first = int64(b) * (rows * stride) - problem.before[0]

        def fill(r: Index) -> Stmt:
            y = first + r
            at = int64(r) * line_size
            start = (int64(n) * problem.size[0] + y) * inside
            copy = seq(
                fill_run(band, at, left, lanes, zeros) if left else None,
                fill_run(band, at + left, inside, lanes, run_of(flat, start)),
                fill_run(band, at + (left + inside), right, lanes, zeros) if right else None,
            )
            empty = fill_run(band, at, line_size, lanes, zeros)
            return when(all_of([y >= 0, y < problem.size[0]]), copy, empty) or seq()

        def source(_: Index, position: tuple[Index, ...], k: tuple[Index, ...], c: Index) -> Expr:
            y = (position[0] - int64(b) * rows) * stride + k[0] * problem.dilation[0]
            x = position[1] * problem.strides[1] + k[1] * problem.dilation[1]
            return load(band, (y * wide + x) * problem.ci + c)

        return seq(
            allocate(band),
            loop(held, fill),
            loop(
                rows,
                lambda i: _row(problem, plan, epilogue, n, (int64(b) * rows + i,), source),
            ),
        )

    share = context.share_products(problem.multiply_adds)
    return share(problem.batch * (problem.out[0] // rows), task)


def _row(
    problem: ConvProblem,
    plan: DepthwiseLastPlan,
    epilogue: Epilogue,
    n: Index,
    row: tuple[Index, ...],
    source: Callable[..., Any],
) -> Stmt:
    """Return one row of the output, all its channels."""
    context = epilogue.context
    lanes = context.cpu.lanes("float32")
    channels, width = problem.ci, problem.out[-1]
    vectors, height = plan.vectors, plan.columns

    def one(first: Index, count: int, channel: Index, vectors: Any) -> Stmt:
        def term(r: Index, column: Index, *k: Index) -> Expr:
            c = channel + column
            return source(n, (*row, first + r), k, c) * load(context.weight, *k, c)

        def finish(r: Index, begin: int, width: int, value: Callable[[Index], Any]) -> Stmt:
            return epilogue.store_vector(
                width, lambda x: (n, *row, first + r, channel + (int64(begin) + x)), value
            )

        return tile(count, vectors, _taps(problem), term, finish_vector=finish)

    def along(first: Index, count: int) -> Stmt:
        return in_tiles(
            channels,
            vectors * lanes,
            lambda channel, size: one(first, count, channel, pieces(size, lanes)),
        )

    return in_tiles(width, height, along)


SPARE_REGISTERS = 2
"""Vector registers that hold no sums: one for the weight and one for the data."""


class DepthwiseFirst(KernelRule[ConvProblem, DepthwiseFirstPlan, Cpu]):
    """The rule that writes depthwise convolutions of channels-first data."""

    name = "conv depthwise"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the convolution is depthwise and its data channels first."""
        return problem.depthwise and not problem.channels_last

    def default(self, problem: ConvProblem, machine: Cpu) -> DepthwiseFirstPlan:
        """Return the widest tile that keeps enough sums in flight."""
        vectors = min(MOST_VECTORS, -(-problem.out[-1] // machine.lanes("float32")))
        most = min(SUMS_IN_FLIGHT // vectors, self._rows(problem))
        return DepthwiseFirstPlan(vectors, max(1, most))

    @staticmethod
    def _rows(problem: ConvProblem) -> int:
        return problem.out[-2] if problem.dims > 1 else 1

    def neighbours(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, machine: Cpu
    ) -> Iterator[DepthwiseFirstPlan]:
        """Yield other rows and vectors."""
        wide = min(MOST_VECTORS, -(-problem.out[-1] // machine.lanes("float32")))
        registers = machine.registers - SPARE_REGISTERS
        for rows in near(plan.rows, min(SUMS_IN_FLIGHT, self._rows(problem))):
            if rows * plan.vectors <= registers:
                yield replace(plan, rows=rows)
        for vectors in near(plan.vectors, wide):
            if plan.rows * vectors <= registers:
                yield replace(plan, vectors=vectors)

    def pack(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [channels, *kernel]."""
        return weight.astype(np.float32).reshape(problem.co, *problem.kernel)

    def reference(
        self, problem: ConvProblem, plan: DepthwiseFirstPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of data times packed weight."""
        data, weight = operands
        taps = taps_of(problem)

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            return weight(group * problem.co_group + b, *taps)

        return blocked_sum(problem, data, 1, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: DepthwiseFirstPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops over channels-first data.

        Planes are made first, and then read by vectors of positions.
        """
        context = epilogue.context
        lanes = context.cpu.lanes("float32")
        size, pitches = layout_of(problem)
        multiplier = problem.co // problem.ci
        # Planes are written some at a time: a load right behind the narrow stores of an image's
        # rows would wait for all of them to reach the cache.
        together = divisor(problem.ci, max(1, context.cpu.l1_bytes // 3 // (4 * size)))
        plane = workspace((together * size + (MOST_VECTORS + 1) * lanes,), name="plane")
        planes = Planes(plane, size, pitches, problem.strides, None)
        width = problem.out[-1]
        wide, height = plan.vectors, plan.rows
        outer = problem.out[:-2]
        rows = problem.out[-2] if len(problem.out) > 1 else 1

        def one(
            n: Index,
            channel: Index,
            base: Index,
            position: Any,
            row: Index,
            count: int,
            first: Index,
            vs: int,
        ) -> Stmt:
            def term(r: Index, column: Index, *k: Index) -> Expr:
                where = (*position, row + r)[-len(pitches) + 1 :] if len(pitches) > 1 else ()
                inside = flat_index((*where, first + column), pitches)
                at = planes.offset(k, problem.dilation) + inside + base
                return load(context.weight, channel, *k) * load(plane, at)

            def finish(r: Index, column: Index, value: Expr) -> Stmt:
                where = (*position, row + r) if len(problem.out) > 1 else ()
                return epilogue.store((n, channel, *where, first + column), value)

            columns = [(v * lanes, lanes) for v in range(vs)]
            kept, begin = None, constant_value(first)
            if begin is not None and begin + vs * lanes > width:
                kept = columns_below(columns, width - begin)
            return tile(count, columns, _taps(problem), term, finish, kept)

        def line(
            n: Index, channel: Index, base: Index, position: Any, row: Index, count: int
        ) -> Stmt:
            """Return all columns of ``count`` rows."""
            return in_tiles(
                width,
                wide * lanes,
                lambda first, size: one(
                    n, channel, base, position, row, count, first, -(-size // lanes)
                ),
            )

        def compute(n: Index, c: Index, base: Index) -> Stmt:
            def channel_body(j: Index) -> Stmt:
                channel = c * multiplier + j

                def at(*position: Index) -> Stmt:
                    return in_tiles(
                        rows,
                        height,
                        lambda row, count: line(n, channel, base, position, row, count),
                    )

                return nest(outer, at)

            return loop(multiplier, channel_body)

        def task(index: Index) -> Stmt:
            n, block = split_index(index, (problem.batch, problem.ci // together))
            first = int64(block) * together
            return seq(
                allocate(plane),
                loop(
                    together,
                    lambda i: write_plane(
                        problem, context, plane, int64(i) * size, n * problem.ci + (first + i)
                    ),
                ),
                loop(together, lambda i: compute(n, first + i, int64(i) * size)),
            )

        share = context.share_products(problem.multiply_adds)
        return share(problem.batch * (problem.ci // together), task)


class DepthwiseLast(KernelRule[ConvProblem, DepthwiseLastPlan, Cpu]):
    """The rule that writes depthwise convolutions of channels-last data."""

    name = "conv depthwise last"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the convolution is depthwise and its data channels last."""
        return problem.depthwise and problem.channels_last

    def default(self, problem: ConvProblem, machine: Cpu) -> DepthwiseLastPlan:
        """Return two vectors by as many positions as divide the row, or as many as fit.

        At most eight positions are taken, and no more than the registers hold the sums of.
        """
        width = problem.out[-1]
        most = min(SUMS_IN_FLIGHT, (machine.registers - SPARE_REGISTERS) // 2, width)
        columns = max(c for c in range(1, most + 1) if width % c == 0)
        return DepthwiseLastPlan(2, most if 2 * columns < most else columns)

    def neighbours(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, machine: Cpu
    ) -> Iterator[DepthwiseLastPlan]:
        """Yield other positions and vectors."""
        registers = machine.registers - SPARE_REGISTERS
        for columns in near(plan.columns, min(registers // plan.vectors, problem.out[-1])):
            yield replace(plan, columns=columns)
        for vectors in near(plan.vectors, MOST_VECTORS):
            if plan.columns * vectors <= registers:
                yield replace(plan, vectors=vectors)

    def pack(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [*kernel, channels]."""
        flat = weight.astype(np.float32).reshape(problem.co, *problem.kernel)
        return flat.transpose(*range(1, problem.dims + 1), 0)

    def reference(
        self, problem: ConvProblem, plan: DepthwiseLastPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of data times packed weight."""
        data, weight = operands
        taps = taps_of(problem)

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            return weight(*taps, group)

        return blocked_sum(problem, data, 1, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: DepthwiseLastPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops with channels in the lanes; images are padded some rows at a time."""
        context = epilogue.context
        if len(problem.out) != 2 or not problem.is_padded:
            data = prepare(problem, context)
            rows = prod(problem.out[:-1])
            share = context.share_products(problem.multiply_adds)

            def source(
                n: Index, position: tuple[Index, ...], k: tuple[Index, ...], c: Index
            ) -> Expr:
                at = flat_index(problem.read_at(position, k), data.size, int64(n))
                return load(data.flat, at * data.pitch + c)

            def line(index: Index) -> Stmt:
                n, *row = split_index(index, (problem.batch, *problem.out[:-1]))
                return _row(problem, plan, epilogue, n, tuple(row), source)

            return seq(data.loops, share(problem.batch * rows, line))
        return _by_bands(problem, plan, epilogue)
