"""Refuses what the engine cannot handle in an ONNX graph, naming the node and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, TensorProto, ValueInfoProto

from collage_engine.model.draft import Op, node_name
from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.records.errors import ModelError

_RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}


_FORMS = {
    "sequence_type": "a sequence of what are no tensors",
    "optional_type": "an optional value",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
}
"""Words for an input or output that is neither a tensor nor a sequence of tensors, by its ONNX
type."""


def check_graph(model: ModelProto, path: str) -> None:
    """Checks what no later step could handle; no shapes are needed for it.

    Raises:
        ModelError: The graph holds such a thing; the text says what to do.
    """
    graph = model.graph
    if not graph.output:
        raise ModelError(f"{path} has no outputs: nothing to compute.")
    if graph.sparse_initializer:
        raise ModelError(
            f"{path}: the sparse tensor '{graph.sparse_initializer[0].values.name}' is not "
            "supported: store it densely."
        )
    for tensor in graph.initializer:
        _check_tensor(tensor, f"the tensor '{tensor.name}'", path)
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            _check_value(value, kind, path)
    _check_nodes(model, path)


def _check_tensor(tensor: TensorProto, what: str, path: str) -> None:
    kind = tensor.data_type
    if kind in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise ModelError(f"{path}: {what} holds complex numbers: not supported.")
    if not kind or kind not in TensorProto.DataType.values():
        raise ModelError(f"{path}: {what} has the unknown element type {kind}.")
    if any(extent < 0 for extent in tensor.dims):
        raise ModelError(f"{path}: {what} has a negative size in {list(tensor.dims)}.")


def _check_value(value: ValueInfoProto, kind: str, path: str) -> None:
    form = value.type.WhichOneof("value")
    if form == "sequence_type" and value.type.sequence_type.elem_type.HasField("tensor_type"):
        _check_element(value.type.sequence_type.elem_type.tensor_type.elem_type, value, kind, path)
        return
    if form in ("sequence_type", "optional_type", "map_type", "sparse_tensor_type"):
        word = _FORMS[form]
        raise ModelError(f"{path}: the {kind} '{value.name}' is {word}, not a tensor.")
    element = value.type.tensor_type.elem_type
    if kind == "input" and (form is None or not element):
        raise ModelError(f"{path}: the input '{value.name}' has no element type.")
    _check_element(element, value, kind, path)


def _check_element(element: int, value: ValueInfoProto, kind: str, path: str) -> None:
    if element in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise ModelError(f"{path}: the {kind} '{value.name}' holds complex numbers: not supported.")
    if element not in TensorProto.DataType.values():
        raise ModelError(
            f"{path}: the {kind} '{value.name}' has the unknown element type {element}."
        )


def _check_nodes(model: ModelProto, path: str) -> None:
    graph = model.graph
    local = {(f.domain, f.name) for f in model.functions}
    known = {i.name for i in graph.input} | {i.name for i in graph.initializer} | {""}
    made: set[str] = set()
    for node in graph.node:
        name, op = node_name(node), node.op_type
        plain = node.domain in ("", "ai.onnx")
        if plain and (node.domain, op) not in local:
            _check_operator(name, op, path)
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(f"{path}: the node '{name}' holds a sparse tensor: not supported.")
            if attribute.HasField("t"):
                _check_tensor(attribute.t, f"the node '{name}'", path)
        for value in (*node.input, *outer_values(node)):
            if value not in known:
                raise ModelError(
                    f"{path}: the node '{name}' ({op}) reads '{value}', which nothing before it "
                    "makes: the file is broken or its nodes are not sorted."
                )
        for value in node.output:
            if value in made:
                raise ModelError(f"{path}: the value '{value}' is made twice ('{name}').")
            if value:
                made.add(value)
                known.add(value)
    for output in graph.output:
        if output.name not in known:
            raise ModelError(f"{path}: nothing makes the output '{output.name}'.")


def _check_operator(name: str, op: str, path: str) -> None:
    """Refuse what no later step could handle, by the operator alone."""
    if op in _RANDOM:
        raise ModelError(
            f"{path}: the node '{name}' ({op}) draws random numbers: its results cannot be "
            "compared, so it is not supported."
        )


def check_operators(ops: Iterable[Op], path: str) -> None:
    """Check in the same way operators that came out of a branch or a definition."""
    for op in ops:
        if not op.domain:
            _check_operator(op.name, op.type, path)
