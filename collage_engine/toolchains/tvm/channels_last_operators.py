"""Writes operators over images that are held channels last, each as a call on the stored axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Op, Tuple

from collage_engine.kernels.relax_values import constant_of, static_shape
from collage_engine.toolchains.tvm.transposed import emit, sub_pixels

TO_LAST = (0, 2, 3, 1)
"""Order of axes that turns channels first (NCHW) into channels last (NHWC)."""
TO_FIRST = (0, 3, 1, 2)
"""Order of axes that turns channels last (NHWC) into channels first (NCHW)."""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


UNARY = _names(
    """
    abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor
    isfinite isinf isnan log logical_not negative nn.dropout nn.gelu nn.gelu_tanh nn.leakyrelu
    nn.relu nn.selu nn.silu nn.softplus round rsqrt sigmoid sign sin sinh sqrt square tan tanh
    trunc
    """
)
BINARY = _names(
    """
    add divide equal floor_divide floor_mod greater greater_equal less less_equal logical_and
    logical_or logical_xor maximum minimum mod multiply not_equal power subtract where
    """
)
POOLS = _names(
    """
    nn.max_pool2d nn.avg_pool2d nn.adaptive_avg_pool2d
    """
)
REDUCTIONS = _names(
    """
    mean sum max min prod
    """
)


@dataclass(frozen=True)
class Plain:
    """A handler's result that is a plain value, read from one channels last."""

    value: Expr


def name_of(call: Expr) -> str:
    """Return a call's operator by name; empty for other expressions."""
    return str(call.op.name) if isinstance(call, Call) and isinstance(call.op, Op) else ""


def is_convolution(value: Expr) -> bool:
    """Tell whether a value is a two-dimensional convolution of plain layout."""
    return (
        name_of(value) == "relax.nn.conv2d"
        and str(value.attrs.data_layout) == "NCHW"
        and isinstance(value.args[1], GenericConst)
    )


