"""Reads what plans depend on: sizes of products and convolutions, the device, its arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tvm import tirx
from tvm.ir import Call

from collage_engine.kernels.cuda.product.plan import F16, FRAGMENT, PLAIN, S8, ProductSizes
from collage_engine.kernels.relax_values import (
    both_sides,
    static_shape,
)
from collage_engine.kernels.tir_builder import Index
from collage_engine.machine.cuda import generation
from collage_engine.records.precision import BFLOAT16, FLOAT16, FLOAT32

MULTIPROCESSORS = {80: 108, 86: 84, 87: 16, 89: 128, 90: 132, 100: 148, 120: 170}
"""Multiprocessors of a device of each generation by NVIDIA's data sheets: A100, A40, Orin, RTX
4090, H100 SXM, B200 and RTX 5090. Plans are made for it, because kernels are also compiled where no
device is."""


def multiprocessors(architecture: str) -> int:
    """Return how many blocks of threads a device works on at a time, at most."""
    return MULTIPROCESSORS.get(generation(architecture), MULTIPROCESSORS[80])


FEWEST = FRAGMENT // 2
"""Rows and columns below which a product is left to TVM's own rules (vectors, depthwise
convolutions): more than half of each fragment would be empty."""


def worthwhile(sizes: ProductSizes) -> bool:
    """Return whether a product is large enough along every axis for matrix tiles."""
    return min(sizes.m, sizes.n, sizes.k) >= FEWEST


def where(tests: list[Any], value: Any, outside: int = 0) -> Any:
    """Return an expression that is the value where all tests hold, and a constant elsewhere."""
    if not tests:
        return value
    return tirx.if_then_else(tirx.all(*tests), value, tirx.const(outside, str(value.ty.dtype)))


def unfused(index: Index, shape: Sequence[int]) -> list[Any]:
    """Return the indices along every axis that a row-major index stands for."""
    indices: list[Any] = []
    for size in reversed(shape):
        if size == 1:
            indices.append(tirx.const(0))
            continue
        rest = prod(shape[: len(shape) - len(indices) - 1])
        indices.append(index if rest == 1 else tirx.floormod(index, size))
        index = tirx.floordiv(index, size)
    return indices[::-1]


def fused(index: Sequence[Index], shape: Sequence[int]) -> Any:
    """Return the row-major index of an element, given its index along every axis."""
    total: Any = tirx.const(0)
    for i, size in zip(index, shape, strict=True):
        if size > 1:
            total = total * size + i
    return total


def broadcast(index: list[Any], lead: Sequence[int]) -> list[Any]:
    """Return the indices along an operand's leading axes for an element of the result."""
    last = index[len(index) - len(lead) :]
    return [i if e > 1 else tirx.const(0) for i, e in zip(last, lead, strict=True)]


def plain_layout(call: Call, kernel: str) -> bool:
    """Return whether a call's image has its channels first and its kernel the layout asked for.

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
    """Return the sizes of a call; None where they are not known, or its layouts are not plain."""
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


FIRST = {F16: 70, S8: 72}
"""Generation (10 × compute capability) whose tensor cores first took an element type; source:
the conditions on ``__CUDA_ARCH__`` in ``crt/mma.h`` of CUDA 13."""


def math_of(dtype: str, precision: str, architecture: str) -> str | None:
    """Return the arithmetic for an element type; None where this package has none for it.

    What is bfloat16 is multiplied in float32, by plain threads.
    """
    if dtype not in (FLOAT32, FLOAT16, BFLOAT16):
        return None
    half = dtype == FLOAT16 or (dtype == FLOAT32 and precision == FLOAT16)
    return F16 if half and generation(architecture) >= FIRST[F16] else PLAIN
