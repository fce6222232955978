"""Quantised operators as integer computations: packing, sums, and what is done with them.

``integer_sums`` is the specification that schedules/quantized.py writes; the value that leaves a
kernel is made of its sums in float32, in registers, and rounded half to even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.dots.dot_data import QUAD
from collage_engine.kernels.cpu.writing.tile_choice import dot_block_of
from collage_engine.kernels.relax_values import constant_of, note
from collage_engine.kernels.target import Cpu
from collage_engine.kernels.tir_builder import product
from collage_engine.partition.quantized import SMALL
from collage_engine.partition.quantized_numbers import Scaling

Function = Callable[[Expr], Expr]
"""An activation of an element."""


@dataclass(frozen=True)
class Kernel:
    """An integer convolution over channels-last data, or a product over the last axis."""

    way: str
    """``conv``, ``depthwise`` or ``product``."""
    weights: np.ndarray
    """int8, output channels first, then input channels of a group, then the kernel."""
    out: tuple[int, ...]
    """Shape of the result, channels last."""
    data: Scaling
    groups: int = 1
    strides: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    axis = -1
    """Of the result: output channels."""

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.weights.shape[2:])

    @property
    def signed(self) -> bool:
        return self.data.dtype == "int8"

    @property
    def zero(self) -> int:
        """The data's zero point among the unsigned numbers that the kernel multiplies."""
        return self.data.single("the data")[1] + (128 if self.signed else 0)

    def correction(self) -> np.ndarray:
        """What the sums lack because the data's zero is not 0: −zero · Σ w, int32 per channel."""
        totals = self.weights.astype(np.int64).reshape(self.weights.shape[0], -1).sum(1)
        return (-self.zero * totals).astype(np.int32)

    def packed(self, cpu: Cpu) -> np.ndarray:
        """[groups, blocks, *kernel, quads, block, 4], or [taps, channels] when depthwise."""
        if self.way == "depthwise":
            return np.ascontiguousarray(self.weights.reshape(self.weights.shape[0], -1).T)
        co, ci = self.weights.shape[0] // self.groups, self.weights.shape[1]
        taps = product(self.kernel)
        positions = product(self.out[:-1]) if self.way == "product" else product(self.out[1:-1])
        flat = taps == 1 and not any(self.padding) and all(s == 1 for s in self.strides)
        image = (positions, 1)
        if not flat and len(self.out) > 3:
            image = (self.out[-3], self.out[-2])
        block = dot_block_of(cpu, co, image)
        blocks, quads = -(-co // block), -(-ci // QUAD)
        wide = np.zeros((self.groups, blocks * block, quads * QUAD, taps), np.int8)
        wide[:, :co, :ci] = self.weights.reshape(self.groups, co, ci, taps)
        split = wide.reshape(self.groups, blocks, block, quads, QUAD, taps)
        return np.ascontiguousarray(split.transpose(0, 1, 5, 3, 2, 4)).reshape(
            self.groups, blocks, *self.kernel, quads, block, QUAD
        )

    def sums(self, data: Any, weight: Any) -> Any:
        """Σ data · weight in int32, over unsigned data whose rim holds the zero point."""
        depthwise, dims = self.way == "depthwise", len(self.kernel)
        taps = [te.reduce_axis((0, k), f"k{i}") for i, k in enumerate(self.kernel)]
        channel = te.reduce_axis((0, self.weights.shape[1]), "rc")
        co = self.weights.shape[0] // self.groups

        def unsigned(value: Any) -> Any:
            wide = value.astype("int32")
            return wide + 128 if self.signed else wide

        def element(*index: Any) -> Any:
            c = index[-1]
            if self.way == "product":
                x = unsigned(data(*index[:-1], channel))
            else:
                at = [
                    p * s + k * d - b
                    for p, s, k, d, b in zip(
                        index[1:-1], self.strides, taps, self.dilation, self.padding, strict=False
                    )
                ]
                source: Any = c if depthwise else channel
                if self.groups > 1 and not depthwise:
                    source = tirx.floordiv(c, co) * self.weights.shape[1] + channel
                x = unsigned(data(index[0], *at, source))
                if any(self.padding):
                    sizes = [int(e) for e in data.shape[1:-1]]
                    tests = [t for a, e in zip(at, sizes, strict=True) for t in (a >= 0, a < e)]
                    x = tirx.if_then_else(tirx.all(*tests), x, tirx.const(self.zero, "int32"))
            if depthwise:
                tap: Any = 0
                for k, e in zip(taps, self.kernel, strict=True):
                    tap = tap * e + k
                return te.sum(x * weight(tap, c).astype("int32"), axis=taps)
            block = int(weight.shape[-2])
            g, inner = (tirx.floordiv(c, co), tirx.floormod(c, co)) if self.groups > 1 else (0, c)
            w = weight(
                g,
                tirx.floordiv(inner, block),
                *taps,
                tirx.floordiv(channel, QUAD),
                tirx.floormod(inner, block),
                tirx.floormod(channel, QUAD),
            )
            return te.sum(x * w.astype("int32"), axis=[channel, *taps])

        assert dims == len(taps)
        described = note(
            family="quantized",
            way=self.way,
            groups=self.groups,
            kernel=list(self.kernel),
            strides=list(self.strides),
            padding=list(self.padding),
            dilation=list(self.dilation),
            zero=self.zero,
            signed=self.signed,
        )
        return te.compute(self.out, element, name="sums", attrs=described)


# What is done with an element ------------------------------------------------------------------


def f32(value: float) -> Expr:
    return tirx.const(float(value), "float32")


def real(value: Expr, scaling: Scaling) -> Expr:
    """An 8-bit element as the number it stands for."""
    scale, zero = scaling.single("an operand")
    wide = value.astype("int32")
    return (wide - zero if zero else wide).astype("float32") * f32(scale)


def rounded(value: Expr, scaling: Scaling, scale: bool = True) -> Expr:
    """A number as an 8-bit element, half to even, saturated; ``scale`` False: divided already."""
    step, zero = scaling.single("the result")
    steps = value * f32(1.0 / step) if scale else value
    low, high = f32(scaling.lowest - zero), f32(scaling.highest - zero)
    return (_whole(tirx.max(tirx.min(steps, high), low)) + zero).astype(scaling.dtype)


HALF_EVEN = 1.5 * 2**23
"""A float32 beside which a small number's fraction has no place: their sum is rounded half to
even, and its lowest bits are the whole number (TVM vectorises no call that rounds)."""
HALF_EVEN_BITS = int(np.float32(HALF_EVEN).view(np.int32))


def _whole(value: Expr) -> Expr:
    """A float32 between −2²² and 2²² rounded half to even, as int32."""
    bits = tirx.call_intrin("int32", "tirx.reinterpret", value + f32(HALF_EVEN))
    return bits - HALF_EVEN_BITS


def quantized(value: Expr, scale: Expr, zero: Expr, dtype: str) -> Expr:
    """ONNX's QuantizeLinear of an element: divided as it is written there."""
    low, high = tirx.min_value(dtype), tirx.max_value(dtype)
    offset = zero.astype("float32")
    kept = tirx.max(
        tirx.min(value / scale, f32(int(high.value)) - offset), f32(int(low.value)) - offset
    )
    return (_whole(kept) + zero.astype("int32")).astype(dtype)


def elementwise(shape: Sequence[int], body: Callable[..., Expr], name: str) -> Any:
    return te.compute(tuple(shape), body, name=name)


def quantize(builder: relax.BlockBuilder, call: Any, _cpu: Cpu) -> Expr | None:
    """QuantizeLinear on its own, rounded as ONNX says; None for other than 8 bits."""
    if str(call.attrs.out_dtype) not in SMALL:
        return None
    axis, dtype = int(call.attrs.axis), str(call.attrs.out_dtype)
    # Numbers of the whole tensor are written into the code.
    arrays = [constant_of(a) for a in call.args[1:3]]
    arguments = [
        tirx.const(a.reshape(-1)[0].item(), str(a.dtype)) if a is not None and a.size == 1 else e
        for a, e in zip(arrays, call.args[1:3], strict=True)
    ]

    def body(x: te.Tensor, scale: Any, zero: Any) -> Any:
        def of(parameter: Any, i: Any) -> Any:
            if not isinstance(parameter, te.Tensor):
                return parameter
            if all(int(e) == 1 for e in parameter.shape):
                return parameter(*([0] * len(parameter.shape)))
            return parameter(i[axis])

        return elementwise(
            x.shape,
            lambda *i: quantized(x(*i), of(scale, i), of(zero, i), dtype),
            "quantized",
        )

    return builder.call_te(body, call.args[0], *arguments, primfunc_name_hint="quantize")