class Operators:
    """The writers of operators with channels last; ``channels_last`` keeps the values."""

    builder: Any
    plain: dict[Any, Any]
    last: dict[Any, Any]

    _to_plain: Callable[[Any], Any]
    _to_last: Callable[[Any], Any]
    _permute: Callable[[Any, tuple[int, ...]], Any]
    _is_last: Callable[[Any], bool]

    def handler(self, value: Expr) -> Callable[[Call], Any] | None:
        """Return what writes a call for images that are channels last.

        None for unknown operators.
        """
        name = name_of(value)
        if is_convolution(value):
            return self._conv
        if name == "relax.nn.conv2d_transpose":
            return self._conv_transpose
        if name in UNARY:
            return self._unary
        if name in BINARY:
            return self._binary
        if name in POOLS:
            return self._pool
        if name in REDUCTIONS:
            return self._reduce
        return {
            "relax.concat": self._concat,
            "relax.split": self._split,
            "relax.reshape": self._reshape,
            "relax.image.resize2d": self._resize,
            "relax.nn.pad": self._pad,
            "relax.nn.softmax": self._softmax,
            "relax.nn.log_softmax": self._softmax,
            "relax.nn.prelu": self._prelu,
            "relax.permute_dims": self._permute_dims,
        }.get(name)

    # The new call; ``Plain`` of one; or None when this one stays plain ----------------------------

    def _conv(self, call: Call) -> Expr:
        a = call.attrs
        return relax.op.nn.conv2d(
            self._to_last(call.args[0]),
            call.args[1],
            list(a.strides),
            list(a.padding),
            list(a.dilation),
            int(a.groups),
            "NHWC",
            str(a.kernel_layout),
            "NHWC",
            a.out_dtype or None,
        )

    def _conv_transpose(self, call: Call) -> Expr:
        found = sub_pixels(call, last=True)
        if found is None:
            return None
        return emit(self.builder, self._to_last(call.args[0]), found, last=True)

    def _unary(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        return Call(call.op, [self.last[call.args[0]], *call.args[1:]], call.attrs, call.ty_args)

    def _binary(self, call: Call) -> Expr:
        if not any(self._is_last(a) for a in call.args):
            return None
        shape = static_shape(call)
        if shape is None or len(shape) != 4:
            return None
        operands = []
        for argument in call.args:
            operand = self._broadcast(argument)
            if operand is None:
                return None
            operands.append(operand)
        return Call(call.op, operands, call.attrs, call.ty_args)

    def _broadcast(self, e: Any) -> Expr:
        """Return an operand of fewer or equal dimensions, aligned and channels last."""
        shape = static_shape(e)
        if shape is None:
            return None
        if len(shape) == 4:
            return self._to_last(e)
        full = (1,) * (4 - len(shape)) + shape
        if all(extent == 1 for extent in full):
            return self._to_plain(e)
        array = constant_of(e)
        if array is not None:
            array = array.reshape(full).transpose(TO_LAST)
            return relax.const(np.ascontiguousarray(array), str(array.dtype))
        wide = self.builder.emit(relax.op.reshape(self._to_plain(e), full))
        return self._permute(wide, TO_LAST)

    def _pool(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]) or str(call.attrs.layout) != "NCHW":
            return None
        data, a = self.last[call.args[0]], call.attrs
        if name_of(call) == "relax.nn.adaptive_avg_pool2d":
            size = None if a.output_size is None else [int(v) for v in a.output_size]
            return relax.op.nn.adaptive_avg_pool2d(data, size, "NHWC", "NHWC")
        make = (
            relax.op.nn.max_pool2d
            if name_of(call) == "relax.nn.max_pool2d"
            else relax.op.nn.avg_pool2d
        )
        return make(
            data,
            list(a.pool_size),
            list(a.strides),
            list(a.padding),
            list(a.dilation),
            bool(a.ceil_mode),
            bool(a.count_include_pad),
            "NHWC",
            "NHWC",
        )

    def _axis(self, axis: int) -> int:
        return TO_LAST.index(axis % 4)

    def _reduce(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        axes = call.attrs.axis
        axes = range(4) if axes is None else [int(v) % 4 for v in axes]
        make = getattr(relax.op, name_of(call).removeprefix("relax."))
        last, moved = self.last[call.args[0]], sorted(self._axis(v) for v in axes)
        if bool(call.attrs.keepdims):
            return make(last, moved, True)
        left = [axis for axis in TO_LAST if axis not in axes]
        return Plain(make(last, moved, False)) if left == sorted(left) else None

    def _concat(self, call: Call) -> Expr:
        fields = call.args[0]
        if not isinstance(fields, Tuple) or call.attrs.axis is None:
            return None
        parts = list(fields.fields)
        if not any(self._is_last(p) for p in parts):
            return None
        if any(len(static_shape(p) or ()) != 4 for p in parts):
            return None
        return relax.op.concat([self._to_last(p) for p in parts], self._axis(int(call.attrs.axis)))

    def _split(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        sections = call.attrs.indices_or_sections
        count: Any = (
            int(sections.value) if hasattr(sections, "value") else [int(v) for v in sections]
        )
        return relax.op.split(self.last[call.args[0]], count, self._axis(int(call.attrs.axis)))

    def _reshape(self, call: Call) -> Expr:
        """Has a reshape of an image of one pixel read the same elements in the same order."""
        if not self._is_last(call.args[0]) or call.args[0] in self.plain:
            return None
        shape = static_shape(call.args[0])
        if shape is None or shape[2] * shape[3] != 1:
            return None
        last = self.last[call.args[0]]
        self.plain[call.args[0]] = self.builder.emit(relax.op.reshape(last, shape))
        return None

    def _resize(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]) or str(call.attrs.layout) != "NCHW":
            return None
        a = call.attrs
        return relax.op.image.resize2d(
            self.last[call.args[0]],
            call.args[1],
            [float(v) for v in a.roi],
            "NHWC",
            a.method,
            a.coordinate_transformation_mode,
            a.rounding_method,
            a.cubic_alpha,
            a.cubic_exclude,
            a.extrapolation_value,
            a.out_dtype or None,
        )

    def _pad(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        widths = [int(v) for v in call.attrs.pad_width]
        pairs = [widths[2 * i : 2 * i + 2] for i in range(4)]
        order = [v for axis in TO_LAST for v in pairs[axis]]
        return relax.op.nn.pad(
            self.last[call.args[0]], order, str(call.attrs.pad_mode), float(call.attrs.pad_value)
        )

    def _softmax(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        make = getattr(relax.op.nn, name_of(call).removeprefix("relax.nn."))
        return make(self.last[call.args[0]], self._axis(int(call.attrs.axis)))

    def _prelu(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        return relax.op.nn.prelu(
            self.last[call.args[0]], self._to_plain(call.args[1]), self._axis(int(call.attrs.axis))
        )

    def _permute_dims(self, call: Call) -> Expr:
        """Return a transposition that the model itself has may be done by the layout already."""
        source, axes = call.args[0], call.attrs.axes
        if len(static_shape(source) or ()) != 4:
            return None
        order = [int(a) % 4 for a in axes] if axes is not None else [3, 2, 1, 0]
        if self._is_last(source):
            moved = [TO_LAST.index(a) for a in order]
            last = self.last[source]
            return Plain(last if moved == [0, 1, 2, 3] else self._permute(last, tuple(moved)))
        return self._to_plain(source) if tuple(order) == TO_FIRST else None
