"""Gives the plain computation of a convolution, whichever way its weight is packed.

Weights are packed in blocks of output channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.convolution.problem import ConvProblem
from collage_engine.kernels.tir_builder import Index


def in_blocks(problem: ConvProblem, weight: np.ndarray, block: int) -> np.ndarray:
    """Returns a weight [O, I, *kernel] cut into blocks of output channels.

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
    """Returns a reduction axis for each of the kernel's axes."""
    return [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(problem.kernel)]


def input_at(
    problem: ConvProblem,
    data: Any,
    index: Sequence[Index],
    taps: Sequence[Index],
    channel: Index,
    rim: Any = None,
) -> Any:
    """Returns the input element that a tap of the output at ``index`` reads.

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
    place = index[1:-1] if problem.channels_last else index[2:]
    at = [
        p * s + k * d - b
        for p, s, k, d, b in zip(
            place, problem.strides, taps, problem.dilation, problem.before, strict=True
        )
    ]
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
) -> Any:
    """Returns a convolution or product over a weight that is packed by blocks of output channels.

    Args:
        problem: The convolution or product.
        data: The data's tensor; that of a product may have several leading axes.
        block: Output channels of a block.
        taps: Reduction axes; the kernel's own come first.
        weight_at: The weight's element for (group, block, input channel of the group, output
            channel of the block), at the taps.
        note: The annotation for the block that adds up.
    """
    channel = te.reduce_axis((0, problem.ci_group), "rc")

    def element(*index: Index) -> Expr:
        c = index[-1] if problem.channels_last else index[1]
        group: Index = tirx.floordiv(c, problem.co_group) if problem.groups > 1 else 0
        source = group * problem.ci_group + channel if problem.groups > 1 else channel
        x = input_at(problem, data, index, taps[: problem.dims], source)
        inner = tirx.floormod(c, problem.co_group) if problem.groups > 1 else c
        b, r = tirx.floordiv(inner, block), tirx.floormod(inner, block)
        return te.sum(x * weight_at(group, b, channel, r), axis=[channel, *taps])

    if not problem.kernel:
        return te.compute((*data.shape[:-1], problem.co), element, name="matmul", attrs=note)
    return te.compute(problem.out_shape, element, name="conv", attrs=note)
