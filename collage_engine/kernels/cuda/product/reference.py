"""States the plain computation of a product ``C[s, m, n] = Σ_k A[s, m, k] B[s, k, n]``.

Sums are float32, or int32 for integers. What the schedule has to know is noted on the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cuda.epilogue import NOTE
from collage_engine.kernels.cuda.problems import fused, where
from collage_engine.kernels.cuda.product.fragments import ELEMENTS, SUMS
from collage_engine.kernels.cuda.product.plan import ProductPlan, ProductSizes, Tile
from collage_engine.kernels.tir_builder import Index


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
        """Return the index (s, m, n) in the product of an element of the result.

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


Element = Callable[[Index, Index, Index], Any]
"""Reads an element of A at (s, m, k), or of B at (s, k, n)."""


def noted_product(at_a: Element, at_b: Element, dtype: str, note: AnnotatedProduct) -> Any:
    """Return the tensor C with whole tiles, where A and B are zero outside their sizes.

    The parts of a split sum lie below each other.

    Args:
        at_a: Reads an element of A.
        at_b: Reads an element of B.
        dtype: The operands' element type.
        note: What is noted on the block of C: its sizes, and the plan whose tiles it consists of.
    """
    sizes, plan, tile = note.sizes, note.plan, note.tile
    m, n = (-(-e // t) * t for e, t in ((sizes.m, tile.m), (sizes.n, tile.n)))
    part = -(-sizes.k // (tile.k * plan.split)) * tile.k
    deep = part * plan.split
    element, sums = ELEMENTS.get(tile.math, "float32"), SUMS.get(tile.math, "float32")

    def stored(value: Any) -> Any:
        return value if dtype == element else value.astype(element)

    def guarded(value: Any, *limits: tuple[Any, int, int]) -> Any:
        return where([at < size for at, size, padded in limits if padded > size], value)

    a = te.compute(
        (sizes.s, m, deep),
        lambda s, i, k: stored(guarded(at_a(s, i, k), (i, sizes.m, m), (k, sizes.k, deep))),
        name="product_a",
    )
    b = te.compute(
        (sizes.s, deep, n),
        lambda s, k, j: stored(guarded(at_b(s, k, j), (k, sizes.k, deep), (j, sizes.n, n))),
        name="product_b",
    )
    k = te.reduce_axis((0, part), "k")

    def total(p: Index, i: Index, j: Index) -> Expr:
        s = p if plan.split == 1 else tirx.floormod(p, sizes.s)
        at = k if plan.split == 1 else tirx.floordiv(p, sizes.s) * part + k
        left, right = a(s, i, at), b(s, at, j)
        if element != sums:
            left, right = left.astype(sums), right.astype(sums)
        return te.sum(left * right, axis=k)

    return te.compute(
        (plan.split * sizes.s, m, n),
        total,
        name="product_c",
        attrs={NOTE: msgspec.json.encode(note).decode()},
    )


def added(parts: Any, out: tuple[int, ...], dtype: str) -> Any:
    """Return the sum of the parts of a split product."""

    def element(*index: Index) -> Expr:
        total = parts(0, *index)
        for number in range(1, int(parts.shape[0])):
            total = total + parts(number, *index)
        return total.astype(dtype)

    return te.compute(out, element, name="product_sum")
