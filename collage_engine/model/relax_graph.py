"""Turns the imported Relax function into numbered values: parameters, constants, calls, glue.

Aliases are followed, calls on constants folded, calls that do nothing dropped, dead ones left
behind; what the outputs need is numbered in post-DFS order, parameters first, as TVM's
``IndexedGraph`` numbers it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from onnx import NodeProto, TensorProto
from tvm import relax
from tvm.ir import Call, GenericConst

from collage_engine.model.attributes import (
    NotStatic,
    attributes_of,
    is_opaque_call,
    is_tensor_tuple,
    operator_name,
    tensor_arguments,
)
from collage_engine.model.constant_relax import does_nothing, fold
from collage_engine.model.draft import node_name
from collage_engine.model.frontend import RelaxImport
from collage_engine.model.onnx_types import element_type
from collage_engine.records.graph import NodeForm, TensorType
from collage_engine.support.errors import ModelError


class OpenSize(ModelError):
    """A value that an output needs has a size that Relax knows only when the model runs."""

    def __init__(self, path: str, value: str) -> None:
        """Keep ``value``, the first output of the ONNX node whose result has the open size."""
        super().__init__(
            f"{path}: the size of '{value}' is known only when the model runs, which is not "
            "supported."
        )
        self.value = value


@dataclass(eq=False)
class Value:
    """A value of the model before it has a number in the graph."""

    form: NodeForm
    expr: Any
    """The raw Relax expression (a parameter's variable, a constant, a call)."""
    inputs: list[Value] = field(default_factory=list)
    types: tuple[TensorType, ...] = ()
    is_tuple: bool = False
    op: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    field: int = 0
    owner: str = ""
    """First output of the (cleaned) ONNX node that a call came from."""
    onnx_value: str | None = None
    name: str = ""


def tensor_type(ty: Any) -> TensorType:
    """Return a Relax tensor type as a record; raises ``NotStatic`` when a size is unknown."""
    if not isinstance(ty, relax.TensorType) or ty.shape is None:
        raise NotStatic
    shape = []
    for extent in ty.shape.values:
        if not isinstance(extent, (int, tvm.tirx.IntImm)):
            raise NotStatic
        shape.append(int(extent))
    return TensorType(tuple(shape), str(ty.dtype.dtype))


def _types(ty: Any) -> tuple[tuple[TensorType, ...], bool]:
    if isinstance(ty, relax.TupleType):
        return tuple(tensor_type(f) for f in ty.fields), True
    return (tensor_type(ty),), False


class Resolver:
    """The walk over the raw bindings, which knows the value behind every expression."""

    def __init__(self, imported: RelaxImport, path: str) -> None:
        self._path = path
        self._imported = imported
        self.operators = imported.operators
        function = imported.module["main"]
        self.prim_funcs = {
            g: f for g, f in imported.module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)
        }
        self.functions = {g.name_hint: f for g, f in self.prim_funcs.items()}
        self._known: dict[Any, Value] = {}
        self._projections: dict[tuple[int, int], Value] = {}
        self.parameters = [self._parameter(p) for p in function.params]
        bindings = [b for block in function.body.blocks for b in block.bindings]
        owners = self._owners(bindings)
        self._open: dict[Any, str] = {}
        for binding, owner in zip(bindings, owners, strict=True):
            try:
                self._known[binding.var] = self._resolve(binding.value, owner)
            except NotStatic as error:
                # It may be what a converter that gave up left behind, which nothing needs.
                self._open[binding.var] = str(error) or owner or "?"
        body = function.body.body
        fields = body.fields if isinstance(body, relax.Tuple) else [body]
        self.outputs: list[Value] = []
        for expr in fields:
            try:
                value = self.value(expr)
            except NotStatic as error:
                raise OpenSize(path, str(error)) from None
            self.outputs += value.inputs if value.form == "tuple" else [value]
        self._name_values()

    def value(self, expr: Any) -> Value:
        """Return the value that an argument (variable, constant, tuple of them) stands for."""
        if expr in self._known:
            return self._known[expr]
        if expr in self._open:
            raise NotStatic(self._open[expr])
        if isinstance(expr, GenericConst):
            self._known[expr] = Value("constant", expr, types=(tensor_type(expr.ty),))
        elif is_tensor_tuple(expr):
            fields = [self.value(f) for f in expr.fields]
            return Value("tuple", expr, fields, _joined(fields), True)
        else:
            raise NotStatic
        return self._known[expr]

    def _parameter(self, variable: Any) -> Value:
        kind = tensor_type(variable.ty)
        if variable in self._imported.texts:
            kind = TensorType(kind.shape[:-1], "string")
        value = Value("parameter", variable, types=(kind,))
        self._known[variable] = value
        return value

    def _owners(self, bindings: list[Any]) -> list[str]:
        """Return, for each binding, the ONNX node for which it was emitted.

        Bindings come in node order, so those up to a node's own result and after the result of the
        node before belong to it; helpers a converter emits on the way have no other mark.
        """
        place = {b.var: i for i, b in enumerate(bindings)}
        owners = [""] * len(bindings)
        start = 0
        for node, variables in self._imported.bounds:
            ends = [place[v] for v in variables if v in place]
            end = max(ends, default=-1) + 1
            if end > start:
                owners[start:end] = [_first_output(node)] * (end - start)
                start = end
        return owners

    def _resolve(self, expr: Any, owner: str) -> Value:
        if isinstance(expr, Call):
            return self._call(expr, owner)
        if isinstance(expr, relax.TupleGetItem):
            whole = self.value(expr.tuple_value)
            return self._project(whole, int(expr.index))
        return self.value(expr)

    def _project(self, whole: Value, index: int) -> Value:
        if whole.form == "tuple":
            return whole.inputs[index]
        key = (id(whole), index)
        if key not in self._projections:
            self._projections[key] = Value(
                "projection", None, [whole], (whole.types[index],), field=index
            )
        return self._projections[key]

    def _call(self, call: Call, owner: str) -> Value:
        op = operator_name(call)
        inputs = [self.value(a) for a in tensor_arguments(call)]
        if is_opaque_call(call):
            types = self._imported.types[owner]
            attributes = self._imported.operators[owner].attributes(self._imported.opsets)
            return Value("call", call, inputs, types, len(types) > 1, op, attributes, owner=owner)
        types, is_tuple = _types(call.ty)
        attributes = attributes_of(call, self.functions)
        if inputs and not is_tuple:
            first = inputs[0]
            plain = all(i.form == "constant" for i in inputs)
            if not first.is_tuple and does_nothing(
                op, attributes, _pair(first.types[0]), _pair(types[0])
            ):
                return first
            if plain:
                array = fold(op, attributes, [constant_array(i.expr) for i in inputs])
                if array is not None:
                    return self._constant(array, types[0], first)
        return Value("call", call, inputs, types, is_tuple, op, attributes, owner=owner)

    def _constant(self, array: np.ndarray, kind: TensorType, source: Value) -> Value:
        made = relax.const(tvm.runtime.tensor(np.ascontiguousarray(array).reshape(kind.shape)))
        value = Value("constant", made, types=(kind,), name=source.name)
        if str(array.dtype) != kind.dtype:
            raise AssertionError(f"folding gave {array.dtype} for {kind}")
        self._known[made] = value
        return value

    def _name_values(self) -> None:
        """Let each value know the (first) ONNX value that it is."""
        values = self._imported.values
        made = [o for node, _ in self._imported.bounds for o in node.output if o in values]
        known = set(made)
        ordered = [n for n in values if n not in known] + made
        for name in ordered:
            found = self._known.get(values[name])
            if found is None or found.form == "tuple":
                continue
            if found.onnx_value is None:
                found.onnx_value = name
            found.name = found.name or name

    def wrong_types(self, types: dict[str, tuple[int, tuple[int, ...] | None]]) -> dict[str, str]:
        """Find nodes whose converter gives another type than ONNX infers.

        Returns:
            The sentence to say of each, by the node's first output.
        """
        found: dict[str, str] = {}
        for node, _ in self._imported.bounds:
            for name in node.output:
                value = self._known.get(self._imported.values.get(name))
                if value is None or value.is_tuple:
                    continue
                element, shape = types.get(name, (0, None))
                kind = value.types[0]
                if (element and element != element_type(kind.dtype)) or (
                    shape is not None and shape != kind.shape
                ):
                    wanted = f"{TensorProto.DataType.Name(element).lower()} {shape}"
                    found[_first_output(node)] = (
                        f"{self._path}: the node '{node_name(node)}' ({node.op_type}) cannot be "
                        f"imported into Relax: it would give {kind} instead of {wanted}."
                    )
        return found


def _first_output(node: NodeProto) -> str:
    return next((o for o in node.output if o), "")


def _pair(kind: TensorType) -> tuple[tuple[int, ...], str]:
    return kind.shape, kind.dtype


def _joined(fields: list[Value]) -> tuple[TensorType, ...]:
    return tuple(t for f in fields for t in f.types)


def constant_array(expr: Any) -> np.ndarray:
    """Return a Relax constant's values, without a copy where numpy has the type.

    They must not be written to.
    """
    try:
        return np.from_dlpack(expr.value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(expr.value.numpy())  # numpy knows bfloat16 only through ml_dtypes


def post_dfs(parameters: list[Value], outputs: list[Value]) -> Iterator[Value]:
    """Yield the parameters, then everything the outputs need.

    The arguments of a value come from left to right, then the value itself.
    """
    seen = set(map(id, parameters))
    yield from parameters
    for output in outputs:
        stack = [(output, 0)]
        while stack:
            value, place = stack.pop()
            if id(value) in seen:
                continue
            if place < len(value.inputs):
                stack.append((value, place + 1))
                stack.append((value.inputs[place], 0))
            else:
                seen.add(id(value))
                yield value
