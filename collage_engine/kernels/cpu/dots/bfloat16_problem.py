"""Products whose operands are rounded to bfloat16: rounding, packing, computation.

A number is held as the upper half of a float32 one, in ``uint16``. ``convolution`` and ``product``
are the specifications that schedules/bfloat16.py writes; sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import te, tirx

from collage_engine.kernels.bfloat16_numbers import real
from collage_engine.kernels.cpu.dots.dot_data import PAIR
from collage_engine.kernels.cpu.writing.tile_choice import dot_block_of, image_of
from collage_engine.kernels.relax_values import note
from collage_engine.kernels.rounding import balanced
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import product

FEW = 8
"""Channels of a group that do not repay bfloat16 by themselves; with fewer coming in, a kernel row
is multiplied as a whole."""


def halves(weights: np.ndarray) -> np.ndarray:
    """Float32 ``[rows, …]`` as bfloat16 numbers whose errors cancel within every row."""
    flat = balanced(np.ascontiguousarray(weights, np.float32).reshape(weights.shape[0], -1))
    return (flat.view(np.uint32) >> 16).astype(np.uint16).reshape(weights.shape)


class Sizes:
    """Of a convolution over channels-last data with weights O, I of a group, kernel; a product
    over the last axis has no kernel."""

    def __init__(
        self,
        data: Sequence[int],
        out: Sequence[int],
        weights: Sequence[int],
        groups: int = 1,
        strides: Sequence[int] = (),
        padding: Sequence[int] = (),
        dilation: Sequence[int] = (),
    ) -> None:
        self.data, self.out = tuple(data), tuple(out)
        self.co, self.depth, *kernel = weights
        self.kernel = tuple(kernel)
        self.groups, self.strides = groups, list(strides)
        self.padding, self.dilation = list(padding), list(dilation)

    @property
    def merged(self) -> bool:
        """Whether a kernel row's columns and channels, which lie side by side in the data, are
        multiplied as channels: where channels are too few for that by themselves."""
        return (
            len(self.kernel) > 1
            and self.groups == 1
            and self.depth < FEW
            and self.kernel[-1] > 1
            and self.dilation[-1] == 1
        )

    @property
    def image(self) -> tuple[int, int]:
        """Rows and columns that register tiles cover."""
        if not self.kernel:
            return product(self.out[:-1]), 1
        flat = (
            product(self.kernel) == 1
            and not any(self.padding)
            and all(s == 1 for s in self.strides)
        )
        return image_of(self.out[1:-1], flat)

    def packed(self, weights: np.ndarray, cpu: Cpu) -> np.ndarray:
        """[groups, blocks, *kernel, pairs of channels, block, 2], ``uint16``; zeros behind."""
        kernel = self.kernel or (1,)
        if self.merged:
            weights = np.moveaxis(weights, -1, 1)
            weights = weights.reshape(self.co, -1, *self.kernel[:-1], 1)
            kernel = (*self.kernel[:-1], 1)
        groups, co = self.groups, self.co // self.groups
        ci, taps = weights.shape[1], product(kernel)
        block = dot_block_of(cpu, co, self.image)
        blocks, pairs = -(-co // block), -(-ci // PAIR)
        wide = np.zeros((groups, blocks * block, pairs * PAIR, taps), np.uint16)
        wide[:, :co, :ci] = halves(weights).reshape(groups, co, ci, taps)
        split = wide.reshape(groups, blocks, block, pairs, PAIR, taps)
        return np.ascontiguousarray(split.transpose(0, 1, 5, 3, 2, 4)).reshape(
            groups, blocks, *kernel, pairs, block, PAIR
        )

    def sums(self, data: Any, weight: Any) -> Any:
        """Σ data · weight in float32, over data whose rim is zero."""
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(self.kernel)]
        channel = te.reduce_axis((0, self.depth), "rc")
        co, block = self.co // self.groups, int(weight.shape[-2])
        before = self.padding[: len(taps)]

        def element(*index: Any) -> Any:
            c = index[-1]
            g = tirx.floordiv(c, co) if self.groups > 1 else 0
            inner = tirx.floormod(c, co) if self.groups > 1 else c
            source = g * self.depth + channel if self.groups > 1 else channel
            if not taps:
                x = real(data(*index[:-1], source))
            else:
                at = [
                    p * s + k * d - b
                    for p, s, k, d, b in zip(
                        index[1:-1], self.strides, taps, self.dilation, before, strict=True
                    )
                ]
                x = real(data(index[0], *at, source))
                if any(self.padding):
                    sizes = self.data[1:-1]
                    tests = [t for a, e in zip(at, sizes, strict=True) for t in (a >= 0, a < e)]
                    x = tirx.if_then_else(tirx.all(*tests), x, tirx.const(0, "float32"))
            tap, deep = list(taps) or [0], channel
            if self.merged:
                deep, tap[-1] = tap[-1] * self.depth + channel, 0
            w = weight(
                g,
                tirx.floordiv(inner, block),
                *tap,
                tirx.floordiv(deep, PAIR),
                tirx.floormod(inner, block),
                tirx.floormod(deep, PAIR),
            )
            return te.sum(x * real(w), axis=[channel, *taps])

        described = note(
            family="bfloat16",
            way="conv" if taps else "product",
            groups=self.groups,
            kernel=list(self.kernel),
            strides=self.strides,
            padding=self.padding,
            dilation=self.dilation,
            **({"merged": True} if self.merged else {}),
        )
        return te.compute(self.out, element, name="sums", attrs=described)
