"""Writing any sub-graph of the dataflow graph as ONNX, from its own Relax operators.

The slice (``onnx_slice``) keeps the user's nodes and is tried first; the writer serves what it
cannot cut: borders inside a decomposed ONNX node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from collage_engine.model.index_set import members
from collage_engine.model.onnx_slice import slice_model, value_info
from collage_engine.records.errors import ModelError, UnsupportedError
from collage_engine.records.graph import Node, TensorType
from collage_engine.records.numbering import NodeSet

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

Form = Callable[["Writer", Node, list[Any], list[str]], None]
"""(writer, node, names of its inputs, names of its outputs) → adds the ONNX nodes. A tuple
input is a list of names."""

_OLDEST_OPSET = 18


class Writer:
    """Collects the ONNX nodes and constants of one sub-graph."""

    def __init__(self, model: ImportedModel) -> None:
        self.model = model
        self.opset = _OLDEST_OPSET
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._count = 0
        self._constants: dict[tuple[Any, ...], str] = {}

    def fresh(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        output: str | list[str] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node; returns the name of its (first) output."""
        outputs = (
            [self.fresh()] if output is None else [output] if isinstance(output, str) else output
        )
        self.nodes.append(helper.make_node(op, list(inputs), outputs, **attributes))
        return outputs[0]

    def const(self, values: Any, dtype: Any = None) -> str:
        """A small constant; equal ones are shared."""
        array = np.asarray(values, dtype=dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"k{len(self._constants)}"
            self.weights.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, values: Iterable[int]) -> str:
        return self.const([int(v) for v in values], np.int64)

    def need(self, opset: int) -> None:
        self.opset = max(self.opset, opset)

    def types(self, node: Node) -> list[TensorType]:
        """Types of a node's inputs, tuples spread out."""
        found: list[TensorType] = []
        for source in node.inputs:
            found += self.model.graph.nodes[source].types
        return found


def numpy_type(dtype: str) -> np.dtype:
    """numpy's type for a record's; ``UnsupportedError`` when it has none."""
    try:
        return np.dtype(dtype)
    except TypeError:
        import ml_dtypes

        if hasattr(ml_dtypes, dtype):
            return np.dtype(getattr(ml_dtypes, dtype))
        raise UnsupportedError(f"element type {dtype} has no ONNX form") from None


def write_onnx(
    model: ImportedModel, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> ModelProto:
    """The sub-graph as ONNX. Graph inputs and outputs are ``v<index>``, in argument order.

    ``nodes`` must be closed. Raises ``UnsupportedError`` naming the operator without a form.
    """
    from collage_engine.model.onnx_forms import FORMS

    graph = model.graph
    writer = Writer(model)
    names: dict[int, Any] = {i: f"v{i}" for i in inputs}
    for index in members(nodes):
        node = graph.nodes[index]
        if index in names:
            continue
        if node.form == "constant":
            names[index] = f"v{index}"
            tensor = numpy_helper.from_array(model.constant(index), f"v{index}")
            writer.weights.append(tensor)
        elif node.form == "tuple":
            names[index] = [names[i] for i in node.inputs]
        elif node.form == "projection":
            names[index] = names[node.inputs[0]][node.field]
        elif node.form == "call":
            form = FORMS.get(node.op)
            if form is None:
                raise UnsupportedError(f"the operator {node.op} has no ONNX form")
            made = _output_names(model, node)
            form(writer, node, [names[i] for i in node.inputs], made)
            names[index] = made if node.is_tuple else made[0]
        else:
            raise ModelError(
                f"the sub-graph holds node {index} ({node.form}), which is no operator"
            )
    result = helper.make_graph(
        writer.nodes,
        "sub_graph",
        [value_info(f"v{i}", graph.nodes[i].type) for i in inputs],
        [value_info(f"v{i}", graph.nodes[i].type) for i in outputs],
        writer.weights,
    )
    return helper.make_model(
        result,
        opset_imports=[helper.make_opsetid("", writer.opset)],
        ir_version=max(model.onnx.ir_version, 8 if writer.opset < 19 else 9),
        producer_name="collage",
    )


def _output_names(model: ImportedModel, node: Node) -> list[str]:
    """A tuple's fields go by the index of their projection, where there is one."""
    if not node.is_tuple:
        return [f"v{node.index}"]
    names = [f"v{node.index}_{field}" for field in range(len(node.types))]
    for user in model.graph.users[node.index]:
        reader = model.graph.nodes[user]
        if reader.form == "projection":
            names[reader.field] = f"v{user}"
    return names


def to_onnx(
    model: ImportedModel, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> ModelProto:
    """The sub-graph as ONNX: a slice of the cleaned model where possible, else written anew."""
    try:
        return slice_model(model, inputs, outputs)
    except ModelError:
        return write_onnx(model, nodes, inputs, outputs)
