"""Opaque operators: ONNX operators that Relax has no form for.

They are operators of the dataflow graph like any other, with their ONNX type, attributes and
sub-graphs. Only a toolchain that is given ONNX can run them; in Relax such an operator is a call
to an external function that nobody provides, so that its place and its types are known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, defs, helper

from collage_engine.model.onnx_types import dtype_name
from collage_engine.records.graph import TensorType

PREFIX = "onnx:"
"""How the name of an opaque operator begins; Relax's own names have no colon of this kind."""


def is_opaque(op: str) -> bool:
    """Whether a node's operator is an opaque one."""
    return op.startswith(PREFIX)


def opaque_name(node: NodeProto) -> str:
    """The operator's name in the dataflow graph: ``onnx:LSTM``, ``onnx:com.microsoft.Inverse``."""
    domain = f"{node.domain}." if node.domain not in ("", "ai.onnx") else ""
    return f"{PREFIX}{domain}{node.op_type}"


def title(op: str) -> str:
    """An opaque operator's name for sentences: ``LSTM``, ``com.microsoft.Inverse``."""
    return op.removeprefix(PREFIX)


def attributes_of_node(node: NodeProto, opset: int) -> dict[str, Any]:
    """What decides, beside the types, what a node computes, as JSON values.

    Args:
        node: The node of the cleaned model.
        opset: Version of the node's operator set in the model.

    Returns:
        The attributes by name, tensors and sub-graphs by the hash of their bytes. ``version`` is
        the operator set since which the operator means what it does there, if it is a standard
        one; ``inputs`` and ``outputs`` have a 0 for each optional value that is left out.
    """
    found = {a.name: _value(a) for a in node.attribute}
    return {
        "attributes": dict(sorted(found.items())),
        "version": _version(node, opset),
        "inputs": [int(bool(name)) for name in node.input],
        "outputs": [int(bool(name)) for name in node.output],
    }


def _version(node: NodeProto, opset: int) -> int:
    """The operator set since which an operator means what it does in ``opset``."""
    if node.domain not in ("", "ai.onnx"):
        return opset
    try:
        return int(defs.get_schema(node.op_type, opset, "").since_version)
    except defs.SchemaError:
        return opset


def _value(attribute: AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, Sequence) and all(isinstance(v, (int, float)) for v in value):
        return list(value)
    if isinstance(value, Sequence) and all(isinstance(v, bytes) for v in value):
        return [v.decode("utf-8", "replace") for v in value]
    data = attribute.SerializeToString(deterministic=True)
    return hashlib.sha256(data).hexdigest()


def result_types(
    node: NodeProto, types: Mapping[str, tuple[int, tuple[int, ...] | None]]
) -> tuple[list[TensorType], str]:
    """Types of the outputs that a node has, and the first output whose type is not known.

    Args:
        node: The node.
        types: Element type (0: unknown) and shape (None: unknown) of values by name.
    """
    found = []
    for name in filter(None, node.output):
        element, shape = types.get(name, (0, None))
        if shape is None or element in (TensorProto.UNDEFINED, TensorProto.STRING):
            return [], name
        found.append(TensorType(shape, dtype_name(element)))
    return found, ""


def same_meaning(nodes: Iterable[NodeProto], written_for: int, wanted: int) -> bool:
    """Whether standard operators mean the same in two operator sets of the standard.

    Operators of other domains have a version of their own and always do.
    """
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        if _version(node, written_for) != _version(node, wanted):
            return False
    return True
