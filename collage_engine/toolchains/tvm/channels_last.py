"""Keeps images channels last inside a function; plain at its border, or as its marks say.

Output channels then fill the vector lanes of every convolution, and no kernel but the first and
last ever moves an image to another layout. (Relax's ConvertLayout stops at ``clip`` and other
operators, which costs two transposes each time.) Operators this pass does not know get their
plain layout back; a value is converted at most once each way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, Tuple, TupleGetItem

from collage_engine.kernels.relax_values import constant_of, dtype_of, static_shape
from collage_engine.toolchains.tvm.channels_last_operators import (
    TO_FIRST,
    TO_LAST,
    Operators,
    Plain,
    is_convolution,
)

MOST = 0.8
"""Share of the convolutions that must gain. Chosen: grouped and narrow ones run faster plain
(ShuffleNet, a narrow U-Net), and few of them outweigh what the others gain."""


def worthwhile(function: relax.Function, lanes: int = 16) -> bool:
    """Tells whether a function is faster with channels last inside, or has them so outside.

    Measured against ONNX Runtime, plain and channels last: ResNet-50 1.08 and 1.06, SqueezeNet
    1.23 and 0.97, DenseNet-121 0.96 and 0.78, MobileNetV2 1.10 and 0.99, ShuffleNet (grouped) 0.69
    and 0.79, a narrow U-Net 0.52 and 0.69. A single block whose images are plain at its border
    loses up to an eighth to the two conversions, a network of five convolutions gains a tenth.
    """
    if any(marks(function)):
        return True
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


TAKES, GIVES = "collage.takes_last", "collage.gives_last"


def marked(module: tvm.IRModule, takes: Sequence[int], gives: Sequence[int]) -> tvm.IRModule:
    """Marks the parameters and results of ``main`` (by position) that are to be channels last.

    Their types change when the module is converted.
    """
    if takes or gives:
        main = module["main"].with_attr({TAKES: list(takes), GIVES: list(gives)})
        module.update_func(module.get_global_var("main"), main)
    return module


def marks(function: relax.Function) -> tuple[frozenset[int], frozenset[int]]:
    """Return the positions of the parameters and of the results that are to be channels last."""
    known = function.attrs or {}
    takes, gives = (
        frozenset(int(v) for v in known[name]) if name in known else frozenset()
        for name in (TAKES, GIVES)
    )
    return takes, gives


def convert(module: tvm.IRModule) -> tvm.IRModule:
    """Return the module with ``main`` rewritten, and its border as it is marked."""
    return _Converter(module).run()


class _Converter(Operators):
    """One pass over the bindings; every value is known plain, channels last, or both."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.function = module["main"]
        self.builder = relax.BlockBuilder()
        self.callees = {
            variable: self.builder.add_func(function, variable.name_hint)
            for variable, function in module.functions.items()
            if isinstance(function, tvm.tirx.PrimFunc)
        }
        self.plain = {}
        self.last = {}
        self.tuples: dict[Any, Tuple] = {}
        self.takes, self.gives = marks(self.function)

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
                        self._bind(binding.var, binding.value)
                result = builder.emit_output(self._results(function.body.body))
            builder.emit_func_output(result)
        return builder.get()

    def _results(self, body: Any) -> Any:
        """Return the function's results, those channels last that are marked so."""
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

    # Operands ------------------------------------------------------------------------------

    def _to_plain(self, e: Any) -> Any:
        """Return the expression over plain values, converting what exists channels last only."""
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
