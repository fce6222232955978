"""Describes convolutions and matrix products as ``C[s, m, n] = Σ_k A[s, m, k] B[s, k, n]``.

The columns of a convolution are pixels and its rows output channels, so neighbouring threads read
and write neighbouring pixels. B is read from the image where it is needed and never stored
(implicit GEMM).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr

from collage_engine.kernels.cuda.epilogue import OUT
from collage_engine.kernels.cuda.problems import Window, broadcast, unfused, where
from collage_engine.kernels.cuda.product.plan import PLAIN, ProductPlan, ProductSizes
from collage_engine.kernels.cuda.product.reference import AnnotatedProduct, Element, noted_product
from collage_engine.kernels.tir_builder import Index

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
