"""Reads the sizes of convolutions, plain and transposed, from their calls."""

from __future__ import annotations

from typing import NamedTuple

from tvm.ir import Call

from collage_engine.kernels.cuda.indices import plain_layout
from collage_engine.kernels.relax_values import (
    both_sides,
    static_shape,
)


class Window(NamedTuple):
    """The sizes of a convolution or a transposed one; spatial lists have an entry per axis."""

    shape: tuple[int, ...]
    weight: tuple[int, ...]
    out: tuple[int, ...]
    groups: int
    strides: list[int]
    dilation: list[int]
    padding: tuple[int, ...]
    """Padding before every axis, then after every axis."""


def window_of(call: Call, kernel_layout: str) -> Window | None:
    """Returns the sizes of a call; None where they are not known, or its layouts are not plain."""
    data, kernel = call.args
    shape, weight, out = static_shape(data), static_shape(kernel), static_shape(call)
    if shape is None or weight is None or out is None or not plain_layout(call, kernel_layout):
        return None
    attributes = call.attrs
    return Window(
        shape,
        weight,
        out,
        int(attributes.groups),
        [int(v) for v in attributes.strides],
        [int(v) for v in attributes.dilation],
        both_sides([int(v) for v in attributes.padding], len(shape) - 2),
    )
