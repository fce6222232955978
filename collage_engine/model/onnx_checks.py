"""Refuses what the engine cannot handle in an ONNX graph, naming the node and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from onnx import ModelProto, TensorProto, ValueInfoProto

from collage_engine.model.draft import Op, node_name, op_from
from collage_engine.model.onnx_outer_values import branches, with_branches
from collage_engine.support.errors import ModelError

RANDOM = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
"""Operators whose results differ from call to call."""

_RECURRENT = {"LSTM", "GRU", "RNN"}
_FORMS = {
    "sequence_type": "a sequence of what are no tensors",
    "optional_type": "an optional value",
    "map_type": "a map",
    "sparse_tensor_type": "a sparse tensor",
}
"""Words for an input or output that is neither a tensor nor a sequence of tensors, by its ONNX
type."""


def check_graph(model: ModelProto, path: str) -> None:
    """Check for what the standard allows and no later step could handle.

    Raises:
        ModelError: The graph holds such a thing; the text says what to do.
    """
    graph = model.graph
    if not graph.output:
        raise ModelError(f"{path} has no outputs: nothing to compute.")
    for tensor in graph.initializer:
        _check_element(tensor.data_type, f"the tensor '{tensor.name}'", path)
    for kind, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            _check_value(value, kind, path)
    made = {value for node in graph.node for value in node.output}
    known = made | {value.name for value in (*graph.input, *graph.initializer)}
    for output in graph.output:
        if output.name not in known:
            raise ModelError(f"{path}: nothing makes the output '{output.name}'.")
    local = {(f.domain, f.name) for f in model.functions}
    nodes = [node for node in graph.node if (node.domain, node.op_type) not in local]
    check_operators(map(op_from, nodes), path)
    every = list(with_branches(graph.node))
    if any(part.sparse_initializer for part in (graph, *branches(every))):
        raise ModelError(f"{path}: it holds sparse weights: write them as dense ones.")
    for node in every:
        for attribute in node.attribute:
            if attribute.HasField("sparse_tensor") or attribute.sparse_tensors:
                raise ModelError(
                    f"{path}: the node '{node_name(node)}' holds a sparse tensor: write it as a "
                    "dense one."
                )
            if attribute.HasField("t"):
                _check_element(attribute.t.data_type, f"the node '{node_name(node)}'", path)


def _check_value(value: ValueInfoProto, kind: str, path: str) -> None:
    what = f"the {kind} '{value.name}'"
    form = value.type.WhichOneof("value")
    if form == "sequence_type" and value.type.sequence_type.elem_type.HasField("tensor_type"):
        element = value.type.sequence_type.elem_type.tensor_type.elem_type
    elif form in _FORMS:
        raise ModelError(f"{path}: {what} is {_FORMS[form]}, not a tensor.")
    else:
        element = value.type.tensor_type.elem_type
    if element or kind == "input":
        _check_element(element, what, path)


def _check_element(element: int, what: str, path: str) -> None:
    if element in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        raise ModelError(f"{path}: {what} holds complex numbers: not supported.")
    if not element or element not in TensorProto.DataType.values():
        raise ModelError(f"{path}: {what} has the unknown element type {element}.")


def check_operators(ops: Iterable[Op], path: str) -> None:
    """Refuse what no later step could handle, by each operator alone.

    Raises:
        ModelError: An operator is random, a recurrent layer has its batch first, or a normalization
            has a mean for each value.
    """
    for op in ops:
        if op.domain:
            continue
        if op.type in RANDOM:
            raise ModelError(
                f"{path}: the node '{op.name}' ({op.type}) draws random numbers: its results "
                "cannot be compared, so it is not supported."
            )
        if op.type == "BatchNormalization" and not op.attribute("spatial", 1):
            raise ModelError(
                f"{path}: the node '{op.name}' (BatchNormalization) has a mean for each value "
                "(spatial=0), which is not supported: export with operator set 9 or newer."
            )
        if op.type in _RECURRENT and op.attribute("layout", 0):
            raise ModelError(
                f"{path}: the node '{op.name}' ({op.type}) has its batch first (layout 1), which "
                "no runtime computes: export it with layout 0."
            )
