"""Reads the note that the legalisation writes on the block of a product."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.product.plan import ProductPlan, Tile
from collage_engine.kernels.cuda.product.reference import PRODUCT


@dataclass(frozen=True)
class AnnotatedProduct:
    """The contents of the note on a product's block."""

    plan: ProductPlan
    out: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    vectors: tuple[int, int]
    how: dict[str, Any]

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
    note = json.loads(str(schedule.get(block).annotations[PRODUCT]))
    return AnnotatedProduct(
        ProductPlan.from_record(note["plan"]),
        tuple(note["out"]),
        tuple(note["sizes"]),
        tuple(note["vectors"]),
        note,
    )
