"""Defines the note that the legalisation writes on the block of a product, and reads it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.product.plan import ProductPlan, ProductSizes, Tile
from collage_engine.records.typed import decode

PRODUCT = "collage.product"
"""Key of the block's annotation that holds the note as JSON."""


@dataclass(frozen=True)
class AnnotatedProduct:
    """What the schedule of a product has to know of it."""

    plan: ProductPlan
    out: tuple[int, ...]
    """The shape of the result that is made of the product."""
    sizes: ProductSizes
    vectors: tuple[int, int]
    """Numbers of elements of which contiguous reads of A and of B are multiples."""
    item: int
    """Bytes of an operand's element."""
    kind: Literal["matmul", "conv"]
    merged: bool
    """Whether the rows of all batches of a matmul are taken together."""

    @property
    def tile(self) -> Tile:
        """Returns the tile of the plan."""
        return self.plan.tile


def annotated_product(function: tirx.PrimFunc) -> AnnotatedProduct | None:
    """Returns the note on the product in a function; None where it holds none."""
    schedule = Schedule(function)
    try:
        block = schedule.get_sblock("product_c")
    except Exception:  # TVM's own error class: there is no such block
        return None
    note = str(schedule.get(block).annotations[PRODUCT])
    return decode(note, AnnotatedProduct)
