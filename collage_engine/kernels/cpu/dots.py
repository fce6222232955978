"""Writes products of 8-bit and bfloat16 numbers, whose steps take several neighbouring channels.

Of integers there are four 8-bit products a lane and instruction. With AVX-512 VNNI that is
``vpdpbusd`` (unsigned data by signed weights, without saturation); elsewhere the same sums lane by
lane. Signed data is read with its top bit flipped, as value + 128; what wrote the computation
has taken that off again.

Of bfloat16 there are two products a lane and instruction. AVX-512's ``vdpbf16ps`` adds the products
of two neighbouring channels to float32 sums, twice the work of a float32 multiply-add (see
``kernels/bfloat16_numbers.py``).

Channels last, output channels in the lanes of the sums. The weight is packed [groups, blocks,
*kernel, steps, block, channels of a step]: one vector of it meets the neighbouring channels of one
position, broadcast. What a step is depends on the element type (``Dot``). Integer depthwise
convolutions have channels in the lanes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.bfloat16_numbers import ADD_PRODUCTS, LANES, PRODUCTS, real
from collage_engine.kernels.cpu.convolution import ConvProblem, blocked_sum, pad_into, taps_of
from collage_engine.kernels.cpu.writing.context import Context
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.register_tile import (
    columns_below,
    in_tiles,
    tile,
    vector_load,
    vector_store,
)
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    TilePlan,
    best_positions,
    cheapest_block,
    near,
    spans,
)
from collage_engine.kernels.expressions import UnsupportedPattern
from collage_engine.kernels.program import shape_of
from collage_engine.kernels.rounding import balanced
from collage_engine.kernels.rule import KernelRule, NoPlan, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import (
    Index,
    Stmt,
    allocate,
    bound,
    by_blocks,
    flat_index,
    in_vectors,
    int64,
    load,
    local,
    loop,
    seq,
    split_index,
    workspace,
)

FEW = LANES // 2
"""Channels of a group below which bfloat16 does not pay: more than half of a vector of sums would
be empty. With fewer coming in, a kernel row is multiplied as a whole."""


class DotProblem(ConvProblem, frozen=True, tag_field="family", tag="dots"):
    """A convolution over channels-last data, or a product over the last axis, of narrow numbers."""

    element: Literal["int8", "bfloat16"]
    """Element type of the weight. Its data is 8-bit integers, or bfloat16 numbers as ``uint16``."""
    zero: int = 0
    """The number that stands for 0 in the data, as an unsigned number; an image's rim holds it."""
    signed: bool = False
    """Whether data of 8 bits is signed; False for bfloat16 numbers."""

    @property
    def merged(self) -> bool:
        """Tells whether a kernel row's columns and channels are multiplied like channels.

        They lie side by side in the data; that pays where channels are too few by themselves.
        """
        return (
            self.element == "bfloat16"
            and len(self.kernel) > 1
            and self.groups == 1
            and self.ci_group < FEW
            and self.kernel[-1] > 1
            and self.dilation[-1] == 1
        )

    @property
    def looped_kernel(self) -> tuple[int, ...]:
        """Returns the taps along each axis that are looped over: of a merged row one."""
        return (*self.kernel[:-1], 1) if self.merged else self.kernel

    @property
    def run(self) -> int:
        """Returns the elements of a merged kernel row, its columns and channels; 0 otherwise."""
        return self.kernel[-1] * self.ci if self.merged else 0

    @property
    def stored(self) -> str:
        """Return the type of data made ready: unsigned bytes, or the bits of bfloat16 numbers."""
        return "uint16" if self.element == "bfloat16" else "uint8"

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return random data and weight: small integers, or bfloat16 in float32's upper halves."""
        if self.element == "int8":
            kind: Any = np.int8 if self.signed else np.uint8
            limits = np.iinfo(kind)
            data = random.integers(limits.min, limits.max, self.data, kind, endpoint=True)
            return data, random.integers(-127, 127, self.weight, np.int8, endpoint=True)
        data, weight = super().operands(random)
        return (data.view(np.uint32) >> 16).astype(np.uint16), weight


