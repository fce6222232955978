"""Writing any sub-graph of the dataflow graph as ONNX, from its own Relax operators.

The slice (``onnx_slice``) keeps the user's nodes and is tried first; the writer serves what it
cannot cut: borders inside a decomposed ONNX node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onnx import ModelProto, NodeProto, helper, numpy_helper

from collage_engine.model.index_set import members
from collage_engine.model.onnx_builder import Writer
from collage_engine.model.onnx_forms import FORMS
from collage_engine.model.onnx_outer_values import outer_values, with_outer_values
from collage_engine.model.onnx_slice import slice_model
from collage_engine.model.onnx_types import value_info
from collage_engine.model.opaque import same_meaning
from collage_engine.records.errors import ModelError, UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeSet

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel


def write_onnx(
    model: ImportedModel, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> ModelProto:
    """The sub-graph as ONNX. Graph inputs and outputs are ``v<index>``, in argument order.

    ``nodes`` must be closed. Raises ``UnsupportedError`` naming the operator without a form.
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
            own = model.opaque_node(index)
            if own is not None:
                opaque.append(_as_it_was(own, given, made))
                writer.nodes.append(opaque[-1])
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


def _as_it_was(node: NodeProto, inputs: list[str], outputs: list[str]) -> NodeProto:
    """A copy of an opaque operator's node with other names for its values."""
    copy = NodeProto()
    copy.CopyFrom(node)
    outer = outer_values(node)
    given, made = iter(inputs), iter(outputs)
    copy.input[:] = [next(given) if name else "" for name in node.input]
    copy.output[:] = [next(made) if name else "" for name in node.output]
    renamed = dict(zip(outer, given, strict=True))
    del copy.attribute[:]
    copy.attribute.extend(with_outer_values(a, renamed) for a in node.attribute)
    return copy


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
