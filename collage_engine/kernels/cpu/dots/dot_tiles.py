"""Writes convolutions and products whose steps take several neighbouring channels at once.

Channels last, output channels in the lanes of the sums. The weight is packed [groups, blocks,
*kernel, steps, block, channels of a step]: one vector of it meets the neighbouring channels of one
position, broadcast. What a step is depends on the element type (``Dot``).

Integer depthwise convolutions have channels in the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.dots.dot_data import Data, unsigned
from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import (
    columns_below,
    tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.cpu.writing.tile_choice import TilePlan, spans
from collage_engine.kernels.program import shape_of
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
    seq,
    split_index,
)
from collage_engine.records.graph import item_bytes


class Dot(Protocol):
    """One step of a reduction: an instruction that multiplies and adds channels in every lane."""

    together: int
    """Neighbouring channels that one step multiplies and adds."""
    stored: str
    """Element type in which packed weights are stored."""
    sums: str
    """Element type of what is added up, as wide as a lane."""

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Return the channels from ``at`` on, for all lanes.

        Those behind the first ``count`` are zeros (0: all are there).
        """

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Return the sums with a step's products added in each lane."""


class DotTiles:
    """The writer of register tiles over narrow elements: positions by blocks of channels."""

    def __init__(self, problem: DotProblem, plan: TilePlan, epilogue: Epilogue, dot: Dot) -> None:
        context = epilogue.context
        self.lead = () if problem.kernel else problem.out_shape[:-1]
        """Axes before the channels of a product's result; empty for convolutions."""
        self.problem = problem = problem.of_points()
        self.epilogue, self.context, self.dot = epilogue, context, dot
        self.kernel = problem.looped_kernel
        self.flat = problem.pointwise
        """Whether output positions are input positions, one by one."""
        self.lanes = context.cpu.lanes(dot.sums)
        self.groups, self.blocks, *_, self.steps, self.block, _ = shape_of(context.weight)
        self.co = problem.co // problem.groups
        self.vectors = [(i * self.lanes, self.lanes) for i in range(self.block // self.lanes)]
        self.data = Data(problem, context, dot.together)
        self.weight = context.views.flat(context.weight)
        self.tile = plan.rows, plan.columns

    def loops(self) -> Stmt:
        """Return the loops over tiles, after those that make the data ready."""
        problem, (rows, columns), (height, width) = self.problem, self.problem.image, self.tile
        share = self.context.share_products(problem.multiply_adds, "int8")
        weight_bytes = item_bytes(self.dot.stored) * prod(shape_of(self.context.weight))
        inside = weight_bytes <= self.context.cpu.half_l2
        statements = [self.data.loops]
        for count_r, first_r, h in spans(rows, height):
            outer = () if self.flat or problem.dims == 1 else problem.out[:-2]
            spatial = (problem.batch, *outer, count_r)
            channels = (self.groups, self.blocks)

            def task(
                index: Index,
                spatial: Any = spatial,
                channels: Any = channels,
                h: int = h,
                first_r: int = first_r,
            ) -> Stmt:
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

            statements.append(share(prod((*spatial, *channels)), task))
        return seq(*statements)

    def place(self, lead: Sequence[Index], row: Index, column: Index) -> tuple[Index, ...]:
        """Return the output position of a row and a column of the image that tiles cover."""
        if self.flat:
            return tuple(split_index(row, self.problem.out))
        return (row,) if len(self.problem.out) == 1 else (*lead, row, column)

    def origin(self, n: Index, lead: Sequence[Index], corner: Any, channel: Index) -> Any:
        """Return where the first position's first tap lies."""
        problem = self.problem
        if self.flat:
            return (int64(n) * prod(problem.size) + corner[0]) * self.data.pitch + channel
        position = self.place(lead, *corner)
        return self.data.at(
            n, [p * s for p, s in zip(position, problem.strides, strict=True)], channel
        )

    def offset(self, i: int, j: int) -> int:
        """Return the distance from the first position of a tile to another."""
        problem, pitch = self.problem, self.data.pitch
        if self.flat:
            return i * pitch
        if len(problem.out) == 1:
            return i * problem.strides[0] * pitch
        return (i * problem.strides[-2] * self.data.size[-1] + j * problem.strides[-1]) * pitch

    def tap(self, t: Index) -> Any:
        """Return how far a tap lies from the first."""
        index: Index = int64(0)
        for k, e, d in zip(
            split_index(t, self.kernel), self.data.size, self.problem.dilation, strict=True
        ):
            index = index * e + int64(k) * d
        return index * self.data.pitch

    def one(
        self,
        n: Index,
        lead: Any,
        g: Index,
        b: Index,
        corner: tuple[Index, Index],
        size: tuple[int, int],
    ) -> Stmt:
        """Return the sums of one tile, and what becomes of them."""
        problem, count = self.problem, len(self.vectors)
        positions = [(i, j) for i in range(size[0]) for j in range(size[1])]
        sums = local((len(positions) * self.block,), self.dot.sums)
        zero = tirx.Broadcast(tirx.const(0, self.dot.sums), self.lanes)
        together = self.dot.together
        width = self.lanes * together
        inside = problem.ci // problem.groups

        def at(r: int, v: int) -> int:
            return r * self.block + v * self.lanes

        def step(first: Index, weights: Any, there: int = 0) -> Stmt:
            statements: list[Stmt] = []
            held = []
            for v in range(count):
                var = tirx.Var("w", f"{self.dot.stored}x{width}")
                value = vector_load(self.weight, weights + v * width, width)
                statements.append(tirx.Bind(var, value))
                held.append(var)
            for r, (i, j) in enumerate(positions):
                several = self.dot.several(self.data, first + self.offset(i, j), there)
                var = tirx.Var("x", str(several.ty.dtype))
                statements.append(tirx.Bind(var, several))
                for v in range(count):
                    total = vector_load(sums, at(r, v), self.lanes)
                    added = self.dot.added(total, var, held[v])
                    statements.append(vector_store(sums, added, at(r, v), self.lanes))
            return seq(*statements)

        def body(origin: Index) -> Stmt:
            def tap(t: Index) -> Stmt:
                weights = ((int64(g) * self.blocks + b) * prod(self.kernel) + t) * (
                    self.steps * self.block * together
                )

                def run(begin: Index, packed: Any) -> Stmt:
                    rest = problem.run % together
                    whole = self.steps - bool(rest)

                    def at(q: Index) -> tuple[Index, Index]:
                        return begin + q * together, packed + q * (self.block * together)

                    return seq(
                        loop(whole, lambda q: step(*at(int64(q)))) if whole else None,
                        step(*at(int64(whole)), rest) if rest else None,
                    )

                return bound(
                    origin + self.tap(t),
                    lambda begin: bound(weights, lambda packed: run(begin, packed)),
                )

            return loop(prod(self.kernel), tap)

        def finish(kept: Any) -> Stmt:
            def store_one(i: int, j: int, r: int, c: int, w: int) -> Stmt:
                position = self.place(lead, corner[0] + i, corner[1] + j)
                first = int64(g) * self.co + int64(b) * self.block + int64(c)
                return self.epilogue.store_vector(
                    w,
                    lambda x: self.element(n, position, corner[0] + i, first + x),
                    lambda x: load(sums, int64(r * self.block + c) + x),
                )

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

    def element(
        self, n: Index, position: tuple[Index, ...], row: Index, channel: Index
    ) -> tuple[Index, ...]:
        """Return the indices of a result."""
        if self.lead:
            return (*split_index(row, self.lead), channel)
        return (n, *position, channel)


class Depthwise:
    """Each channel by itself: channels in the lanes, products in 16 bits, sums in 32."""

    def __init__(self, problem: DotProblem, epilogue: Epilogue, context: Context) -> None:
        self.problem, self.epilogue, self.context = problem, epilogue, context
        self.data = Data(problem, context)

    def loops(self) -> Stmt:
        """Return the loops, after those that make the data ready."""
        problem, cpu = self.problem, self.context.cpu
        lanes = cpu.lanes("int32")
        weight = self.context.views.flat(self.context.weight)
        width = min(4, max(1, problem.out[-1]))
        # A vector of products takes about four instructions, those that convert included.
        share = self.context.share_products(4 * problem.multiply_adds, "int32")
        spatial = (problem.batch, *problem.out[:-1])
        statements = [self.data.loops]

        def at(position: Sequence[Index], k: Sequence[Index]) -> list[Any]:
            return [
                p * s + int64(t) * d
                for p, s, t, d in zip(position, problem.strides, k, problem.dilation, strict=True)
            ]

        def run(
            n: Index, lead: Sequence[Index], column: Index, count: int, first: Index, size: int
        ) -> Stmt:
            def term(r: Index, lane: Index, t: Index) -> Expr:
                channel = int64(first) + lane
                k = split_index(t, problem.kernel)
                index = self.data.at(n, at((*lead, column + r), k), channel)
                x = unsigned(load(self.data.flat, index), self.data.flips)
                w = load(weight, int64(t) * problem.co + channel)
                # 255 · −128 fits 16 bits.
                return (x.astype("int16") * w.astype("int16")).astype("int32")

            return tile(
                count,
                [(0, size)],
                lambda step: loop(problem.taps, step),
                term,
                lambda r, lane, value: self.epilogue.store(
                    (n, *lead, column + r, int64(first) + lane), value
                ),
                dtype="int32",
            )

        def task(index: Index) -> Stmt:
            n, *lead = split_index(index, spatial)
            parts = []
            for number, f, w in spans(problem.out[-1], width):

                def columns(j: Index, w: int = w, f: int = f) -> Stmt:
                    column = int64(j) * w + f
                    return in_vectors(
                        problem.co,
                        lanes,
                        lambda first, size: run(n, lead, column, w, first, size),
                    )

                parts.append(loop(number, columns))
            return seq(*parts)

        statements.append(share(prod(spatial), task))
        return seq(*statements)
