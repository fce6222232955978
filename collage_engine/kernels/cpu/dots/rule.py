"""Decides on convolutions and products that multiply several neighbouring channels at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.bfloat16_numbers import PRODUCTS, real
from collage_engine.kernels.cpu.dots import plan as cutting
from collage_engine.kernels.cpu.dots.dot_data import PAIR, QUAD, DotShape, Pairs, Quads
from collage_engine.kernels.cpu.dots.dot_tiles import Depthwise, DotTiles
from collage_engine.kernels.cpu.dots.plan import DotPlan
from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.cpu.dots.reference import grouped, in_steps, input_at, taps_of
from collage_engine.kernels.cpu.writing.epilogue import Epilogue
from collage_engine.kernels.expressions import NotUnderstood
from collage_engine.kernels.note import note
from collage_engine.kernels.rounding import balanced
from collage_engine.kernels.rule import KernelRule, NoPlan
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import Index, Stmt


class Dots(KernelRule[DotProblem, DotPlan, Cpu]):
    """The base of rules for dot instructions: how their kernels are cut."""

    problem_type = DotProblem
    plan_type = DotPlan

    def default(self, problem: DotProblem, machine: Cpu) -> DotPlan:
        """Returns the cut that is estimated to cost least."""
        return cutting.default(problem, machine)

    def neighbours(self, problem: DotProblem, plan: DotPlan, machine: Cpu) -> Iterator[DotPlan]:
        """Returns other blocks and tiles."""
        return cutting.neighbours(problem, plan, machine)

    def check(self, problem: DotProblem, plan: DotPlan, machine: Cpu) -> None:
        """Raises ``PlanError`` where the plan does not suit the sizes."""
        cutting.check(problem, plan, machine)


class Int8Dots(Dots):
    """Four 8-bit channels at once: unsigned data by signed weights, sums in int32."""

    name = "int8 dots"

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are 8-bit integers and channels are added up."""
        return problem.element == "int8" and not problem.depthwise

    def pack(
        self, problem: DotProblem, plan: DotPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Returns the weight as [groups, blocks, *kernel, quads of channels, block, 4]."""
        block = plan.block * machine.lanes("int32")
        return in_steps(weight, problem.groups, block, QUAD, problem.kernel)

    def reference(self, problem: DotProblem, plan: DotPlan, *operands: te.Tensor) -> te.Tensor:
        """Returns Σ data · weight in int32, over unsigned data whose rim holds the zero point."""
        data, weight = operands
        taps = taps_of(problem)
        channel = te.reduce_axis((0, problem.ci_group), "rc")
        block = int(weight.shape[-2])
        rim = tirx.const(problem.zero, "int32")

        def element(*index: Index) -> Expr:
            g, inner = grouped(problem, index[-1])
            source = g * problem.ci_group + channel if problem.groups > 1 else channel
            x = input_at(problem, unsigned(problem, data), index, taps, source, rim)
            w = weight(
                g,
                tirx.floordiv(inner, block),
                *taps,
                tirx.floordiv(channel, QUAD),
                tirx.floormod(inner, block),
                tirx.floormod(channel, QUAD),
            )
            return te.sum(x * w.astype("int32"), axis=[channel, *taps])

        return te.compute(problem.out, element, name="sums", attrs=note(self, problem, plan))

    def write(self, problem: DotProblem, plan: DotPlan, epilogue: Epilogue) -> Stmt:
        """Register tiles, by AVX-512 VNNI where the processor has it."""
        shape = DotShape.of(problem, epilogue.anchor)
        return DotTiles(shape, plan, epilogue, Quads(epilogue.context)).loops()


def unsigned(problem: DotProblem, data: Any) -> Any:
    """Gives the data's elements as the unsigned numbers that are multiplied, in int32."""

    def element(*index: Index) -> Expr:
        wide = data(*index).astype("int32")
        return wide + 128 if problem.signed else wide

    return element


class Int8Depthwise(KernelRule[DotProblem, NoPlan, Cpu]):
    """The rule that writes depthwise convolutions of 8-bit integers, channels in the lanes."""

    name = "int8 depthwise"
    problem_type = DotProblem

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are 8-bit integers and every channel is convolved by itself."""
        return problem.element == "int8" and problem.depthwise

    def default(self, problem: DotProblem, machine: Cpu) -> NoPlan:
        """Returns the empty plan: the rule has nothing to choose."""
        return NoPlan()

    def pack(
        self, problem: DotProblem, plan: NoPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Return the weight as [taps, channels]."""
        return np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T)

    def reference(self, problem: DotProblem, plan: NoPlan, *operands: te.Tensor) -> te.Tensor:
        """Returns Σ data · weight in int32, over unsigned data whose rim holds the zero point."""
        data, weight = operands
        taps = taps_of(problem)
        rim = tirx.const(problem.zero, "int32")

        def element(*index: Index) -> Expr:
            x = input_at(problem, unsigned(problem, data), index, taps, index[-1], rim)
            tap: Index = 0
            for k, e in zip(taps, problem.kernel, strict=True):
                tap = tap * e + k
            return te.sum(x * weight(tap, index[-1]).astype("int32"), axis=taps)

        return te.compute(problem.out, element, name="sums", attrs=note(self, problem, plan))

    def write(self, problem: DotProblem, plan: NoPlan, epilogue: Epilogue) -> Stmt:
        """Returns the products in 16 bits, sums in 32."""
        shape = DotShape.of(problem, epilogue.anchor)
        return Depthwise(shape, epilogue, epilogue.context).loops()


