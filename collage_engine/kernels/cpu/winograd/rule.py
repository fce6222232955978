"""Writes 3×3 convolutions by Winograd's method (Winograd 1980; Lavin and Gray 2016), channels last.

Fewer products than multiplying out, for transforms of the data, the weight and the results. It is
preferred where both are estimated and it clearly saves time.

An image is cut into tiles of m × m outputs. Group by group of tile rows, data are transformed
(Bᵀ d B, all input channels), multiplied with the transformed weight as one matrix product for
every point, and brought back (Aᵀ M A) block by block of output channels. So the transformed data
stay in the second-level cache, and sums in the first or second. The weight is packed [blocks,
points, input channels, block].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution import ConvProblem, blocked_sum, prepare
from collage_engine.kernels.cpu.winograd import cost, matrices
from collage_engine.kernels.cpu.winograd.matrices import (
    OUTPUTS,
    TAPS,
    Outputs,
    on_both_sides,
    transforms,
)
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import in_tiles, tile
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    best_positions,
    block_of,
    near,
    spans,
)
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rule import AtLeastOne, KernelRule, Plan, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    bound,
    in_vectors,
    int64,
    load,
    local,
    loop,
    nest,
    pieces,
    seq,
    split_index,
    store,
    when,
    workspace,
)


class WinogradPlan(Plan, frozen=True):
    """The parameters of kernels by Winograd's method."""

    outputs: Outputs
    """Results along the side of a tile."""
    block: AtLeastOne
    """Output channels per block, counted in vectors."""
    group: AtLeastOne
    """Rows of tiles that are transformed, multiplied and brought back together."""


