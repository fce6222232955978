"""States convolutions and products of narrow numbers, several of which are multiplied at once."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import msgspec
import numpy as np

from collage_engine.kernels.cpu.writing.tile_choice import image_of

FEW = 8
"""Channels of a group that do not repay bfloat16 by themselves; with fewer coming in, a kernel row
is multiplied as a whole. Chosen: half a vector of sums, or four pairs of channels."""


class DotProblem(msgspec.Struct, frozen=True, tag_field="family", tag="dots"):
    """A convolution over channels-last data, or a product over the last axis, of narrow numbers.

    ``weight`` is output channels, input channels of a group, kernel; a product has no kernel, and
    its ``data`` and ``out`` may have several leading axes. ``padding`` is before every spatial
    axis, then behind every one.
    """

    element: Literal["int8", "bfloat16"]
    """Element type of the weight. Its data is 8-bit integers, or bfloat16 numbers as ``uint16``."""
    data: tuple[int, ...]
    out: tuple[int, ...]
    weight: tuple[int, ...]
    groups: int = 1
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    zero: int = 0
    """The number that stands for 0 in the data, as an unsigned number; an image's rim holds it."""
    signed: bool = False
    """Whether data of 8 bits is signed; False for bfloat16 numbers."""

    @property
    def kernel(self) -> tuple[int, ...]:
        """Returns the taps along each spatial axis; none of a product."""
        return self.weight[2:]

    @property
    def taps(self) -> int:
        """Returns the taps of the whole kernel."""
        return prod(self.kernel)

    @property
    def ci_group(self) -> int:
        """Returns how many input channels one group has."""
        return self.weight[1]

    @property
    def co_group(self) -> int:
        """Returns how many output channels one group has."""
        return self.weight[0] // self.groups

    @property
    def depthwise(self) -> bool:
        """Tells whether every channel is convolved by itself."""
        return self.groups > 1 and self.weight[:2] == (self.groups, 1)

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
    def image(self) -> tuple[int, int]:
        """Returns the rows and columns that register tiles cover."""
        if not self.kernel:
            return prod(self.out[:-1]), 1
        flat = (
            self.taps == 1 and not any(self.padding) and all(stride == 1 for stride in self.strides)
        )
        return image_of(self.out[1:-1], flat)

    @property
    def depth(self) -> int:
        """Returns how many products are added up to one result."""
        return prod(self.weight[1:])

    @property
    def multiply_adds(self) -> float:
        """Returns how many products are added up."""
        return float(prod(self.out) * self.depth)

    def operands(self, random: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return random data and weight: small integers, or bfloat16 in float32's upper halves."""
        if self.element == "int8":
            kind: Any = np.int8 if self.signed else np.uint8
            limits = np.iinfo(kind)
            data = random.integers(limits.min, limits.max, self.data, kind, endpoint=True)
            return data, random.integers(-127, 127, self.weight, np.int8, endpoint=True)
        wide = random.standard_normal(self.data, dtype=np.float32)
        weight = random.standard_normal(self.weight, dtype=np.float32)
        data = (wide.view(np.uint32) >> 16).astype(np.uint16)
        return data, weight * np.float32(self.depth**-0.5)
