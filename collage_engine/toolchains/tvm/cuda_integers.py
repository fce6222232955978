"""Computes quantised composites by products of int8 on tensor cores, requantised there.

Images stay channels first. Unsigned data is multiplied as signed, 128 less. What follows the sums
(scales, bias, residual, activation, rounding) is the processor's own writing, in the same kernel.
"""

from __future__ import annotations

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
from collage_engine.kernels.cuda.product.plan import S8, chosen
from collage_engine.machine.cuda import generation
from collage_engine.partition.quantized_numbers import Scaling
from collage_engine.records.graph import Node, ValueIndex
from collage_engine.toolchains.tvm.quantized import KernelSizes, Sums, UnsupportedComposite, Writer


def signed_value(value: Any) -> Any:
    """Return an 8-bit element as int8: an unsigned one 128 less."""
    if str(value.ty.dtype) == "int8":
        return value
    return (value.astype("int32") - 128).astype("int8")


def zero_of(data: Scaling) -> int:
    """Return the data's zero point among the signed numbers that are multiplied."""
    zero = data.single("the data")[1]
    return zero if data.dtype == "int8" else zero - 128


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

    def convolution(self, node: Node, weights: np.ndarray, sizes: KernelSizes) -> Sums:
        """Return the sums of a convolution of 8-bit values.

        Raises:
            UnsupportedComposite: There is no kernel for it.
        """
        data = self.numbers.of("data")
        zero = zero_of(data)
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
            note = NotedDirect(direct, plan, window.out)

            def sums(x: Any, w: Any) -> Any:
                return direct_result(lambda *at: signed_value(x(*at)), w, note, "int32", zero)

            return Sums(weights, zero, packed_filters(weights, direct), window.out, 1, sums)
        form = Convolution(window, outside=zero, cast=signed_value)
        return self._of_form(form, weights, form.packed(weights, S8), 1)

    def product(self, node: Node, weights: np.ndarray) -> Sums:
        """Return the sums of a matrix product of 8-bit values.

        Raises:
            UnsupportedComposite: There is no kernel for it.
        """
        given = self.graph.values[self.found["data"]].type.shape
        columns = np.ascontiguousarray(weights.T)
        form = Matmul(given, columns.shape, node.type.shape, cast=signed_value)
        return self._of_form(form, weights, columns, -1)

    def _of_form(self, form: Form, weights: np.ndarray, packed: np.ndarray, axis: int) -> Sums:
        """Return the sums of a product on tensor cores.

        Raises:
            UnsupportedComposite: The device has none for it, or it is too small for them.
        """
        if generation(self.architecture) < FIRST[S8] or not worthwhile(form.sizes):
            raise UnsupportedComposite
        plan = chosen(form.sizes, S8, multiprocessors(self.architecture))
        zero = zero_of(self.numbers.of("data"))

        def sums(x: Any, w: Any) -> Any:
            return result_of(form, x, w, plan, "int8", "int32")

        return Sums(weights, zero, packed, form.out, axis, sums)
