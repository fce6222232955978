"""Turns the imported Relax function into calls and the tensors between them.

Aliases, tuples and their fields are followed to the tensors that they stand for, calls on constants
folded, calls that do nothing dropped, dead ones left behind; the calls that the outputs need come
in post-DFS order, as TVM's ``IndexedGraph`` has them.
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
from collage_engine.model.frontend import Frontend
from collage_engine.model.onnx_types import element_type
from collage_engine.records.graph import TensorType
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
class Tensor:
    """A value of the model before it has a number in the graph."""

    type: TensorType
    expr: Any = None
    """The raw Relax expression of a parameter (its variable) or constant."""
    call: RelaxCall | None = None
    """The call that makes it; None of a parameter or constant."""
    constant: bool = False
    onnx_value: str | None = None
    name: str = ""


@dataclass(eq=False)
class RelaxCall:
    """An operator of the model before it has a number in the graph."""

    expr: Any
    """The raw Relax call."""
    op: str
    inputs: list[Tensor]
    types: tuple[TensorType, ...]
    attributes: dict[str, Any]
    owner: str
    """First output of the (cleaned) ONNX node that it came from."""
    results: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.results = [Tensor(kind, call=self) for kind in self.types]


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


class Resolver:
    """The walk over the raw bindings, which knows the tensors behind every expression."""

    def __init__(self, imported: Frontend, path: str) -> None:
        self._path = path
        self._imported = imported
        self.operators = imported.operators
        module = imported.run()
        function = module["main"]
        self.prim_funcs = {
            g: f for g, f in module.functions_items() if isinstance(f, tvm.tirx.PrimFunc)
        }
        self.functions = {g.name_hint: f for g, f in self.prim_funcs.items()}
        self._known: dict[Any, list[Tensor]] = {}
        """By expression the tensors that it stands for; one, where it is no tuple."""
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
        self.outputs: list[Tensor] = []
        for expr in fields:
            try:
                self.outputs += self.tensors(expr)
            except NotStatic as error:
                raise OpenSize(path, str(error)) from None
        self._name_values()

    def tensors(self, expr: Any) -> list[Tensor]:
        """Return what an argument (variable, constant, tuple of them) stands for."""
        if expr in self._known:
            return self._known[expr]
        if expr in self._open:
            raise NotStatic(self._open[expr])
        if isinstance(expr, GenericConst):
            self._known[expr] = [Tensor(tensor_type(expr.ty), expr, constant=True)]
        elif is_tensor_tuple(expr):
            self._known[expr] = [tensor for f in expr.fields for tensor in self.tensors(f)]
        else:
            raise NotStatic
        return self._known[expr]

    def _parameter(self, variable: Any) -> Tensor:
        kind = tensor_type(variable.ty)
        if variable in self._imported.texts:
            kind = TensorType(kind.shape[:-1], "string")
        tensor = Tensor(kind, variable)
        self._known[variable] = [tensor]
        return tensor

    def _owners(self, bindings: list[Any]) -> list[str]:
        """Return, for each binding, the ONNX node for which it was emitted.

        Bindings come in node order, so those up to a node's own result and after the result of the
        node before belong to it; helpers a converter emits on the way have no other mark.
        """
        position = {b.var: i for i, b in enumerate(bindings)}
        owners = [""] * len(bindings)
        start = 0
        for node, variables in self._imported.bounds:
            ends = [position[v] for v in variables if v in position]
            end = max(ends, default=-1) + 1
            if end > start:
                owners[start:end] = [_first_output(node)] * (end - start)
                start = end
        return owners

    def _resolve(self, expr: Any, owner: str) -> list[Tensor]:
        if isinstance(expr, Call):
            return self._call(expr, owner)
        if isinstance(expr, relax.TupleGetItem):
            return [self.tensors(expr.tuple_value)[int(expr.index)]]
        return self.tensors(expr)

    def _call(self, call: Call, owner: str) -> list[Tensor]:
        op = operator_name(call)
        inputs = [tensor for a in tensor_arguments(call) for tensor in self.tensors(a)]
        if is_opaque_call(call):
            types = self._imported.opaque_types[owner]
            attributes = self._imported.operators[owner].attributes(self._imported.opsets)
            return RelaxCall(call, op, inputs, types, attributes, owner).results
        is_tuple = isinstance(call.ty, relax.TupleType)
        types = tuple(map(tensor_type, call.ty.fields if is_tuple else [call.ty]))
        attributes = attributes_of(call, self.functions)
        if inputs and not is_tuple:
            first = inputs[0]
            if does_nothing(op, attributes, first.type, types[0]):
                return [first]
            if all(input_.constant for input_ in inputs):
                array = fold(op, attributes, [constant_array(input_.expr) for input_ in inputs])
                if array is not None:
                    return [self._constant(array, types[0], first)]
        return RelaxCall(call, op, inputs, types, attributes, owner).results

    def _constant(self, array: np.ndarray, kind: TensorType, source: Tensor) -> Tensor:
        made = relax.const(tvm.runtime.tensor(np.ascontiguousarray(array).reshape(kind.shape)))
        tensor = Tensor(kind, made, constant=True, name=source.name)
        if str(array.dtype) != kind.dtype:
            raise AssertionError(f"folding gave {array.dtype} for {kind}")
        self._known[made] = [tensor]
        return tensor

    def _name_values(self) -> None:
        """Let each tensor know the (first) ONNX value that it is."""
        values = self._imported.values
        made = dict.fromkeys(o for node, _ in self._imported.bounds for o in node.output)
        for name in (*(n for n in values if n not in made), *made):
            tensor = self._tensor(name)
            if tensor is not None:
                tensor.onnx_value = tensor.onnx_value or name
                tensor.name = tensor.name or name

    def _tensor(self, name: str) -> Tensor | None:
        """Return the tensor that an ONNX value is; None where it is unknown, or is several."""
        tensors = self._known.get(self._imported.values.get(name), [])
        return tensors[0] if len(tensors) == 1 else None

    def wrong_types(self, types: dict[str, tuple[int, tuple[int, ...] | None]]) -> dict[str, str]:
        """Find nodes whose converter gives another type than ONNX infers.

        Returns:
            The sentence to say of each, by the node's first output.
        """
        wrong: dict[str, str] = {}
        for node, _ in self._imported.bounds:
            for name in node.output:
                tensor = self._tensor(name)
                if tensor is None:
                    continue
                element, shape = types.get(name, (0, None))
                kind = tensor.type
                if (element and element != element_type(kind.dtype)) or (
                    shape is not None and shape != kind.shape
                ):
                    inferred = f"{TensorProto.DataType.Name(element).lower()} {shape}"
                    wrong[_first_output(node)] = (
                        f"{self._path}: the node '{node_name(node)}' ({node.op_type}) cannot be "
                        f"imported into Relax: it would give {kind} instead of {inferred}."
                    )
        return wrong


def _first_output(node: NodeProto) -> str:
    return next((o for o in node.output if o), "")


def constant_array(expr: Any) -> np.ndarray:
    """Return a Relax constant's values, without a copy where numpy has the type.

    They must not be written to.
    """
    try:
        return np.from_dlpack(expr.value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return np.asarray(expr.value.numpy())  # numpy knows bfloat16 only through ml_dtypes


def post_dfs(outputs: list[Tensor]) -> Iterator[RelaxCall]:
    """Yield the calls that the outputs need, each after those whose results it reads.

    These come in the order of its arguments.
    """
    seen: set[int] = set()
    for output in outputs:
        stack = [(output.call, 0)]
        while stack:
            call, number = stack.pop()
            if call is None or id(call) in seen:
                continue
            if number < len(call.inputs):
                stack.append((call, number + 1))
                stack.append((call.inputs[number].call, 0))
            else:
                seen.add(id(call))
                yield call
