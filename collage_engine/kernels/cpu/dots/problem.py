"""States convolutions and products of narrow numbers, and packs their weights."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

import numpy as np

from collage_engine.kernels.bfloat16_numbers import LANES
from collage_engine.kernels.cpu.convolution.problem import ConvProblem

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
