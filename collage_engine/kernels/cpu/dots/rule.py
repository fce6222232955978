"""Decides on convolutions and products that multiply several neighbouring channels at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.bfloat16_numbers import PRODUCTS, real
from collage_engine.kernels.cpu.convolution.problem import input_at, taps_of
from collage_engine.kernels.cpu.dots.dot_data import PAIR, QUAD, Pairs, Quads
from collage_engine.kernels.cpu.dots.dot_tiles import Depthwise, DotTiles
from collage_engine.kernels.cpu.dots.problem import DotProblem, in_steps
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.cpu.writing.tile_choice import (
    MOST_VECTORS,
    TilePlan,
    best_positions,
    near,
    tile_cost,
)
from collage_engine.kernels.expressions import UnsupportedPattern
from collage_engine.kernels.rounding import balanced
from collage_engine.kernels.rule import KernelRule, NoPlan, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt

BLOCK_PRICE = {1: 1.4, 2: 1.04, 3: 1.02, 4: 1.0}
"""Price of a product by vectors in a block. Chosen: a broadcast of several channels takes about
two fifths of an instruction that multiplies them, which nothing hides where it serves one product
only; otherwise tie-breakers for the block with fewer broadcasts. (Eleven convolutions of 1 × 1 in
bfloat16 reached 65 to 82 products a nanosecond with one vector on Zen 4, with four 76 to 108.) It
gives a plan to start from; tuning compares them."""


class Dots(KernelRule[DotProblem, TilePlan, Cpu]):
    """The base of rules for dot instructions: how their kernels are cut, and what they compute."""

    problem_type = DotProblem
    plan_type = TilePlan
    together: ClassVar[int]
    """Channels that one instruction multiplies and adds in each lane."""
    sums: ClassVar[str]
    """Element type of what is added up."""

    def default(self, problem: DotProblem, machine: Cpu) -> TilePlan:
        """Return the block that is estimated to cost least, with the tile that suits it."""
        image = problem.image
        vectors = -(-problem.co_group // machine.lanes(self.sums))

        def price(v: int) -> float:
            tiles = tile_cost(machine, v, image, best_positions(machine, v, image))
            return tiles * -(-vectors // v) * BLOCK_PRICE[v]

        block = min(range(1, min(MOST_VECTORS, vectors) + 1), key=lambda v: (price(v), -v))
        return TilePlan(block, *best_positions(machine, block, image))

    def neighbours(self, problem: DotProblem, plan: TilePlan, machine: Cpu) -> Iterator[TilePlan]:
        """Yield other blocks with the tiles that suit them, then other tiles."""
        vectors = -(-problem.co_group // machine.lanes(self.sums))
        for block in near(plan.block, min(MOST_VECTORS, vectors)):
            yield TilePlan(block, *best_positions(machine, block, problem.image))
        yield from plan.other_tiles(problem.image, machine)

    def check(self, problem: DotProblem, plan: TilePlan, machine: Cpu) -> None:
        """Raise ``PlanError`` where the plan does not suit the sizes."""
        plan.check_tile(problem.co_group, problem.image, machine)

    @abstractmethod
    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return an element of the data as the number that is multiplied."""

    @abstractmethod
    def weight_number(self, stored: Expr) -> Expr:
        """Return an element of the packed weight as the number that is multiplied."""

    def reference(self, problem: DotProblem, plan: TilePlan, *operands: te.Tensor) -> te.Tensor:
        """Return Σ data · weight, over data whose rim holds the zero point."""
        data, weight = operands
        taps = taps_of(problem)
        channel = te.reduce_axis((0, problem.ci_group), "rc")
        block = int(weight.shape[-2])
        rim = tirx.const(problem.zero, self.sums)

        def element(*index: Index) -> Expr:
            group, inner, source = 0, index[-1], channel
            if problem.groups > 1:
                group = tirx.floordiv(inner, problem.co_group)
                inner = tirx.floormod(inner, problem.co_group)
                source = group * problem.ci_group + channel
            x = input_at(
                problem, lambda *i: self.number(problem, data(*i)), index, taps, source, rim
            )
            tap, deep = list(taps), channel
            if problem.merged:
                deep, tap[-1] = tap[-1] * problem.ci_group + channel, 0
            w = weight(
                group,
                tirx.floordiv(inner, block),
                *tap,
                tirx.floordiv(deep, self.together),
                tirx.floormod(inner, block),
                tirx.floormod(deep, self.together),
            )
            return te.sum(x * self.weight_number(w), axis=[channel, *taps])

        return te.compute(problem.out_shape, element, name="sums", attrs=note(self, problem, plan))


