"""Keeps images channels last inside a function; plain at its border, or as it is asked.

Output channels then fill the vector lanes of every convolution, and no kernel but the first and
last ever moves an image to another layout. (Relax's ConvertLayout stops at ``clip`` and other
operators, which costs two transposes each time.) Operators this pass does not know get their
plain layout back; a value is converted at most once each way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, Expr, GenericConst, Tuple, TupleGetItem, make_node

from collage_engine.kernels.relax_values import (
    constant_of,
    dtype_of,
    name_of,
    static_shape,
    with_variables,
)
from collage_engine.records.format import NHWC, TO_LOGICAL, TO_STORED
from collage_engine.toolchains.tvm.kernel_nodes import NamingBuilder
from collage_engine.toolchains.tvm.transposed import emit, sub_pixels

TO_LAST, TO_FIRST = TO_STORED[NHWC], TO_LOGICAL[NHWC]
"""Orders of axes that turn channels first (NCHW) into channels last (NHWC), and back."""
MOST = 0.8
"""Share of the convolutions that must gain. Chosen: grouped and narrow ones run faster plain
(ShuffleNet, a narrow U-Net), and few of them outweigh what the others gain."""


def _names(text: str) -> frozenset[str]:
    return frozenset(f"relax.{name}" for name in text.split())


OF_ONE_IMAGE = _names(
    """
    abs acos acosh asin asinh astype atan atanh bitwise_not ceil clip cos cosh erf exp floor
    isfinite isinf isnan log logical_not negative nn.dropout nn.gelu nn.gelu_tanh nn.leakyrelu
    nn.relu nn.selu nn.silu nn.softplus round rsqrt sigmoid sign sin sinh sqrt square tan tanh
    trunc nn.max_pool2d nn.avg_pool2d nn.softmax
    nn.log_softmax nn.prelu split image.resize2d
    """
)
"""Operators that differ for channels last in their attributes only: a layout, or an axis."""
BINARY = _names(
    """
    add divide equal floor_divide floor_mod greater greater_equal less less_equal logical_and
    logical_or logical_xor maximum minimum mod multiply not_equal power subtract where
    """
)
REDUCTIONS = _names("mean sum max min prod")


@dataclass(frozen=True)
class Plain:
    """A handler's result that is a plain value, read from one channels last."""

    value: Expr


def is_convolution(value: Expr) -> bool:
    """Tell whether a value is a two-dimensional convolution of plain layout."""
    return (
        name_of(value) == "relax.nn.conv2d"
        and str(value.attrs.data_layout) == "NCHW"
        and isinstance(value.args[1], GenericConst)
    )


def remade(call: Call, operands: Sequence[Any], **changes: Any) -> Call:
    """Return a call of the same operator on other operands, with some attributes changed."""
    kind = type(call.attrs).__tvm_ffi_type_info__
    fields = {field.name: getattr(call.attrs, field.name) for field in kind.fields}
    return Call(call.op, operands, make_node(kind.type_key, **(fields | changes)), call.ty_args)


def worthwhile(function: relax.Function, lanes: int = 16) -> bool:
    """Tells whether a function is faster with channels last inside.

    Measured against ONNX Runtime, plain and channels last: ResNet-50 1.08 and 1.06, SqueezeNet
    1.23 and 0.97, DenseNet-121 0.96 and 0.78, MobileNetV2 1.10 and 0.99, ShuffleNet (grouped) 0.69
    and 0.79, a narrow U-Net 0.52 and 0.69. A single block whose images are plain at its border
    loses up to an eighth to the two conversions, a network of five convolutions gains a tenth.
    """
    count = gaining = 0
    for block in function.body.blocks:
        for binding in block.bindings:
            if is_convolution(binding.value):
                count += 1
                weight = static_shape(binding.value.args[1])
                groups = int(binding.value.attrs.groups)
                if weight is not None and weight[0] >= lanes:
                    gaining += groups == 1 or groups == weight[0]
    return count > 0 and gaining >= MOST * count


def convert(
    module: tvm.IRModule, takes: Collection[int] = (), gives: Collection[int] = ()
) -> tvm.IRModule:
    """Return the module with ``main`` rewritten.

    Args:
        module: The module.
        takes: Positions of the parameters that are to be channels last; their types change.
        gives: Positions of the results that are to be.
    """
    return _Converter(module, takes, gives).run()


