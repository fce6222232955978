"""Schedules a product: slices in shared memory, tiles in registers or fragments.

What follows the product is done on the tile before it is written.
"""

from __future__ import annotations

from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.epilogue import epilogue
from collage_engine.kernels.cuda.product.note import AnnotatedProduct
from collage_engine.kernels.cuda.product.plan import PLAIN
from collage_engine.kernels.cuda.product.schedule_tensor_cores import tensor
from collage_engine.kernels.cuda.product.schedule_threads import plain


def schedule_product(schedule: Schedule, found: AnnotatedProduct) -> None:
    """Schedules a function that holds a product.

    Raises:
        ToolchainError: The function holds more than one kernel can take in.
    """
    split = found.plan.split
    shape = found.out if split == 1 else (split, *found.out)
    last = epilogue(schedule, ("product_a", "product_b", "product_c"), shape, found.place)
    (plain if found.tile.math == PLAIN else tensor)(schedule, found, last)