class Int8Dots(Dots):
    """Four 8-bit channels at once: unsigned data by signed weights, sums in int32."""

    name = "int8 dots"
    together = QUAD
    sums = "int32"

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are 8-bit integers and channels are added up."""
        return problem.element == "int8" and not problem.depthwise

    def pack(
        self, problem: DotProblem, plan: TilePlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [groups, blocks, *kernel, quads of channels, block, 4]."""
        block = plan.block * machine.lanes("int32")
        return in_steps(weight, problem.groups, block, QUAD, problem.kernel)

    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return an unsigned number; signed ones are moved up."""
        return unsigned(problem, stored)

    def weight_number(self, stored: Expr) -> Expr:
        """Return a signed number."""
        return stored.astype("int32")

    def write(self, problem: DotProblem, plan: TilePlan, epilogue: Epilogue) -> Stmt:
        """Register tiles, by AVX-512 VNNI where the processor has it."""
        return DotTiles(problem, plan, epilogue, Quads(epilogue.context)).loops()


def unsigned(problem: DotProblem, stored: Expr) -> Expr:
    """Return an element as the unsigned number that is multiplied, in int32."""
    wide = stored.astype("int32")
    return wide + 128 if problem.signed else wide


class Int8Depthwise(KernelRule[DotProblem, NoPlan, Cpu]):
    """The rule that writes depthwise convolutions of 8-bit integers, channels in the lanes."""

    name = "int8 depthwise"
    problem_type = DotProblem

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
        rim = tirx.const(problem.zero, "int32")

        def element(*index: Index) -> Expr:
            x = input_at(
                problem, lambda *i: unsigned(problem, data(*i)), index, taps, index[-1], rim
            )
            tap: Index = 0
            for k, e in zip(taps, problem.kernel, strict=True):
                tap = tap * e + k
            return te.sum(x * weight(tap, index[-1]).astype("int32"), axis=taps)

        return te.compute(problem.out_shape, element, name="sums", attrs=note(self, problem, plan))

    def write(self, problem: DotProblem, plan: NoPlan, epilogue: Epilogue) -> Stmt:
        """Return the products in 16 bits, sums in 32."""
        return Depthwise(problem, epilogue, epilogue.context).loops()


class Bfloat16Dots(Dots):
    """Two bfloat16 channels at once, sums in float32."""

    name = "bfloat16 dots"
    together = PAIR
    sums = "float32"

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are bfloat16 ones and the processor multiplies such."""
        return problem.element == "bfloat16" and machine.bfloat16

    def pack(
        self, problem: DotProblem, plan: TilePlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as ``uint16`` [groups, blocks, *kernel, pairs of channels, block, 2].

        Weights are rounded so that their errors cancel within every output channel.
        """
        kernel = problem.looped_kernel
        if problem.merged:
            weight = np.moveaxis(weight, -1, 1).reshape(weight.shape[0], -1, *kernel)
        block = plan.block * machine.lanes("float32")
        return in_steps(halves(weight), problem.groups, block, PAIR, kernel)

    def number(self, problem: DotProblem, stored: Expr) -> Expr:
        """Return the float32 number of a bfloat16 one."""
        return real(stored)

    def weight_number(self, stored: Expr) -> Expr:
        """Return the float32 number of a bfloat16 one."""
        return real(stored)

    def write(self, problem: DotProblem, plan: TilePlan, epilogue: Epilogue) -> Stmt:
        """Write register tiles by AVX-512's ``vdpbf16ps``."""
        context = epilogue.context
        if not context.cpu.bfloat16:
            raise UnsupportedPattern("no instruction for bfloat16 products")
        context.functions.append(PRODUCTS)
        return DotTiles(problem, plan, epilogue, Pairs()).loops()


def halves(weights: np.ndarray) -> np.ndarray:
    """Return float32 ``[rows, …]`` as bfloat16 numbers whose errors cancel within every row."""
    flat = balanced(np.ascontiguousarray(weights, np.float32).reshape(weights.shape[0], -1))
    return (flat.view(np.uint32) >> 16).astype(np.uint16).reshape(weights.shape)