class _Winograd:
    def __init__(self, problem: ConvProblem, plan: WinogradPlan, epilogue: Epilogue) -> None:
        self.problem, self.epilogue = problem, epilogue
        self.context = context = epilogue.context
        cpu = context.cpu
        self.lanes = cpu.lanes("float32")
        self.blocks, self.points, self.ci, self.block = shape_of(context.weight)
        self.side = math.isqrt(self.points)
        self.matrices = transforms(self.side - TAPS + 1)
        m = self.matrices.outputs
        self.rows, self.columns = cost.tiles_of(problem.out, m)
        most = min(self.rows, plan.group)
        if context.threads and problem.batch * -(-self.rows // most) * self.blocks < cpu.threads:
            # One group of one block would be one piece of work.
            most = -(-self.rows // -(-cpu.threads // problem.batch))
        self.per_group = cost.evened(self.rows, most)
        # Tiles reach beyond the image: its rim of zeros is wider there.
        after = tuple(
            t * m + TAPS - 1 - b - s
            for t, b, s in zip((self.rows, self.columns), problem.before, problem.size, strict=True)
        )
        self.data = prepare(replace(problem, padding=(*problem.before, *after)), context)
        self.pitch = cost.pitch(cpu, self.ci)

    def write(self) -> Stmt:
        problem, context = self.problem, self.context
        parts = []
        for count, first, height in spans(self.rows, self.per_group):
            # Where there are fewer groups than threads they share the blocks of a group, and
            # each transforms the data anew: little beside the products of many channels.
            share = 1
            if context.threads and context.cpu.threads > problem.batch * count:
                share = min(self.blocks, -(-context.cpu.threads // (problem.batch * count)))
            each = -(-self.blocks // share)
            # The parts that have a block: four blocks for three threads are two parts of two.
            share = -(-self.blocks // each)

            def task(
                index: Index,
                count: int = count,
                first: int = first,
                height: int = height,
                share: int = share,
                each: int = each,
            ) -> Stmt:
                n, group, part = split_index(index, (problem.batch, count, share))
                return self._group(n, int64(group) * self.per_group + first, height, part, each)

            parts.append(
                context.share_products(problem.multiply_adds)(problem.batch * count * share, task)
            )
        return seq(self.data.loops, *parts)

    def _group(self, n: Index, first: Index, height: int, part: Any, each: int) -> Stmt:
        """Write ``height`` tile rows from ``first``, for ``each`` blocks of channels of a part."""
        count = height * self.columns
        transformed = workspace((self.points * count * self.pitch,), name="transformed")
        sums = workspace((self.points * count * self.block,), name="sums")

        def one(b: Index) -> Stmt:
            return seq(
                self._multiply(transformed, sums, count, b),
                self._results(sums, n, first, height, b),
            )

        def block(i: Index) -> Stmt:
            b = part * each + i
            if self.blocks % each == 0:
                return one(b)
            return when(b < self.blocks, one(b)) or seq()

        return seq(
            allocate(transformed),
            allocate(sums),
            self._transform(transformed, n, first, height),
            loop(each, block),
        )

    def _transform(self, target: Any, n: Index, first: Index, height: int) -> Stmt:
        """Write Bᵀ d B of every tile of the group as [points, tiles, channels]."""
        m, side = self.matrices.outputs, self.side
        extents, pitch = self.data.size, self.data.pitch

        def one(i: Index, j: Index) -> Stmt:
            row = (int64(n) * extents[0] + (first + i) * m) * extents[1] + int64(j) * m
            t = int64(i) * self.columns + j
            step = height * self.columns * self.pitch

            def vector(begin: Index, c: Index, width: int) -> Stmt:
                """Transform ``width`` channels from ``c`` on; the tile starts at ``begin``."""

                def element(p: int, q: int, x: Index) -> Expr:
                    return load(self.data.flat, begin + ((p * extents[1] + q) * pitch + c) + x)

                def give(p: int, q: int, x: Index, value: Expr) -> Stmt:
                    at = t * self.pitch + c + ((p * side + q) * step + x)
                    return store(target, value, at)

                return on_both_sides(self.matrices.data, width, element, give)

            return bound(
                row * pitch,
                lambda begin: in_vectors(
                    self.ci, self.lanes, lambda c, width: vector(begin, c, width)
                ),
            )

        return loop(height, lambda i: loop(self.columns, lambda j: one(i, j)))

    def _multiply(self, transformed: Any, sums: Any, count: int, b: Index) -> Stmt:
        """Return one product for every point: [tiles, channels] × [channels, block]."""
        cpu, weight = self.context.cpu, self.context.weight
        vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]
        rows = best_positions(cpu, len(vectors), (count, 1))[0]

        def tiles(point: Any, t: Index, height: int) -> Stmt:
            data = (int64(point) * count + t) * self.pitch
            out = (int64(point) * count + t) * self.block

            def term(r: Index, lane: Index, k: Index) -> Expr:
                value = load(transformed, data + (int64(r) * self.pitch + k))
                return value * load(weight, b, point, k, lane)

            return tile(
                height,
                vectors,
                lambda step: loop(self.ci, step),
                term,
                lambda r, lane, value: store(sums, value, out + (int64(r) * self.block + lane)),
            )

        return loop(
            self.points,
            lambda point: in_tiles(count, rows, lambda t, height: tiles(point, t, height)),
        )

    def _results(self, sums: Any, n: Index, first: Index, height: int, b: Index) -> Stmt:
        """Return Aᵀ M A of ``height`` rows of tiles from ``first`` on, finished and stored.

        ``sums`` holds [points, tiles, block], for block ``b`` of the output channels.
        """
        m, side, lanes = self.matrices.outputs, self.side, self.lanes
        image_rows, image_columns = self.problem.out
        count = height * self.columns

        def one(i: Index, j: Index, v: Index) -> Stmt:
            t = int64(i) * self.columns + j
            row, column = (first + i) * m, int64(j) * m
            channel = int64(b) * self.block + int64(v) * lanes
            out = local((m * m * lanes,), name="out")

            def element(p: int, q: int, x: Index) -> Expr:
                at = (int64(p * side + q) * count + t) * self.block + int64(v) * lanes
                return load(sums, at + x)

            def keep(p: int, q: int, x: Index, value: Expr) -> Stmt:
                return store(out, value, (p * m + q) * lanes + x)

            def results(p: int) -> Stmt:
                given = []
                for q in range(m):
                    position = (n, row + p, column + q)
                    stored: Any = self._store(position, channel, out, (p * m + q) * lanes)
                    if image_columns % m and q:
                        stored = when(column + q < image_columns, stored)
                    given.append(stored)
                line: Index = seq(*given)
                if image_rows % m and p:
                    line = when(row + p < image_rows, line)
                return line

            return seq(
                allocate(out),
                on_both_sides(self.matrices.back, lanes, element, keep),
                *map(results, range(m)),
            )

        return nest((height, self.columns, self.block // lanes), one)

    def _store(self, position: tuple[Index, ...], channel: Any, out: Any, at: int) -> Stmt:
        """Return a vector of channels at one position; of the last block, those that exist."""
        lanes, co = self.lanes, self.problem.co

        def vector(c: int, width: int) -> Stmt:
            return self.epilogue.store_vector(
                width,
                lambda z: (*position, channel + (int64(c) + z)),
                lambda z: load(out, at + (int64(c) + z)),
            )

        whole = vector(0, lanes)
        if co == self.blocks * self.block:
            return whole
        partly = None
        if co % lanes:
            some = seq(*(vector(c, w) for c, w in pieces(co % lanes, lanes)))
            partly = when(channel < co, some)
        return tirx.IfThenElse(channel + lanes <= co, whole, partly)


class Winograd(KernelRule[ConvProblem, WinogradPlan, Cpu]):
    """The rule that writes 3×3 convolutions by Winograd's method."""

    name = "conv winograd"

    def matches(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether it is a plain 3×3 convolution of enough channels, which are last."""
        return cost.takes(problem, machine)

    def worthwhile(self, problem: ConvProblem, machine: Cpu) -> bool:
        """Tells whether the estimates say clearly that it saves time."""
        return cost.worthwhile(machine, problem.co, problem.ci, problem.out)

    def default(self, problem: ConvProblem, machine: Cpu) -> WinogradPlan:
        """Return the size of tiles that is estimated to cost least."""
        outputs = cost.outputs_of(machine, problem.co, problem.ci, problem.out)
        return self._of_outputs(problem, machine, outputs)

    def _of_outputs(self, problem: ConvProblem, machine: Cpu, outputs: Outputs) -> WinogradPlan:
        tiles = cost.tiles_of(problem.out, outputs)
        block = block_of(machine, problem.co, (tiles[0] * tiles[1], 1))
        group = cost.group_rows(machine, (problem.ci, problem.co), block, tiles, outputs)
        return WinogradPlan(outputs, block // machine.lanes("float32"), group)

    def neighbours(
        self, problem: ConvProblem, plan: WinogradPlan, machine: Cpu
    ) -> Iterator[WinogradPlan]:
        """Yield other sizes of tiles, blocks and groups."""
        for outputs in OUTPUTS:
            if outputs != plan.outputs:
                yield self._of_outputs(problem, machine, outputs)
        tile_rows, _ = cost.tiles_of(problem.out, plan.outputs)
        blocks = -(-problem.co // machine.lanes("float32"))
        for block in near(plan.block, min(MOST_VECTORS, blocks)):
            yield replace(plan, block=block)
        for group in (plan.group // 2, plan.group * 2, tile_rows):
            if 1 <= group <= tile_rows:
                yield replace(plan, group=group)

    def pack(
        self, problem: ConvProblem, plan: WinogradPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the transformed weight as [blocks, points, input channels, block]."""
        block = plan.block * machine.lanes("float32")
        return matrices.pack(weight.astype(np.float32), plan.outputs, block)

    def reference(
        self, problem: ConvProblem, plan: WinogradPlan, *operands: te.Tensor
    ) -> te.Tensor:
        """Return the sums of data times the weight's elements, restored from transformed ones."""
        data, weight = operands
        taps, block = matrices.axes(), int(weight.shape[-1])

        def weight_at(_: Index, b: Index, channel: Index, r: Index) -> Expr:
            return matrices.tap(weight, b, r, channel, taps)

        return blocked_sum(problem, data, block, taps, weight_at, note(self, problem, plan))

    def write(self, problem: ConvProblem, plan: WinogradPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops: transform, multiply and bring back, group by group of rows of tiles."""
        return _Winograd(problem, plan, epilogue).write()
