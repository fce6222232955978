"""Keeps images channels last inside a function, plain at its border.

Output channels then fill the vector lanes of every convolution, and no kernel but the first and
last ever moves an image to another layout. (Relax's ConvertLayout stops at ``clip`` and other
operators, which costs two transposes each time.) Operators this pass does not know get their
plain layout back; a value is converted at most once each way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst, GlobalVar, Op, Tuple, TupleGetItem

from collage_engine.toolchains.tvm.legalize.common import constant_of, static_shape


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
TO_LAST = (0, 2, 3, 1)
TO_FIRST = (0, 3, 1, 2)


MANY = 8
"""Convolutions from which the conversions at the border no longer show."""
MOST = 0.8
"""Share of them that must gain; grouped and narrow ones run faster plain."""


def worthwhile(function: relax.Function, lanes: int = 16) -> bool:
    """Whether a function is faster with its images channels last inside.

    Each convolution can turn its own image inside its kernel, so few of them do not repay two
    conversions at the border. Measured against ONNX Runtime, plain and channels last: bottleneck
    of ResNet-50 0.83 and 1.15, two of them 0.86 and 1.02, the whole of it 1.08 and 1.06,
    SqueezeNet 1.23 and 0.97, DenseNet-121 0.96 and 0.78, MobileNetV2 1.10 and 0.99, ShuffleNet
    (grouped) 0.69 and 0.79, a narrow U-Net 0.52 and 0.69.
    """
    count = gaining = 0
    for block in function.body.blocks:
        for binding in block.bindings:
            if _is_conv(binding.value):
                count += 1
                weight = static_shape(binding.value.args[1])
                groups = int(binding.value.attrs.groups)
                if weight is not None and weight[0] >= lanes:
                    gaining += groups == 1 or groups == weight[0]
    return gaining >= MANY and gaining >= MOST * count


def _name(call: Any) -> str:
    return str(call.op.name) if isinstance(call, Call) and isinstance(call.op, Op) else ""


def _is_conv(value: Any) -> bool:
    return (
        _name(value) == "relax.nn.conv2d"
        and str(value.attrs.data_layout) == "NCHW"
        and isinstance(value.args[1], GenericConst)
    )


def convert(module: tvm.IRModule) -> tvm.IRModule:
    """The module with ``main`` rewritten."""
    return _Converter(module).run()


class _Converter:
    """One pass over the bindings; every value is known plain, channels last, or both."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.function = module["main"]
        self.builder = relax.BlockBuilder()
        self.callees = {
            variable: self.builder.add_func(function, variable.name_hint)
            for variable, function in module.functions.items()
            if isinstance(function, tvm.tirx.PrimFunc)
        }
        self.plain: dict[Any, Any] = {}
        self.last: dict[Any, Any] = {}

    def run(self) -> tvm.IRModule:
        function, builder = self.function, self.builder
        parameters = list(function.params)
        for parameter in parameters:
            self.plain[parameter] = parameter
        with builder.function("main", parameters):
            with builder.dataflow():
                for block in function.body.blocks:
                    for binding in block.bindings:
                        self._bind(binding.var, binding.value)
                result = builder.emit_output(self._to_plain(function.body.body))
            builder.emit_func_output(result)
        return builder.get()

    def _bind(self, var: Any, value: Any) -> None:
        handler = self._handler(value)
        new = handler(value) if handler is not None else None
        if new is not None:
            self.last[var] = self.builder.emit(new)
            return
        if isinstance(value, relax.Var) and value in self.last:
            self.last[var] = self.last[value]
            if value in self.plain:
                self.plain[var] = self.plain[value]
            return
        if isinstance(value, TupleGetItem) and value.tuple_value in self.last:
            self.last[var] = self.builder.emit(
                TupleGetItem(self.last[value.tuple_value], value.index)
            )
            return
        self.plain[var] = self.builder.emit(self._to_plain(value))

    def _handler(self, value: Any) -> Callable[[Call], Any] | None:
        name = _name(value)
        if _is_conv(value):
            return self._conv
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
        }.get(name)

    # Operands ------------------------------------------------------------------------------

    def _to_plain(self, e: Any) -> Any:
        """The expression over plain values, converting what exists channels last only."""
        if isinstance(e, relax.Var):
            if e not in self.plain and e in self.last:
                last = self.last[e]
                if isinstance(last.ty, relax.TupleType):
                    fields = [
                        self._permute(self.builder.emit(TupleGetItem(last, i)), TO_FIRST)
                        for i in range(len(last.ty.fields))
                    ]
                    self.plain[e] = Tuple(fields)
                else:
                    self.plain[e] = self._permute(last, TO_FIRST)
            return self.plain.get(e, e)
        if isinstance(e, GlobalVar):
            return self.callees.get(e, e)
        if isinstance(e, Call):
            return Call(e.op, [self._to_plain(a) for a in e.args], e.attrs, e.ty_args)
        if isinstance(e, Tuple):
            return Tuple([self._to_plain(f) for f in e.fields])
        if isinstance(e, TupleGetItem):
            value = self._to_plain(e.tuple_value)
            if isinstance(value, Tuple):
                return value.fields[e.index]
            return TupleGetItem(value, e.index)
        return e

    def _to_last(self, e: Any) -> Any:
        """A four-dimensional value channels last."""
        if isinstance(e, relax.Var) and e in self.last:
            return self.last[e]
        array = constant_of(e)
        if array is not None:
            return relax.const(np.ascontiguousarray(array.transpose(TO_LAST)), str(array.dtype))
        moved = self._permute(self._to_plain(e), TO_LAST)
        if isinstance(e, relax.Var):
            self.last[e] = moved
        return moved

    def _permute(self, e: Any, order: tuple[int, ...]) -> Any:
        shape = static_shape(e)
        assert shape is not None
        kept = [a for a in order if shape[a] != 1]
        if kept == sorted(kept):
            # Only axes of extent 1 move: the same elements in the same order.
            return self.builder.emit(relax.op.reshape(e, [shape[a] for a in order]))
        return self.builder.emit(relax.op.permute_dims(e, list(order)))

    def _is_last(self, e: Any) -> bool:
        return isinstance(e, relax.Var) and e in self.last

    # Operators: the new call, or None when this one stays plain --------------------------------

    def _conv(self, call: Call) -> Any:
        a = call.attrs
        return relax.op.nn.conv2d(
            self._to_last(call.args[0]), call.args[1], list(a.strides), list(a.padding),
            list(a.dilation), int(a.groups), "NHWC", str(a.kernel_layout), "NHWC",
            a.out_dtype or None,
        )  # fmt: skip

    def _unary(self, call: Call) -> Any:
        if not self._is_last(call.args[0]):
            return None
        return Call(call.op, [self.last[call.args[0]], *call.args[1:]], call.attrs, call.ty_args)

    def _binary(self, call: Call) -> Any:
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

    def _broadcast(self, e: Any) -> Any:
        """An operand of fewer or equal dimensions, aligned and channels last."""
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

    def _pool(self, call: Call) -> Any:
        if not self._is_last(call.args[0]) or str(call.attrs.layout) != "NCHW":
            return None
        data, a = self.last[call.args[0]], call.attrs
        if _name(call) == "relax.nn.adaptive_avg_pool2d":
            size = None if a.output_size is None else [int(v) for v in a.output_size]
            return relax.op.nn.adaptive_avg_pool2d(data, size, "NHWC", "NHWC")
        make = (
            relax.op.nn.max_pool2d
            if _name(call) == "relax.nn.max_pool2d"
            else relax.op.nn.avg_pool2d
        )
        return make(
            data, list(a.pool_size), list(a.strides), list(a.padding), list(a.dilation),
            bool(a.ceil_mode), bool(a.count_include_pad), "NHWC", "NHWC",
        )  # fmt: skip

    def _axis(self, axis: int) -> int:
        return TO_LAST.index(axis % 4)

    def _reduce(self, call: Call) -> Any:
        if not self._is_last(call.args[0]):
            return None
        if not bool(call.attrs.keepdims):
            return None
        axes = call.attrs.axis
        axes = range(4) if axes is None else [int(v) for v in axes]
        make = getattr(relax.op, _name(call).removeprefix("relax."))
        return make(self.last[call.args[0]], sorted(self._axis(v) for v in axes), True)

    def _concat(self, call: Call) -> Any:
        fields = call.args[0]
        if not isinstance(fields, Tuple) or call.attrs.axis is None:
            return None
        parts = list(fields.fields)
        if not any(self._is_last(p) for p in parts):
            return None
        if any(len(static_shape(p) or ()) != 4 for p in parts):
            return None
        return relax.op.concat([self._to_last(p) for p in parts], self._axis(int(call.attrs.axis)))

    def _split(self, call: Call) -> Any:
        if not self._is_last(call.args[0]):
            return None
        sections = call.attrs.indices_or_sections
        count: Any = (
            int(sections.value) if hasattr(sections, "value") else [int(v) for v in sections]
        )
        return relax.op.split(self.last[call.args[0]], count, self._axis(int(call.attrs.axis)))

    def _reshape(self, call: Call) -> Any:
        """A reshape of an image of one pixel reads the same elements in the same order."""
        if not self._is_last(call.args[0]) or call.args[0] in self.plain:
            return None
        shape = static_shape(call.args[0])
        if shape is None or shape[2] * shape[3] != 1:
            return None
        last = self.last[call.args[0]]
        self.plain[call.args[0]] = self.builder.emit(relax.op.reshape(last, shape))
        return None

    def _resize(self, call: Call) -> Any:
        if not self._is_last(call.args[0]) or str(call.attrs.layout) != "NCHW":
            return None
        a = call.attrs
        return relax.op.image.resize2d(
            self.last[call.args[0]], call.args[1], [float(v) for v in a.roi], "NHWC", a.method,
            a.coordinate_transformation_mode, a.rounding_method, a.cubic_alpha,
            a.cubic_exclude, a.extrapolation_value, a.out_dtype or None,
        )  # fmt: skip

    def _pad(self, call: Call) -> Any:
        if not self._is_last(call.args[0]):
            return None
        widths = [int(v) for v in call.attrs.pad_width]
        pairs = [widths[2 * i : 2 * i + 2] for i in range(4)]
        order = [v for axis in TO_LAST for v in pairs[axis]]
        return relax.op.nn.pad(
            self.last[call.args[0]], order, str(call.attrs.pad_mode), float(call.attrs.pad_value)
        )

    def _softmax(self, call: Call) -> Any:
        if not self._is_last(call.args[0]):
            return None
        return relax.op.nn.softmax(self.last[call.args[0]], self._axis(int(call.attrs.axis)))
