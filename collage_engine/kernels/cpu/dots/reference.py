"""Gives the plain sums of narrow numbers, with weights packed by steps of several channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

from collage_engine.kernels.cpu.dots.problem import DotProblem
from collage_engine.kernels.tir_builder import Index


def in_steps(
    weights: np.ndarray, groups: int, block: int, together: int, kernel: Sequence[int]
) -> np.ndarray:
    """Returns a weight in the order in which dot instructions read it.

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


def input_at(
    problem: DotProblem,
    data: Callable[..., Any],
    index: Sequence[Index],
    taps: Sequence[Index],
    channel: Index,
    rim: Any,
) -> Any:
    """Returns the input element that a tap of the output at ``index`` reads.

    Args:
        problem: The convolution or product.
        data: Gives an element, widened, for indices with the channel last.
        index: The output element.
        taps: The tap's place along each axis of the kernel.
        channel: The input channel, of all groups.
        rim: What stands outside the image.
    """
    if not taps:
        return data(*index[:-1], channel)
    at = [
        p * s + k * d - b
        for p, s, k, d, b in zip(
            index[1:-1],
            problem.strides,
            taps,
            problem.dilation,
            problem.padding[: len(taps)],
            strict=True,
        )
    ]
    x = data(index[0], *at, channel)
    if any(problem.padding):
        sizes = problem.data[1:-1]
        tests = [t for a, e in zip(at, sizes, strict=True) for t in (a >= 0, a < e)]
        x = tirx.if_then_else(tirx.all(*tests), x, rim)
    return x


def taps_of(problem: DotProblem) -> list[Any]:
    """Returns a reduction axis for each of the kernel's axes."""
    return [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(problem.kernel)]


def grouped(problem: DotProblem, c: Index) -> tuple[Index, Index]:
    """Returns the group of an output channel, and its place in it."""
    if problem.groups == 1:
        return 0, c
    return tirx.floordiv(c, problem.co_group), tirx.floormod(c, problem.co_group)
