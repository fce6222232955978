"""Describes opaque operators: ONNX operators that Relax has no form for.

They are operators of the dataflow graph like any other, with their ONNX type, attributes and
sub-graphs. Only a toolchain that is given ONNX can run them; in Relax such an operator is a call
to an external function that nobody provides, so that its place and its types are known.

An opaque operator may stand for several ONNX nodes: those between which values pass that cannot
cross the border of a partition (``model.enclosures``).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from onnx import AttributeProto, NodeProto, TensorProto, defs, helper

from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.records.operators import PREFIX
from collage_engine.support.text import NAMED


@dataclass(frozen=True)
class OpaqueOperator:
    """The ONNX nodes that an opaque operator stands for, and the values at its border."""

    nodes: tuple[NodeProto, ...]
    """The ONNX nodes, in an order in which they can run."""
    inputs: tuple[str, ...]
    """The values that it is given, in the order of the call's arguments."""
    outputs: tuple[str, ...]
    """The values that it makes, in the order of the call's results."""
    constants: tuple[TensorProto, ...] = ()
    """Weights that only it can hold, as Relax has no tensors of their element type."""

    @property
    def name(self) -> str:
        """Return its name in the dataflow graph: ``onnx:LSTM``, ``onnx:com.microsoft.Inverse``."""
        types = [type_name(node) for node in self.nodes]
        more = len(types) - NAMED
        shown = types if more <= 1 else [*types[:NAMED], f"{more} more"]
        return PREFIX + "+".join(shown)

    def attributes(self, opsets: Mapping[str, int]) -> dict[str, Any]:
        """Return what decides, beside the types, what it computes, as JSON values.

        Args:
            opsets: Version of the operator set by domain; the standard's is ``""``.
        """
        if len(self.nodes) == 1 and not self.constants:
            node = self.nodes[0]
            return attributes_of_node(node, opsets.get(node.domain, 1))
        number: dict[str, int] = {"": -1}
        for name in (*self.inputs, *(tensor.name for tensor in self.constants)):
            number.setdefault(name, len(number))
        parts = []
        for node in self.nodes:
            for name in (*node.output, *outer_values(node)):
                number.setdefault(name, len(number))
            parts.append(
                {
                    "type": type_name(node),
                    "reads": [number.get(v, -1) for v in (*node.input, *outer_values(node))],
                    "makes": [number[v] for v in node.output],
                    **attributes_of_node(node, opsets.get(node.domain, 1)),
                }
            )
        return {
            "nodes": parts,
            "takes": [number[name] for name in self.inputs],
            "gives": [number[name] for name in self.outputs],
            "constants": [_hash(tensor) for tensor in self.constants],
        }


def operator_of(
    nodes: Sequence[NodeProto],
    read: Container[str],
    held: Mapping[str, TensorProto],
) -> OpaqueOperator:
    """Return the opaque operator that some nodes become.

    Args:
        nodes: In an order in which they can run.
        read: Values that other nodes, or the model's outputs, read.
        held: Constants that Relax has no tensors for, by name.
    """
    made = {value for node in nodes for value in node.output if value}
    reads = [v for node in nodes for v in (*node.input, *outer_values(node)) if v and v not in made]
    if len(nodes) > 1:
        reads = list(dict.fromkeys(reads))
        outputs = tuple(v for node in nodes for v in node.output if v in read)
    else:
        outputs = tuple(v for v in nodes[0].output if v)
    return OpaqueOperator(
        tuple(nodes),
        tuple(v for v in reads if v not in held),
        outputs,
        tuple(held[v] for v in dict.fromkeys(reads) if v in held),
    )


def _hash(tensor: TensorProto) -> str:
    copy = deepcopy(tensor)
    copy.name = ""
    return hashlib.sha256(copy.SerializeToString(deterministic=True)).hexdigest()


def type_name(node: NodeProto) -> str:
    """Return a node's type, with its domain where it is not the standard's."""
    domain = f"{node.domain}." if node.domain else ""
    return f"{domain}{node.op_type}"


@functools.cache
def _standard_operators() -> frozenset[str]:
    schemas = defs.get_all_schemas_with_history()
    return frozenset(schema.name for schema in schemas if not schema.domain)


def is_standard(node: NodeProto) -> bool:
    """Tell whether a node's operator is one of the standard's, in any of its versions.

    Runtimes have operators of their own in the standard's domain, too, such as ONNX Runtime's
    SimplifiedLayerNormalization. They are like those of any other domain.
    """
    return not node.domain and node.op_type in _standard_operators()


def attributes_of_node(node: NodeProto, opset: int) -> dict[str, Any]:
    """Return what decides, beside the types, what a node computes, as JSON values.

    Args:
        node: The node of the cleaned model.
        opset: Version of the node's operator set in the model.

    Returns:
        The attributes by name, tensors and sub-graphs by the hash of their bytes. ``version`` is
        the operator set since which the operator means what it does there, if it is a standard
        one; ``inputs`` and ``outputs`` have a 0 for each optional value that is left out.
    """
    attributes = {a.name: _value(a) for a in node.attribute}
    return {
        "attributes": dict(sorted(attributes.items())),
        "version": _version(node, opset),
        "inputs": [int(bool(name)) for name in node.input],
        "outputs": [int(bool(name)) for name in node.output],
    }


def _version(node: NodeProto, opset: int) -> int:
    """Return the operator set since which an operator means what it does in ``opset``."""
    if not is_standard(node):
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
