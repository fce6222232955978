"""Rounds the operands of products to bfloat16, where that is faster.

A pass over a function whose images are channels last: convolutions and matrix products with
constant weights become kernels that multiply bfloat16 numbers and add in float32. What they read
is rounded by its maker, in the same kernel where nobody else needs it in float32; all other values
stay as they are, so that rounding errors do not add up in sums that run through a model.

Left in float32: what the instance says, depthwise and narrow convolutions, and those that
Winograd's method saves more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call
from tvm.relax.expr_functor import PyExprMutator, mutator

from collage_engine.records.precision import PRODUCTS
from collage_engine.toolchains.tvm.channels_last_operators import is_convolution, name_of
from collage_engine.toolchains.tvm.emit import product
from collage_engine.toolchains.tvm.legalize.bfloat16 import Sizes, rounded
from collage_engine.toolchains.tvm.legalize.common import (
    ANCHOR,
    const,
    constant_of,
    dtype_of,
    static_shape,
)
from collage_engine.toolchains.tvm.schedules import winograd_plan
from collage_engine.toolchains.tvm.target import Cpu
from collage_engine.toolchains.tvm.transposed import sub_pixels

NARROW = 8
"""Channels in or out of a group below which float32 kernels are as fast."""
ROUNDED = "collage.rounded_but"
"""Function attribute, there when products are to be rounded: those left in float32, by order."""


def wanted(function: relax.Function) -> tuple[bool, frozenset[int]]:
    """Whether a function's products are to be rounded, and which of them are not."""
    known = function.attrs or {}
    if ROUNDED not in known:
        return False, frozenset()
    return True, frozenset(int(v) for v in known[ROUNDED])


def has_images(function: relax.Function) -> bool:
    """Whether there are convolutions, which read channels last what is rounded."""
    return any(
        is_convolution(binding.value) or sub_pixels(binding.value, last=True) is not None
        for block in function.body.blocks
        for binding in block.bindings
    )


def with_rounded_products(module: tvm.IRModule, full: Collection[int], cpu: Cpu) -> tvm.IRModule:
    """The module with the products of ``main`` in bfloat16, those at ``full`` left out."""
    rounding = _Rounding(module, frozenset(full), cpu)
    main = module.get_global_var("main")
    rounding.builder_.update_func(main, rounding.visit_expr(module["main"]))
    return rounding.builder_.get()


@mutator
class _Rounding(PyExprMutator):
    """Products one by one, in order."""

    def __init__(self, module: tvm.IRModule, full: frozenset[int], cpu: Cpu) -> None:
        super().__init__(module)
        self.full, self.cpu = full, cpu
        self.position = 0
        self.halves: dict[Any, Any] = {}

    def visit_call_(self, call: Call) -> Any:
        call = self.visit_expr_post_order(call)
        name = name_of(call).removeprefix("relax.")
        if name not in PRODUCTS:
            return call
        self.position += 1
        if self.position - 1 in self.full:
            return call
        found = self._conv(call) if name == "nn.conv2d" else self._matmul(call, name)
        return call if found is None else found

    def _conv(self, call: Call) -> Any:
        data, kernel = call.args
        shape, out, weight = static_shape(data), static_shape(call), constant_of(kernel)
        attributes = call.attrs
        if shape is None or out is None or weight is None or weight.dtype != np.float32:
            return None
        if str(attributes.data_layout) != "NHWC" or dtype_of(data) != "float32":
            return None
        weight = weight.transpose([str(attributes.kernel_layout).index(a) for a in "OIHW"])
        groups = int(attributes.groups)
        strides, dilation = ([int(v) for v in a] for a in (attributes.strides, attributes.dilation))
        padding = [int(v) for v in attributes.padding]
        padding = padding * (4 // len(padding))
        co, ci = weight.shape[0] // groups, weight.shape[1]
        sizes = Sizes(shape, out, weight.shape, groups, strides, padding, dilation)
        if co < NARROW or (ci < NARROW and not sizes.merged):
            return None
        channels = weight.shape[1], weight.shape[0]
        if winograd_plan.takes(
            weight.shape[2:], strides, dilation, groups, channels, self.cpu
        ) and winograd_plan.beats_bfloat16(self.cpu, co, ci, out[1:-1]):
            return None
        return self._product(data, weight, sizes, "bfloat16_conv2d")

    def _matmul(self, call: Call, name: str) -> Any:
        if name != "matmul":
            return None
        left, right = call.args
        shape, out, weight = static_shape(left), static_shape(call), constant_of(right)
        if shape is None or out is None or weight is None or weight.dtype != np.float32:
            return None
        if len(shape) < 2 or weight.ndim < 2 or product(weight.shape[:-2]) != 1:
            return None
        if len(shape) < weight.ndim or dtype_of(left) != "float32":
            return None
        depth, columns = weight.shape[-2:]
        if min(depth, columns) < NARROW:
            return None
        sizes = Sizes(shape, out, (columns, depth))
        return self._product(left, weight.reshape(depth, columns).T, sizes, "bfloat16_matmul")

    def _product(self, data: Any, weight: np.ndarray, sizes: Sizes, name: str) -> Any:
        builder = self.builder_
        if data not in self.halves:
            self.halves[data] = builder.emit(
                builder.call_te(rounded, data, primfunc_name_hint="rounded")
            )
        return builder.call_te(
            sizes.sums, self.halves[data], const(sizes.packed(weight, self.cpu)),
            primfunc_name_hint=name, primfunc_attrs=ANCHOR,
        )  # fmt: skip
