"""Describes convolutions and matrix products as ``C[s, m, n] = Σ_k A[s, m, k] B[s, k, n]``.

The columns of a convolution are pixels and its rows output channels, so neighbouring threads read
and write neighbouring pixels. B is read from the image where it is needed and never stored
(implicit GEMM). Sums are float32, or int32 for integers. What the schedule has to know is noted on
the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import msgspec
import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cuda.epilogue import NOTE, OUT
from collage_engine.kernels.cuda.problems import Window, broadcast, fused, unfused, where
from collage_engine.kernels.cuda.product.fragments import ELEMENTS, SUMS
from collage_engine.kernels.cuda.product.plan import PLAIN, ProductPlan, ProductSizes, Tile
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


ITEMS = {"float32": 4, "int8": 1}
"""Bytes of an element by its type; two for types that are not here."""

Cast = Callable[[Any], Any]
"""A function that converts an element when it is read."""


@dataclass(frozen=True)
class Matmul:
    """The form of a matrix product of operands with shapes ``a`` and ``b``.

    Where B is one matrix, the rows of all batches of A are taken together.
    """

    a: tuple[int, ...]
    b: tuple[int, ...]
    out: tuple[int, ...]
    cast: Cast | None = None
    """The conversion of an element of A."""
    kind: Literal["matmul", "conv"] = "matmul"

    @property
    def merged(self) -> bool:
        """Tells whether B is one matrix, so that the rows of all batches are taken together."""
        return all(e == 1 for e in self.b[:-2])

    @property
    def sizes(self) -> ProductSizes:
        """Returns the sizes of the product."""
        a, out = self.a, self.out
        if self.merged:
            return ProductSizes(1, prod(a[:-1]), out[-1], a[-1])
        return ProductSizes(prod(out[:-2]), out[-2], out[-1], a[-1])

    def vectors(self, math: str) -> tuple[int, int]:
        """Return the lengths of the rows of A and of B, in elements."""
        return self.a[-1], self.out[-1]

    def elements(self, x: Any, y: Any, math: str) -> tuple[Element, Element]:
        """Return two functions that read an element of A and of B."""
        a, b, batch = self.a, self.b, self.out[:-2]

        def at_a(s: Index, m: Index, k: Index) -> Expr:
            if self.merged:
                value = x(*unfused(m, a[:-1]), k)
            else:
                value = x(*broadcast(unfused(s, batch), a[:-2]), m, k)
            return value if self.cast is None else self.cast(value)

        def at_b(s: Index, k: Index, n: Index) -> Expr:
            if self.merged:
                return y(*(0 for _ in b[:-2]), k, n)
            return y(*broadcast(unfused(s, batch), b[:-2]), k, n)

        return at_a, at_b


@dataclass(frozen=True)
class Convolution:
    """The form of a convolution of an image ``x`` with packed filters ``y``.

    A transposed convolution reads zeros between the pixels that it spreads.
    """

    window: Window
    transposed: bool = False
    outside: int = 0
    """The value with which the image is padded."""
    cast: Cast | None = None
    """The conversion of an element of the image."""
    kind: Literal["matmul", "conv"] = "conv"
    merged: bool = False

    @property
    def out(self) -> tuple[int, ...]:
        """Returns the shape of the result."""
        return self.window.out

    @property
    def filters(self) -> tuple[int, ...]:
        """Return the numbers of groups, of rows and of channels, then the taps along every axis."""
        weight, groups = self.window.weight, self.window.groups
        if self.transposed:
            return groups, weight[1], weight[0] // groups, *weight[2:]
        return groups, weight[0] // groups, *weight[1:]

    @property
    def sizes(self) -> ProductSizes:
        """Returns the sizes of the product."""
        groups, rows, channels, *taps = self.filters
        return ProductSizes(groups, rows, self.out[0] * prod(self.out[2:]), channels * prod(taps))

    def vectors(self, math: str) -> tuple[int, int]:
        """Return the lengths of contiguous reads of the filters and of the image, in elements."""
        window, sizes = self.window, self.sizes
        plain = set(window.strides) == {1} and not any(window.padding) and not self.transposed
        pixels = prod(self.out[2:]) if plain and max(window.weight[2:]) == 1 else 1
        return (sizes.m if math == PLAIN else sizes.k), pixels

    def packed(self, weight: np.ndarray, math: str) -> np.ndarray:
        """Return the weight as an array of shape [group, row, k].

        For plain threads the shape is [group, k, row], because shared memory holds slices of A by
        k.
        """
        groups, rows, channels, *taps = self.filters
        if self.transposed:
            weight = weight.reshape(groups, channels, rows, *taps).swapaxes(1, 2)
        flat = np.ascontiguousarray(weight).reshape(groups, rows, self.sizes.k)
        return np.ascontiguousarray(flat.swapaxes(1, 2)) if math == PLAIN else flat

    def elements(self, x: Any, y: Any, math: str) -> tuple[Element, Element]:
        """Return two functions that read an element of the filters and of the image."""
        groups, _, channels, *taps = self.filters

        def at_a(s: Index, m: Index, k: Index) -> Expr:
            return y(s, k, m) if math == PLAIN else y(s, m, k)

        def at_b(s: Index, k: Index, n: Index) -> Expr:
            image, *pixel = unfused(n, (self.out[0], *self.out[2:]))
            channel, *tap = unfused(k, (channels, *taps))
            first = channel if groups == 1 else s * channels + channel
            tests, at = (self._between if self.transposed else self._below)(pixel, tap)
            value = x(image, first, *at)
            return where(tests, value if self.cast is None else self.cast(value), self.outside)

        return at_a, at_b

    def _below(self, pixel: Sequence[Any], tap: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return tests that a tap lies inside the image, and the index that it reads."""
        shape, weight, out, _, strides, dilation, padding = self.window
        at = [
            p * s + t * d - b
            for p, s, t, d, b in zip(pixel, strides, tap, dilation, padding, strict=False)
        ]
        tests = []
        for i, e in enumerate(shape[2:]):
            if padding[i]:
                tests.append(at[i] >= 0)
            reach = (out[2 + i] - 1) * strides[i] + (weight[2 + i] - 1) * dilation[i]
            if reach - padding[i] >= e:
                tests.append(at[i] < e)
        return tests, at

    def _between(self, pixel: Sequence[Any], tap: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the tests and the index of a tap of a transposed convolution."""
        shape, _, _, _, strides, dilation, padding = self.window
        tests, at = [], []
        for i, (p, t) in enumerate(zip(pixel, tap, strict=True)):
            spread = p + padding[i] - t * dilation[i]
            tests += [spread >= 0, spread <= (shape[2 + i] - 1) * strides[i]]
            if strides[i] > 1:
                tests.append(tirx.floormod(spread, strides[i]) == 0)
            at.append(tirx.floordiv(spread, strides[i]) if strides[i] > 1 else spread)
        return tests, at


Form = Matmul | Convolution
"""An operator that can be computed as a product."""


def result_of(
    form: Form,
    x: Any,
    y: Any,
    plan: ProductPlan,
    dtype: str,
    given: str,
) -> Any:
    """Return the result of a product from its operands.

    Of a split sum it returns the parts, along a further first axis.

    Args:
        form: The operator in the form of a product.
        x: The first operand.
        y: The second operand.
        plan: The plan of the product.
        dtype: The operands' element type.
        given: The element type of the result.
    """
    at_a, at_b = form.elements(x, y, plan.tile.math)
    sizes, out = form.sizes, form.out
    note = AnnotatedProduct(
        plan=plan,
        out=out,
        sizes=sizes,
        vectors=form.vectors(plan.tile.math),
        item=ITEMS.get(dtype, 2),
        kind=form.kind,
        merged=form.merged,
    )
    whole = noted_product(at_a, at_b, dtype, note)

    def element(*index: Index) -> Expr:
        value = whole(*note.place(*index))
        return value.astype(given) if plan.split == 1 else value

    return te.compute(out if plan.split == 1 else (plan.split, *out), element, name=OUT)