class _Converter:
    """One pass over the bindings; every value is known plain, channels last, or both."""

    def __init__(
        self, module: tvm.IRModule, takes: Collection[int], gives: Collection[int]
    ) -> None:
        self.function, self.takes, self.gives = module["main"], takes, gives
        self.builder = NamingBuilder()
        self.plain: dict[Any, Any] = {
            variable: self.builder.add_func(function, variable.name_hint)
            for variable, function in module.functions.items()
            if isinstance(function, tvm.tirx.PrimFunc)
        }
        self.last: dict[Any, Any] = {}
        self.tuples: dict[Any, Tuple] = {}

    def run(self) -> tvm.IRModule:
        function, builder = self.function, self.builder
        parameters = []
        for position, parameter in enumerate(function.params):
            if position in self.takes:
                shape, dtype = static_shape(parameter), dtype_of(parameter)
                assert shape is not None
                stored = relax.TensorType([shape[axis] for axis in TO_LAST], dtype)
                parameters.append(relax.Var(parameter.name, stored))
                self.last[parameter] = parameters[-1]
            else:
                parameters.append(parameter)
                self.plain[parameter] = parameter
        with builder.function("main", parameters):
            with builder.dataflow():
                for block in function.body.blocks:
                    for binding in block.bindings:
                        builder.hint = str(binding.var.name)
                        self._bind(binding.var, binding.value)
                result = builder.emit_output(self._results(function.body.body))
            builder.emit_func_output(result)
        return builder.get()

    def _results(self, body: Any) -> Any:
        """Return the function's results, those channels last that are to be."""
        if not self.gives:
            return self._to_plain(body)
        fields = list(self.tuples[body].fields) if body in self.tuples else [body]
        results = [
            self._to_last(field) if position in self.gives else self._to_plain(field)
            for position, field in enumerate(fields)
        ]
        return Tuple(results) if body in self.tuples else results[0]

    def _bind(self, var: Any, value: Any) -> None:
        if isinstance(value, Tuple):
            self.tuples[var] = value
            if self.gives and var.same_as(self.function.body.body):
                return  # its fields are converted one by one
        handler = self.handler(value)
        new = handler(value) if handler is not None else None
        if isinstance(new, Plain):
            self.plain[var] = self.builder.emit(new.value)
            return
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

    # Calls ------------------------------------------------------------------------------------

    def handler(self, value: Expr) -> Callable[[Call], Any] | None:
        """Return what writes a call for images that are channels last.

        None for unknown operators.
        """
        name = name_of(value)
        if is_convolution(value):
            return self._conv
        if name == "relax.nn.conv2d_transpose":
            return self._conv_transpose
        if name in OF_ONE_IMAGE:
            return self._of_one_image
        if name in BINARY:
            return self._binary
        if name in REDUCTIONS:
            return self._reduce
        return {
            "relax.concat": self._concat,
            "relax.reshape": self._reshape,
            "relax.nn.pad": self._pad,
            "relax.permute_dims": self._permute_dims,
        }.get(name)

    # The new call; ``Plain`` of one; or None when this one stays plain ----------------------------

    def _conv(self, call: Call) -> Expr:
        operands = [self._to_last(call.args[0]), call.args[1]]
        return remade(call, operands, data_layout="NHWC", out_layout="NHWC")

    def _conv_transpose(self, call: Call) -> Expr:
        pixels = sub_pixels(call, last=True)
        if pixels is None:
            return None
        return emit(self.builder, self._to_last(call.args[0]), pixels, last=True)

    def _of_one_image(self, call: Call) -> Expr:
        data, *others = call.args
        if not self._is_last(data):
            return None
        changes: dict[str, Any] = {}
        if hasattr(call.attrs, "layout"):
            if str(call.attrs.layout) != "NCHW":
                return None
            changes = {key: "NHWC" for key in ("layout", "out_layout") if hasattr(call.attrs, key)}
        elif hasattr(call.attrs, "axis"):
            changes = {"axis": self._axis(int(call.attrs.axis))}
        operands = [self.last[data], *map(self._to_plain, others)]
        if not changes:
            return Call(call.op, operands, call.attrs, call.ty_args)
        return remade(call, operands, **changes)

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

    def _axis(self, axis: int) -> int:
        return TO_LAST.index(axis % 4)

    def _reduce(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        axes = call.attrs.axis
        axes = range(4) if axes is None else [int(v) % 4 for v in axes]
        moved = sorted(self._axis(v) for v in axes)
        made = remade(call, [self.last[call.args[0]]], axis=moved)
        if bool(call.attrs.keepdims):
            return made
        left = [axis for axis in TO_LAST if axis not in axes]
        return Plain(made) if left == sorted(left) else None

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

    def _pad(self, call: Call) -> Expr:
        if not self._is_last(call.args[0]):
            return None
        widths = [int(v) for v in call.attrs.pad_width]
        pairs = [widths[2 * i : 2 * i + 2] for i in range(4)]
        order = [v for axis in TO_LAST for v in pairs[axis]]
        return remade(call, [self.last[call.args[0]]], pad_width=order)

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

    # Operands ------------------------------------------------------------------------------

    def _to_plain(self, e: Any) -> Any:
        """Return the expression over plain values, converting what exists channels last only."""
        return with_variables(e, self._plain)

    def _plain(self, e: Any) -> Any:
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

    def _to_last(self, e: Any) -> Any:
        """Return a four-dimensional value channels last."""
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
