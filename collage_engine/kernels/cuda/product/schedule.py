"""Schedules a product: slices in shared memory, tiles in registers or fragments.

What follows the product is done on the tile before it is written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.note import AnnotatedProduct, annotated_product
from collage_engine.kernels.cuda.product.plan import PLAIN
from collage_engine.kernels.cuda.product.schedule_tensor_cores import tensor
from collage_engine.kernels.cuda.product.schedule_threads import plain
from collage_engine.records.errors import ToolchainError
from collage_engine.records.reasons import short_reason


def scheduled(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Returns the kernel of a function that holds a product.

    Raises:
        ToolchainError: The function holds more than one kernel can take in.
    """
    found = annotated_product(function)
    if found is None:
        raise ToolchainError("there is no product to schedule")
    schedule = Schedule(function)
    split = found.plan.split
    shape = found.out if split == 1 else (split, *found.out)
    try:
        last = epilogue(schedule, ("product_a", "product_b", "product_c"), shape, axes_of(found))
        (plain if found.tile.math == PLAIN else tensor)(schedule, found, last)
    except ToolchainError:
        raise
    except Exception as error:
        raise ToolchainError(f"a product cannot be tiled: {short_reason(error)}") from error
    return schedule.mod["main"]


def axes_of(product: AnnotatedProduct) -> Callable[..., tuple[Any, ...]]:
    """Returns a function from an index of the result to (s, m, n), the axes of the product."""
    out, sizes, split = product.out, product.sizes, product.plan.split

    def fused(index: Any, shape: Any) -> Any:
        total: Any = tirx.const(0)
        for i, size in zip(index, shape, strict=True):
            total = total * size + i
        return total

    def one(index: Any) -> tuple[Any, Any, Any]:
        if product.kind == "conv":
            image, channel, *pixel = index
            n = fused((image, *pixel), (out[0], *out[2:]))
            if sizes.s == 1:
                return tirx.const(0), channel, n
            return tirx.floordiv(channel, sizes.m), tirx.floormod(channel, sizes.m), n
        if product.merged:
            return tirx.const(0), fused(index[:-1], out[:-1]), index[-1]
        return fused(index[:-2], out[:-2]), index[-2], index[-1]

    def axes(*index: Any) -> tuple[Any, ...]:
        if split == 1:
            return one(index)
        s, m, n = one(index[1:])
        return index[0] * sizes.s + s, m, n

    return axes
