"""What the legalisation notes of a product on its block, for the schedule."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from collage_engine.kernels.cuda.product.plan import ProductPlan, Tile
from collage_engine.kernels.cuda.product.reference import PRODUCT


@dataclass(frozen=True)
class Noted:
    """What the legalisation noted of a product."""

    plan: ProductPlan
    out: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    vectors: tuple[int, int]
    how: dict[str, Any]

    @property
    def tile(self) -> Tile:
        return self.plan.tile


def noted(function: tirx.PrimFunc) -> Noted | None:
    """The product in a function, if the legalisation put one there."""
    schedule = Schedule(function)
    try:
        block = schedule.get_sblock("product_c")
    except Exception:  # TVM's own error class: there is no such block
        return None
    note = json.loads(str(schedule.get(block).annotations[PRODUCT]))
    return Noted(
        ProductPlan.from_record(note["plan"]),
        tuple(note["out"]),
        tuple(note["sizes"]),
        tuple(note["vectors"]),
        note,
    )
