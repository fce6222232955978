"""Schedules a product: slices in shared memory, tiles in registers or fragments.

What follows the product is done on the tile before it is written.
"""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.note import annotated_product
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
        last = epilogue(schedule, ("product_a", "product_b", "product_c"), shape, found.place)
        (plain if found.tile.math == PLAIN else tensor)(schedule, found, last)
    except ToolchainError:
        raise
    except Exception as error:
        raise ToolchainError(f"a product cannot be tiled: {short_reason(error)}") from error
    return schedule.mod["main"]
