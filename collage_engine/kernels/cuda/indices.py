"""Indices and sizes of products: axes taken together and apart, what lies outside, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.ir import Call

from collage_engine.kernels.cuda.product.plan import Sizes

FEWEST = 8
"""Rows and columns below which a product is no matter of tiles (vectors, depthwise)."""


def worthwhile(sizes: Sizes) -> bool:
    return min(sizes.m, sizes.n, sizes.k) >= FEWEST


def where(tests: list[Any], value: Any, outside: int = 0) -> Any:
    """The value where all tests hold, else a number."""
    if not tests:
        return value
    return tirx.if_then_else(tirx.all(*tests), value, tirx.const(outside, str(value.ty.dtype)))


def volume(values: Sequence[int]) -> int:
    return int(np.prod(values, dtype=np.int64)) if len(values) else 1


def unfused(index: Any, shape: Sequence[int]) -> list[Any]:
    """A row-major index as one per axis."""
    found: list[Any] = []
    for size in reversed(shape):
        if size == 1:
            found.append(tirx.const(0))
            continue
        rest = volume(shape[: len(shape) - len(found) - 1])
        found.append(index if rest == 1 else tirx.floormod(index, size))
        index = tirx.floordiv(index, size)
    return found[::-1]


def fused(index: Sequence[Any], shape: Sequence[int]) -> Any:
    total: Any = tirx.const(0)
    for i, size in zip(index, shape, strict=True):
        if size > 1:
            total = total * size + i
    return total


def broadcast(index: list[Any], lead: Sequence[int]) -> list[Any]:
    """Indices of an operand's leading axes, from those of the result."""
    last = index[len(index) - len(lead) :]
    return [i if e > 1 else tirx.const(0) for i, e in zip(last, lead, strict=True)]


def plain_layout(call: Call, kernel: str) -> bool:
    """Channels first, the kernel ``OI…`` or ``IO…``."""
    attributes = call.attrs
    layout = str(attributes.data_layout)
    axes = layout.removeprefix("NC")
    if layout == axes or str(attributes.out_layout or layout) != layout:
        return False
    return str(attributes.kernel_layout) == kernel + axes


def both_sides(padding: list[int], dims: int) -> list[int]:
    """Padding before and after each axis, from TVM's short forms."""
    if len(padding) == 1:
        return padding * (2 * dims)
    return padding * 2 if len(padding) == dims else padding
