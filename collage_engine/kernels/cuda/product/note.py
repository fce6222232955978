"""Defines the note that the legalisation leaves on the block of a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tvm import tirx

from collage_engine.kernels.cuda.indices import fused
from collage_engine.kernels.cuda.product.plan import ProductPlan, ProductSizes, Tile


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

    def place(self, *index: Any) -> tuple[Any, Any, Any]:
        """Returns the index (s, m, n) in the product of an element of the result.

        The result of a split sum has the parts along a further first axis.
        """
        if self.plan.split > 1:
            part, *index = index  # type: ignore[assignment]
        s, m, n = self._place_in_part(index)
        return (s if self.plan.split == 1 else part * self.sizes.s + s), m, n

    def _place_in_part(self, index: Sequence[Any]) -> tuple[Any, Any, Any]:
        out, rows = self.out, self.sizes.m
        if self.kind == "conv":
            image, channel, *pixel = index
            n = fused((image, *pixel), (out[0], *out[2:]))
            if self.sizes.s == 1:
                return tirx.const(0), channel, n
            return tirx.floordiv(channel, rows), tirx.floormod(channel, rows), n
        if self.merged:
            return tirx.const(0), fused(index[:-1], out[:-1]), index[-1]
        return fused(index[:-2], out[:-2]), index[-2], index[-1]
