"""Helps with indices and sizes of products: fused and separate axes, padding, layouts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx
from tvm.ir import Call

from collage_engine.kernels.cuda.product.plan import FRAGMENT, ProductSizes
from collage_engine.kernels.tir_builder import Index

FEWEST = FRAGMENT // 2
"""Rows and columns below which a product is left to TVM's own rules (vectors, depthwise
convolutions): more than half of each fragment would be empty."""


def worthwhile(sizes: ProductSizes) -> bool:
    """Returns whether a product is large enough along every axis for matrix tiles."""
    return min(sizes.m, sizes.n, sizes.k) >= FEWEST


def where(tests: list[Any], value: Any, outside: int = 0) -> Any:
    """Returns an expression that is the value where all tests hold, and a constant elsewhere."""
    if not tests:
        return value
    return tirx.if_then_else(tirx.all(*tests), value, tirx.const(outside, str(value.ty.dtype)))


def unfused(index: Index, shape: Sequence[int]) -> list[Any]:
    """Returns the indices along every axis that a row-major index stands for."""
    found: list[Any] = []
    for size in reversed(shape):
        if size == 1:
            found.append(tirx.const(0))
            continue
        rest = prod(shape[: len(shape) - len(found) - 1])
        found.append(index if rest == 1 else tirx.floormod(index, size))
        index = tirx.floordiv(index, size)
    return found[::-1]


def fused(index: Sequence[Index], shape: Sequence[int]) -> Any:
    """Returns the row-major index of an element, given its index along every axis."""
    total: Any = tirx.const(0)
    for i, size in zip(index, shape, strict=True):
        if size > 1:
            total = total * size + i
    return total


def broadcast(index: list[Any], lead: Sequence[int]) -> list[Any]:
    """Returns the indices along an operand's leading axes for an element of the result."""
    last = index[len(index) - len(lead) :]
    return [i if e > 1 else tirx.const(0) for i, e in zip(last, lead, strict=True)]


def plain_layout(call: Call, kernel: str) -> bool:
    """Returns whether a call's image has its channels first and its kernel the layout asked for.

    Args:
        call: The call of a convolution.
        kernel: The kernel's first two axes, ``OI`` or ``IO``.
    """
    attributes = call.attrs
    layout = str(attributes.data_layout)
    axes = layout.removeprefix("NC")
    if layout == axes or str(attributes.out_layout or layout) != layout:
        return False
    return str(attributes.kernel_layout) == kernel + axes
