"""Writes any sub-graph of the dataflow graph as ONNX, from its own Relax operators.

The slice (``onnx_slice``) keeps the user's nodes and is tried first; the writer serves what it
cannot cut: borders inside a decomposed ONNX node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from collage_engine.model.index_set import members
from collage_engine.model.onnx_builder import Writer
from collage_engine.model.onnx_forms import FORMS
from collage_engine.model.onnx_outer_values import outer_values, with_outer_values
from collage_engine.model.onnx_slice import slice_model
from collage_engine.model.onnx_types import value_info
from collage_engine.model.opaque import OpaqueOperator, same_meaning
from collage_engine.records.errors import ModelError, UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeSet

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


def write_onnx(
    model: ImportedModel, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> ModelProto:
    """Writes a sub-graph as ONNX from its own Relax operators.

    Args:
        model: The model.
        nodes: A closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.

    Returns:
        A model whose inputs and outputs are called ``v<index>``.

    Raises:
        UnsupportedError: An operator has no ONNX form; the text names it.
    """
    graph = model.graph
    writer = Writer(model)
    names: dict[int, Any] = {i: f"v{i}" for i in inputs}
    opaque: list[NodeProto] = []
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
            made = _output_names(model, node)
            given = [names[i] for i in node.inputs]
            own = model.opaque_operator(index)
            if own is not None:
                as_it_was, held = _as_it_was(own, f"n{index}", given, made)
                opaque += as_it_was
                writer.nodes.extend(as_it_was)
                writer.weights.extend(held)
            elif form is not None:
                form(writer, node, given, made)
            else:
                raise UnsupportedError(f"the operator {node.op} has no ONNX form")
            names[index] = made if node.is_tuple else made[0]
        else:
            raise ModelError(
                f"the sub-graph holds node {index} ({node.form}), which is no operator"
            )
    standard = next((o.version for o in model.onnx.opset_import if not o.domain), 1)
    if not same_meaning(opaque, standard, writer.opset):
        raise UnsupportedError(
            f"an operator of the sub-graph means something else in operator set {writer.opset} "
            f"than in the model's, {standard}"
        )
    domains = {node.domain for node in opaque} - {"", "ai.onnx"}
    result = helper.make_graph(
        writer.nodes,
        "sub_graph",
        [value_info(f"v{i}", graph.nodes[i].type) for i in inputs],
        [value_info(f"v{i}", graph.nodes[i].type) for i in outputs],
        writer.weights,
    )
    return helper.make_model(
        result,
        opset_imports=[
            helper.make_opsetid("", writer.opset),
            *(o for o in model.onnx.opset_import if o.domain in domains),
        ],
        ir_version=max(model.onnx.ir_version, 8 if writer.opset < 19 else 9),
        producer_name="collage",
    )


def _as_it_was(
    operator: OpaqueOperator, prefix: str, inputs: list[str], outputs: list[str]
) -> tuple[list[NodeProto], list[TensorProto]]:
    """Copies an opaque operator's nodes and constants, with other names for their values.

    Args:
        operator: The operator.
        prefix: What the names of values inside begin with.
        inputs: Names of what it is given.
        outputs: Names of what it makes.
    """
    names = {
        **dict(zip(operator.inputs, inputs, strict=True)),
        **dict(zip(operator.outputs, outputs, strict=True)),
    }

    def renamed(value: str) -> str:
        return names.get(value, f"{prefix}_{value}") if value else ""

    copies, held = [], []
    for node in operator.nodes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = map(renamed, node.input)
        copy.output[:] = map(renamed, node.output)
        outer = {value: renamed(value) for value in outer_values(node)}
        del copy.attribute[:]
        copy.attribute.extend(with_outer_values(a, outer) for a in node.attribute)
        copies.append(copy)
    for tensor in operator.constants:
        constant = TensorProto()
        constant.CopyFrom(tensor)
        constant.name = renamed(tensor.name)
        held.append(constant)
    return copies, held


def _output_names(model: ImportedModel, node: Node) -> list[str]:
    """Returns the ONNX names of a node's values.

    A tuple's fields go by the index of their projection, where there is one.
    """
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
    """Returns a sub-graph as ONNX: a slice of the cleaned model, else written anew.

    Args:
        model: The model.
        nodes: A closed set of nodes.
        inputs: Node indices of the inputs, in argument order.
        outputs: Node indices of the outputs, in argument order.

    Raises:
        UnsupportedError: An operator has no ONNX form; the text names it.
    """
    try:
        return slice_model(model, inputs, outputs)
    except ModelError:
        return write_onnx(model, nodes, inputs, outputs)