def in_steps(
    weights: np.ndarray, groups: int, block: int, together: int, kernel: Sequence[int]
) -> np.ndarray:
    """Return a weight in the order in which dot instructions read it.

    Args:
        weights: [O, I of a group, *kernel].
        groups: Groups of channels.
        block: Output channels of a block.
        together: Input channels of a step.
        kernel: Axes of taps in the result.

    Returns:
        [groups, blocks, *kernel, steps, block, channels of a step], zeros behind.
    """
    co, ci, taps = weights.shape[0] // groups, weights.shape[1], prod(weights.shape[2:])
    blocks, steps = -(-co // block), -(-ci // together)
    wide = np.zeros((groups, blocks * block, steps * together, taps), weights.dtype)
    wide[:, :co, :ci] = weights.reshape(groups, co, ci, taps)
    split = wide.reshape(groups, blocks, block, steps, together, taps)
    return np.ascontiguousarray(split.transpose(0, 1, 5, 3, 2, 4)).reshape(
        groups, blocks, *kernel, steps, block, together
    )


QUAD = 4
"""8-bit channels that one instruction multiplies and adds in each lane (AVX512-VNNI, VPDPBUSD)."""
PAIR = 2
"""bfloat16 channels that one instruction multiplies and adds in each lane (VDPBF16PS)."""


class Data:
    """The data where the kernel reads it: as it lies, or copied with its rim."""

    def __init__(self, problem: DotProblem, context: Context, together: int = 1) -> None:
        inside = problem.ci // problem.groups
        uneven = inside % together and not problem.run
        self.problem = problem
        self.pitch = problem.ci
        # The last step of a run may reach beyond it, so there must be something.
        beyond = together if problem.run % together else 0
        self.copied = bool(problem.padded != problem.size or uneven or beyond)
        self.flat = context.views.flat(context.data)
        self.size = problem.padded
        self.loops: Stmt | None = None
        if not self.copied:
            return
        if uneven:
            self.pitch = -(-problem.ci // together) * together
            self.pitch += together if problem.groups > 1 else 0
        length = problem.batch * prod(self.size) * self.pitch + beyond
        self.flat = workspace((length,), problem.stored, "prepared")
        context.buffers.append(self.flat)

        def copied(source: Any, start: Index) -> Callable[[Index], Expr]:
            return lambda offset: unsigned(load(source, start + offset), problem.signed)

        def rim(_: Index) -> Expr:
            return tirx.const(problem.zero, problem.stored)

        self.loops = pad_into(problem, context, self.flat, self.pitch, copied, rim)

    def at(self, n: Index, position: Sequence[Index], channel: Index) -> Any:
        """Return the flat index of a channel at a position.

        It is a position of the padded image when there is a copy.
        """
        return flat_index(position, self.size, int64(n)) * self.pitch + channel

    @property
    def flips(self) -> bool:
        """Tells whether bytes are still signed where they are read."""
        return self.problem.signed and not self.copied


def unsigned(value: Expr, signed: bool) -> Expr:
    """Return a byte as the unsigned number it stands for: signed ones are moved up by 128."""
    if not signed:
        return value
    moved = tirx.BitwiseXor(value, tirx.const(-128, "int8"))
    return tirx.call_intrin("uint8", "tirx.reinterpret", moved)


class Quads:
    """The step that multiplies four neighbouring 8-bit channels and adds their products."""

    together = QUAD
    """Neighbouring channels that one step multiplies and adds."""
    stored = "int8"
    """Element type in which packed weights are stored."""
    sums = "int32"
    """Element type of what is added up, as wide as a lane."""

    def __init__(self, context: Context) -> None:
        self.vnni, self.lanes = context.cpu.vnni, context.cpu.lanes("int32")

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Return four neighbouring channels of a position.

        With VNNI they stand in every lane as 8-bit numbers; without it they are one vector of four
        int32 numbers. Signed data is made unsigned by adding 128.
        """
        assert not count  # data made ready has zeros there
        small = "int8" if data.flips else "uint8"
        quad = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), QUAD)])
        if not self.vnni:
            wide = tirx.Cast(f"int32x{QUAD}", quad)
            if small == "int8":
                wide = wide + tirx.Broadcast(tirx.const(128, "int32"), QUAD)
            return wide
        word = tirx.call_intrin("int32", "tirx.reinterpret", quad)
        if data.flips:
            word = tirx.BitwiseXor(word, tirx.const(-0x7F7F7F80, "int32"))
        lanes = tirx.Broadcast(word, self.lanes)
        return tirx.call_intrin(f"int8x{self.lanes * QUAD}", "tirx.reinterpret", lanes)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Return the sums with four products added in each lane."""
        wide = f"int32x{self.lanes}"
        if not self.vnni:
            for j in range(QUAD):
                every = [QUAD * lane + j for lane in range(self.lanes)]
                picked = tirx.Cast(wide, tirx.Shuffle([weights], every))
                x = tirx.Shuffle([several], [j])
                total = total + tirx.Broadcast(x, self.lanes) * picked
            return total
        return tirx.call_llvm_pure_intrin(
            wide, "llvm.x86.avx512.vpdpbusd.512", total, several, weights
        )


class Pairs:
    """The step that multiplies two neighbouring bfloat16 channels and adds their products."""

    together = PAIR
    stored = "uint16"
    sums = "float32"

    def __init__(self, context: Context) -> None:
        if not context.cpu.bfloat16:
            raise UnsupportedPattern("no instruction for bfloat16 products")
        context.functions.append(PRODUCTS)

    def several(self, data: Data, at: Index, count: int = 0) -> Expr:
        """Return two neighbouring channels of a position, in every lane.

        The second may be missing.
        """
        if count:
            word = tirx.Cast("int32", load(data.flat, at))
        else:
            pair = tirx.BufferLoad(data.flat, [tirx.Ramp(int64(at), int64(1), PAIR)])
            word = tirx.call_intrin("int32", "tirx.reinterpret", pair)
        return tirx.Broadcast(word, LANES)

    def added(self, total: Expr, several: Expr, weights: Expr) -> Expr:
        """Return the sums with two products added in each lane."""
        words = tirx.call_intrin(f"int32x{LANES}", "tirx.reinterpret", weights)
        return tirx.call_pure_extern(f"float32x{LANES}", ADD_PRODUCTS, total, several, words)


Dot = Quads | Pairs
"""One step of a reduction: an instruction that multiplies and adds channels in every lane."""


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
        statements = [self.data.loops]
        for count_r, first_r, h in spans(rows, height):
            outer = () if self.flat or problem.dims == 1 else problem.out[:-2]

            def task(
                spatial: tuple[Index, ...],
                channels: tuple[Index, ...],
                h: int = h,
                first_r: int = first_r,
            ) -> Stmt:
                (n, *lead, i), (g, b) = spatial, channels
                row = int64(i) * h + first_r
                return in_tiles(
                    columns,
                    width,
                    lambda column, w: self.one(n, lead, g, b, (row, column), (h, w)),
                )

            spatial = (problem.batch, *outer, count_r)
            channels = (self.groups, self.blocks)
            statements.append(self.context.over_channels(share, spatial, channels, task))
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
        taps = zip(split_index(t, self.kernel), self.problem.dilation, strict=True)
        return flat_index([int64(k) * d for k, d in taps], self.data.size) * self.data.pitch

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

        last = columns_below(self.vectors, self.co - (self.blocks - 1) * self.block)
        return seq(
            allocate(sums),
            *(
                vector_store(sums, zero, at(r, v), self.lanes)
                for r in range(len(positions))
                for v in range(count)
            ),
            bound(self.origin(n, lead, corner, int64(g) * inside), body),
            by_blocks(b, self.blocks, self.vectors, last, finish),
        )

    def element(
        self, n: Index, position: tuple[Index, ...], row: Index, channel: Index
    ) -> tuple[Index, ...]:
        """Return the indices of a result."""
        if self.lead:
            return (*split_index(row, self.lead), channel)
        return (n, *position, channel)


BLOCK_PRICE = {1: 1.4, 2: 1.04, 3: 1.02, 4: 1.0}
"""Price of a product by vectors in a block. Chosen: a broadcast of several channels takes about
two fifths of an instruction that multiplies them, which nothing hides where it serves one product
only; otherwise tie-breakers for the block with fewer broadcasts. (Eleven convolutions of 1 × 1 in
bfloat16 reached 65 to 82 products a nanosecond with one vector on Zen 4, with four 76 to 108.) It
gives a plan to start from; tuning compares them."""


class Dots(KernelRule[DotProblem, TilePlan, Cpu]):
    """The base of rules for dot instructions: how their kernels are cut, and what they compute."""

    step: ClassVar[type[Quads | Pairs]]
    """What multiplies and adds in each lane."""

    def default(self, problem: DotProblem, machine: Cpu) -> TilePlan:
        """Return the block that is estimated to cost least, with the tile that suits it."""
        image = problem.image
        vectors = -(-problem.co_group // machine.lanes(self.step.sums))
        block = cheapest_block(machine, vectors, image, BLOCK_PRICE.__getitem__)
        return TilePlan(block, *best_positions(machine, block, image))

    def neighbours(self, problem: DotProblem, plan: TilePlan, machine: Cpu) -> Iterator[TilePlan]:
        """Yield other blocks with the tiles that suit them, then other tiles."""
        vectors = -(-problem.co_group // machine.lanes(self.step.sums))
        for block in near(plan.block, min(MOST_VECTORS, vectors)):
            yield TilePlan(block, *best_positions(machine, block, problem.image))
        yield from plan.other_tiles(problem.image, machine)

    def narrow(self, weight: np.ndarray) -> np.ndarray:
        """Return the weight in the type in which it is stored."""
        return weight

    def pack(
        self, problem: DotProblem, plan: TilePlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [groups, blocks, *kernel, steps, block, channels of a step]."""
        kernel = problem.looped_kernel
        if problem.merged:
            weight = np.moveaxis(weight, -1, 1).reshape(weight.shape[0], -1, *kernel)
        block = plan.block * machine.lanes(self.step.sums)
        return in_steps(self.narrow(weight), problem.groups, block, self.step.together, kernel)

    def write(self, problem: DotProblem, plan: TilePlan, epilogue: Epilogue) -> Stmt:
        """Return register tiles, by the processor's instruction for such steps if it has one."""
        return DotTiles(problem, plan, epilogue, self.step(epilogue.context)).loops()

    @abstractmethod
    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return an element of the data as the number that is multiplied."""

    @abstractmethod
    def weight_number(self, stored: Expr) -> Expr:
        """Return an element of the packed weight as the number that is multiplied."""

    def reference(self, problem: DotProblem, plan: TilePlan, *operands: te.Tensor) -> te.Tensor:
        """Return Σ data · weight, over data whose rim holds the zero point."""
        data, weight = operands
        taps, block, together = taps_of(problem), int(weight.shape[-2]), self.step.together

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            tap, deep = list(taps), channel
            if problem.merged:
                deep, tap[-1] = tap[-1] * problem.ci_group + channel, 0
            step, part = tirx.floordiv(deep, together), tirx.floormod(deep, together)
            return self.weight_number(weight(group, b, *tap, step, r, part))

        return blocked_sum(
            problem,
            data,
            block,
            taps,
            weight_at,
            note(self, problem, plan),
            lambda stored: self.number(problem, stored),
            tirx.const(problem.zero, self.step.sums),
        )


class Int8Dots(Dots):
    """Four 8-bit channels at once: unsigned data by signed weights, sums in int32."""

    name = "int8 dots"
    step = Quads

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are 8-bit integers and channels are added up."""
        return problem.element == "int8" and not problem.depthwise

    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return an unsigned number; signed ones are moved up."""
        return unsigned_number(problem, stored)

    def weight_number(self, stored: Expr) -> Expr:
        """Return a signed number."""
        return stored.astype("int32")


def unsigned_number(problem: DotProblem, stored: Expr) -> Expr:
    """Return an element as the unsigned number that is multiplied, in int32."""
    wide = stored.astype("int32")
    return wide + 128 if problem.signed else wide


class Int8Depthwise(KernelRule[DotProblem, NoPlan, Cpu]):
    """The rule that writes depthwise convolutions of 8-bit integers, channels in the lanes."""

    name = "int8 depthwise"

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are 8-bit integers and every channel is convolved by itself."""
        return problem.element == "int8" and problem.depthwise

    def default(self, problem: DotProblem, machine: Cpu) -> NoPlan:
        """Return the empty plan: the rule has nothing to choose."""
        return NoPlan()

    def pack(
        self, problem: DotProblem, plan: NoPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [taps, channels]."""
        return np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T)

    def reference(self, problem: DotProblem, plan: NoPlan, *operands: te.Tensor) -> te.Tensor:
        """Return Σ data · weight in int32, over unsigned data whose rim holds the zero point."""
        data, weight = operands
        taps = taps_of(problem)

        def weight_at(group: Index, b: Index, channel: Index, r: Index) -> Expr:
            return weight(flat_index(taps, problem.kernel), group).astype("int32")

        return blocked_sum(
            problem,
            data,
            1,
            taps,
            weight_at,
            note(self, problem, plan),
            lambda stored: unsigned_number(problem, stored),
            tirx.const(problem.zero, "int32"),
        )

    def write(self, problem: DotProblem, plan: NoPlan, epilogue: Epilogue) -> Stmt:
        """Return the loops: channels in the lanes, products in 16 bits, sums in 32."""
        context = epilogue.context
        data = Data(problem, context)
        lanes = context.cpu.lanes("int32")
        weight = context.views.flat(context.weight)
        width = min(4, max(1, problem.out[-1]))
        # A vector of products takes about four instructions, those that convert included.
        share = context.share_products(4 * problem.multiply_adds, "int32")
        spatial = (problem.batch, *problem.out[:-1])

        def run(
            n: Index, lead: Sequence[Index], column: Index, count: int, first: Index, size: int
        ) -> Stmt:
            def term(r: Index, lane: Index, t: Index) -> Expr:
                channel = int64(first) + lane
                k = split_index(t, problem.kernel)
                position = problem.read_at((*lead, column + r), k)
                index = data.at(n, position, channel)
                x = unsigned(load(data.flat, index), data.flips)
                w = load(weight, int64(t) * problem.co + channel)
                # 255 · −128 fits 16 bits.
                return (x.astype("int16") * w.astype("int16")).astype("int32")

            return tile(
                count,
                [(0, size)],
                lambda step: loop(problem.taps, step),
                term,
                lambda r, lane, value: epilogue.store(
                    (n, *lead, column + r, int64(first) + lane), value
                ),
                dtype="int32",
            )

        def task(index: Index) -> Stmt:
            n, *lead = split_index(index, spatial)

            def columns(column: Index, w: int) -> Stmt:
                return in_vectors(
                    problem.co,
                    lanes,
                    lambda first, size: run(n, lead, column, w, first, size),
                )

            return in_tiles(problem.out[-1], width, columns)

        return seq(data.loops, share(prod(spatial), task))


class Bfloat16Dots(Dots):
    """Two bfloat16 channels at once, sums in float32."""

    name = "bfloat16 dots"
    step = Pairs

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are bfloat16 ones and the processor multiplies such."""
        return problem.element == "bfloat16" and machine.bfloat16

    def narrow(self, weight: np.ndarray) -> np.ndarray:
        """Return the weight as bfloat16 numbers whose errors cancel within every row."""
        flat = balanced(np.ascontiguousarray(weight, np.float32).reshape(weight.shape[0], -1))
        return (flat.view(np.uint32) >> 16).astype(np.uint16).reshape(weight.shape)

    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return the float32 number of a bfloat16 one."""
        return real(stored)

    def weight_number(self, stored: Expr) -> Expr:
        """Return the float32 number of a bfloat16 one."""
        return real(stored)
