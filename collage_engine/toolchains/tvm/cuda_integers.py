"""Computes quantised composites by products of int8 on tensor cores, requantised there.

Images stay channels first. Unsigned data is multiplied as signed, 128 less. What follows the sums
(scales, bias, residual, activation, rounding) is the processor's own writing, in the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from collage_engine.kernels.cuda.direct import (
    NotedDirect,
    direct_chosen,
    direct_result,
    few_rows,
    packed_filters,
    shape_of_direct,
)
from collage_engine.kernels.cuda.problems import FIRST, Window, multiprocessors, worthwhile
from collage_engine.kernels.cuda.product.forms import Convolution, Form, Matmul, result_of
from collage_engine.kernels.cuda.product.plan import S8, ProductPlan, chosen
from collage_engine.machine.cuda import generation
from collage_engine.partition.quantized_numbers import Scaling
from collage_engine.records.graph import Node, ValueIndex
from collage_engine.toolchains.tvm.quantized import KernelSizes, UnsupportedComposite, Writer


def signed_value(value: Any) -> Any:
    """Return an 8-bit element as int8: an unsigned one 128 less."""
    if str(value.ty.dtype) == "int8":
        return value
    return (value.astype("int32") - 128).astype("int8")


def zero_of(data: Scaling) -> int:
    """Return the data's zero point among the signed numbers that are multiplied."""
    zero = data.single("the data")[1]
    return zero if data.dtype == "int8" else zero - 128


@dataclass(frozen=True)
class _Sums:
    """The weights and the data of a kernel that sums 8-bit products."""

    weights: np.ndarray
    """The weights as int8, output channels first."""
    data: Scaling

    def correction(self) -> np.ndarray:
        """Return what the sums lack because the data's zero is not 0: −zero · Σ w, per channel."""
        totals: np.ndarray = self.weights.astype(np.int64).reshape(self.weights.shape[0], -1).sum(1)
        return (-zero_of(self.data) * totals).astype(np.int32)


@dataclass(frozen=True)
class ProductSums(_Sums):
    """The sums of a product on tensor cores."""

    form: Form
    plan: ProductPlan
    operand: np.ndarray
    axis: int
    """The axis of the result along which the output channels lie."""

    @property
    def out(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return self.form.out

    def packed(self) -> np.ndarray:
        """Return the weights in the order in which the product reads them."""
        return self.operand

    def sums(self, x: Any, w: Any) -> Any:
        """Return the int32 sums of the products, given the data and the packed weights."""
        return result_of(self.form, x, w, self.plan, "int8", "int32")


@dataclass(frozen=True)
class DirectSums(_Sums):
    """The sums of a convolution with few channels a group."""

    note: NotedDirect
    axis: int = 1

    @property
    def out(self) -> tuple[int, ...]:
        """Return the shape of the result."""
        return self.note.out

    def packed(self) -> np.ndarray:
        """Return the weights in the order in which the convolution reads them."""
        return packed_filters(self.weights, self.note.shape)

    def sums(self, x: Any, w: Any) -> Any:
        """Return the int32 sums of the products, given the data and the packed weights."""
        zero = zero_of(self.data)
        return direct_result(lambda *at: signed_value(x(*at)), w, self.note, "int32", zero)


class CudaWriter(Writer):
    """Writes composites for the architecture of its function."""

    @property
    def architecture(self) -> str:
        """Return the architecture of the device, for example ``sm_90a``."""
        return self.integers.function.instance.architecture

    def image(self, index: ValueIndex) -> Any:
        """Return a value as a kernel reads images, which is the plain value."""
        return self.value_of(index)

    def given_as_image(self, value: Any) -> Any:
        """Return a value that a kernel has written as an image, unchanged."""
        return value

    def convolution(self, node: Node, weights: np.ndarray, sizes: KernelSizes) -> Any:
        """Return the sums of a convolution of 8-bit values.

        Raises:
            UnsupportedComposite: There is no kernel for it.
        """
        data = self.numbers.of("data")
        shape = self.graph.values[self.found["data"]].type.shape
        groups, strides, padding, dilation = sizes
        window = Window(
            shape, weights.shape, node.type.shape, groups, [*strides], [*dilation], padding
        )
        if few_rows(window):
            direct = shape_of_direct(window, data.dtype)
            plan = direct_chosen(direct, multiprocessors(self.architecture))
            if plan is None:
                raise UnsupportedComposite
            return DirectSums(weights, data, NotedDirect(direct, plan, window.out))
        form = Convolution(window, outside=zero_of(data), cast=signed_value)
        return ProductSums(weights, data, form, self._plan(form), form.packed(weights, S8), axis=1)

    def product(self, node: Node, weights: np.ndarray) -> Any:
        """Return the sums of a matrix product of 8-bit values.

        Raises:
            UnsupportedComposite: There is no kernel for it.
        """
        data = self.numbers.of("data")
        given = self.graph.values[self.found["data"]].type.shape
        columns = np.ascontiguousarray(weights.T)
        form = Matmul(given, columns.shape, node.type.shape, cast=signed_value)
        return ProductSums(weights, data, form, self._plan(form), columns, axis=-1)

    def _plan(self, form: Form) -> ProductPlan:
        if generation(self.architecture) < FIRST[S8] or not worthwhile(form.sizes):
            raise UnsupportedComposite
        return chosen(form.sizes, S8, multiprocessors(self.architecture))