class Bfloat16Dots(Dots):
    """Two bfloat16 channels at once, sums in float32."""

    name = "bfloat16 dots"

    def matches(self, problem: DotProblem, machine: Cpu) -> bool:
        """Tells whether the numbers are bfloat16 ones and the processor multiplies such."""
        return problem.element == "bfloat16" and machine.bfloat16

    def pack(
        self, problem: DotProblem, plan: DotPlan, machine: Cpu, weight: np.ndarray
    ) -> np.ndarray:
        """Returns the weight as ``uint16`` [groups, blocks, *kernel, pairs of channels, block, 2].

        Weights are rounded so that their errors cancel within every output channel.
        """
        kernel: tuple[int, ...] = problem.kernel or (1,)
        if problem.merged:
            weight = np.moveaxis(weight, -1, 1)
            kernel = (*problem.kernel[:-1], 1)
            weight = weight.reshape(weight.shape[0], -1, *kernel)
        block = plan.block * machine.lanes("float32")
        return in_steps(halves(weight), problem.groups, block, PAIR, kernel)

    def reference(self, problem: DotProblem, plan: DotPlan, *operands: te.Tensor) -> te.Tensor:
        """Returns Σ data · weight in float32, over data whose rim is zero."""
        data, weight = operands
        taps = taps_of(problem)
        channel = te.reduce_axis((0, problem.ci_group), "rc")
        block = int(weight.shape[-2])
        rim = tirx.const(0, "float32")

        def element(*index: Index) -> Expr:
            g, inner = grouped(problem, index[-1])
            source = g * problem.ci_group + channel if problem.groups > 1 else channel
            x = input_at(problem, lambda *i: real(data(*i)), index, taps, source, rim)
            tap, deep = list(taps) or [0], channel
            if problem.merged:
                deep, tap[-1] = tap[-1] * problem.ci_group + channel, 0
            w = weight(
                g,
                tirx.floordiv(inner, block),
                *tap,
                tirx.floordiv(deep, PAIR),
                tirx.floormod(inner, block),
                tirx.floormod(deep, PAIR),
            )
            return te.sum(x * real(w), axis=[channel, *taps])

        return te.compute(problem.out, element, name="sums", attrs=note(self, problem, plan))

    def write(self, problem: DotProblem, plan: DotPlan, epilogue: Epilogue) -> Stmt:
        """Write register tiles by AVX-512's ``vdpbf16ps``."""
        context = epilogue.context
        if not context.cpu.bfloat16:
            raise NotUnderstood("no instruction for bfloat16 products")
        shape = DotShape.of(problem, epilogue.anchor)
        context.functions.append(PRODUCTS)
        return DotTiles(shape, plan, epilogue, Pairs()).loops()


def halves(weights: np.ndarray) -> np.ndarray:
    """Returns float32 ``[rows, …]`` as bfloat16 numbers whose errors cancel within every row."""
    flat = balanced(np.ascontiguousarray(weights, np.float32).reshape(weights.shape[0], -1))
    return (flat.view(np.uint32) >> 16).astype(np.uint16).reshape(weights.shape)
