"""Runs TVM's ONNX importer and remembers the Relax variable of every ONNX value.

In TVM 0.27 converters return unbound calls, print to standard output when they fail and
lower some operators through TE although a Relax operator exists; ``converters`` has ours.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import onnx
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from collage_engine.model.converters import CONVERTERS, USABLE_OUTPUTS, OnnxNode, shape_of
from collage_engine.model.dimensions import open_inputs
from collage_engine.model.draft import node_name
from collage_engine.model.enclosures import AT_BORDER
from collage_engine.model.onnx_external import is_mapped
from collage_engine.model.onnx_file import tensor_array
from collage_engine.model.onnx_outer_values import outer_values
from collage_engine.model.onnx_types import dtype_name
from collage_engine.model.opaque import OpaqueOperator, is_standard, operator_of
from collage_engine.records.graph import TEXT_BYTES, TensorType
from collage_engine.support.errors import ModelError, short_reason

OTHER_DOMAINS = {
    "com.microsoft": {"BiasGelu", "EmbedLayerNormalization", "FastGelu", "SkipLayerNormalization"}
}
"""Operators outside of the standard whose converters TVM has. It goes by the type alone, so that
any other operator with the name of a standard one would be taken for that."""


class UnknownType(ModelError):
    """A node can neither be converted nor stay as it is, for want of a result's type."""

    def __init__(self, sentence: str, value: str, node: onnx.NodeProto) -> None:
        """Keep the sentence, the result ``value`` without a type, and the node that makes it."""
        super().__init__(sentence)
        self.value = value
        self.node = node


@dataclass(frozen=True)
class OpaqueParts:
    """The nodes that are to become opaque operators, and what is known of their values."""

    nodes: Collection[str] = ()
    """First outputs of nodes that are not to be converted."""
    enclosures: Sequence[Sequence[onnx.NodeProto]] = ()
    """Nodes that become one operator; they follow each other in the model."""
    held: Mapping[str, onnx.TensorProto] = field(default_factory=dict)
    """Constants that Relax has no tensors for, by name."""
    open_types: Mapping[str, TensorType] = field(default_factory=dict)
    """Types of values whose size depends on the data."""


class Frontend(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no types.
    """The importer of one cleaned model; its messages name the node that fails."""

    def __init__(
        self,
        model: onnx.ModelProto,
        path: str,
        types: Mapping[str, tuple[int, tuple[int, ...] | None]],
        opaque: OpaqueParts | None = None,
    ) -> None:
        """Prepare the import.

        Args:
            model: The cleaned model.
            path: Its file, for messages.
            types: Element type and shape of its values, as far as they are known.
            opaque: What is to become opaque operators.
        """
        # TVM itself takes a size of 0 for one that is not known.
        shapes = {
            i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input
        }
        texts = _text_inputs(model)
        shapes = {n: [*s, TEXT_BYTES] if n in texts else s for n, s in shapes.items()}
        element = dict.fromkeys(texts, "uint8") if texts else "float32"
        super().__init__(shapes, element, keep_params_in_input=False, sanitize=True)
        self._model = model
        self._path = path
        self._types = types
        self._opaque = opaque or OpaqueParts()
        self.opsets = {o.domain: o.version for o in reversed(model.opset_import)}
        """The version of each operator set, by its domain; the standard's is ``""``."""
        self.operators: dict[str, OpaqueOperator] = {}
        """The opaque operators, each by the first value that it makes."""
        self.opaque_types: dict[str, tuple[TensorType, ...]] = {}
        """The types of what an opaque operator makes, by the first value of it."""
        self.bounds: list[tuple[onnx.NodeProto, list[Any]]] = []
        """Every ONNX node, in order, with the variables of its results."""
        self._inside = False
        self._readers = Counter(
            v for n in model.graph.node for v in {*n.input, *outer_values(n)} if v
        )
        self._readers.update(o.name for o in model.graph.output)

    @property
    def values(self) -> dict[str, Any]:
        """Return the Relax variable or constant of each ONNX value, by the value's name."""
        return cast("dict[str, Any]", self._nodes)

    @property
    def texts(self) -> set[Any]:
        """Return the Relax parameters of the inputs that hold texts."""
        return {self._nodes[name] for name in _text_inputs(self._model)}

    def run(self) -> tvm.IRModule:
        """Import the model.

        Returns:
            The Relax module as TVM imports it.

        Raises:
            ModelError: Something cannot be imported; the text names it.
        """
        try:
            return self.from_onnx(self._model.graph, self.opsets.get("", 1))
        except Exception as error:
            if self._inside:
                # An open block makes the builder complain on standard error when it dies.
                self.bb._end_block()
            if isinstance(error, ModelError):
                raise
            raise ModelError(
                f"{self._path} cannot be imported into Relax: {short_reason(error)}"
            ) from error

    def _sanitize_name(self, name: str) -> str:
        word = re.sub(r"\W", "_", name) or "input"
        if not (word[0].isalpha() or word[0] == "_"):
            word = f"input_{word}"
        return str(self._name_supply.fresh_name(word))

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        array = tensor_array(tensor_proto, f"'{tensor_proto.name}'")
        if is_mapped(tensor_proto) and tensor_proto.data_type != onnx.TensorProto.BFLOAT16:
            return tvm.runtime.from_dlpack(array)  # a view: the data stays in its file
        return tvm.runtime.tensor(array)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing, unlike TVM's own: what has no converter becomes an opaque operator."""

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.name not in self._opaque.held:
                self._nodes[tensor.name] = relax.const(self._parse_array(tensor))

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._inside = True
        enclosed = {id(enclosure[0]): enclosure for enclosure in self._opaque.enclosures}
        members = {id(node) for enclosure in self._opaque.enclosures for node in enclosure}
        for node in graph.node:
            if id(node) in enclosed:
                operator = operator_of(
                    enclosed[id(node)], self._read_outside(enclosed[id(node)]), self._opaque.held
                )
                self._add(_as_one_node(operator), self._opaque_call(operator, ""))
            elif id(node) not in members:
                self._add(node, self._results(node))

    def _add(self, node: onnx.NodeProto, results: list[Any]) -> None:
        for name, value in zip(node.output, results, strict=False):
            if name and value is not None:
                self._nodes[name] = value
        self.bounds.append((node, [r for r in results if isinstance(r, relax.Var)]))

    def _read_outside(self, nodes: Sequence[onnx.NodeProto]) -> set[str]:
        """Return values that are read by other nodes than these, or leave the model."""
        inside = Counter(v for n in nodes for v in {*n.input, *outer_values(n)} if v)
        return {value for value, count in self._readers.items() if count > inside[value]}

    def _results(self, node: onnx.NodeProto) -> list[Any]:
        """Return the results of one node in the order of its outputs; None for one left out."""
        first = next((o for o in node.output if o), "")
        alone = operator_of([node], (), self._opaque.held)
        if first in self._opaque.nodes or alone.constants or not self._has_converter(node):
            return self._opaque_call(alone, "Relax has no such operator")
        try:
            results = self._convert(node)
        except Exception as error:  # converters raise whatever their author chose
            return self._opaque_call(alone, short_reason(error))
        usable = min(len(results), USABLE_OUTPUTS.get(node.op_type, len(results)))
        if any(name in self._readers for name in node.output[usable:]):
            return self._opaque_call(alone, f"only its first {usable} outputs can be imported")
        return results[:usable]

    def _has_converter(self, node: onnx.NodeProto) -> bool:
        """Return whether ours or TVM's converters know the operator."""
        if not is_standard(node):
            return node.op_type in OTHER_DOMAINS.get(node.domain, ())
        # TVM's Attention is the one of com.microsoft.
        converters = onnx_frontend._get_convert_map()
        differs = node.op_type == "Attention" or self._reduces_nothing(node)
        return node.op_type in CONVERTERS or (node.op_type in converters and not differs)

    def _reduces_nothing(self, node: onnx.NodeProto) -> bool:
        """Return whether a node reduces over no axes; it squares, for example, all the same.

        TVM's converters leave that out (ONNX, ``noop_with_empty_axes`` of ReduceSum: "will still
        perform the non-reduction steps as needed").
        """
        if not any(a.name == "noop_with_empty_axes" and a.i for a in node.attribute):
            return False
        axes = node.input[1] if len(node.input) > 1 else ""
        return not axes or shape_of(self._nodes[axes]) == (0,)

    def _opaque_call(self, operator: OpaqueOperator, reason: str) -> list[Any]:
        """Return the operator as a call that only a toolchain which is given ONNX can run.

        Returns:
            Its results in the order of its only node's outputs, None for one that is left out; of
            several nodes: in the order of its own outputs.

        Raises:
            UnknownType: The type of a result is not known.
        """
        types = tuple(self._type_of(name, operator, reason) for name in operator.outputs)
        # A size that is not known has a place in Relax only as a number; the graph has the type.
        kinds = [
            relax.TensorType([max(extent, 1) for extent in kind.shape], kind.dtype)
            if kind.is_open
            else relax.TensorType(kind.shape, kind.dtype)
            for kind in (each.stored for each in types)
        ]
        given = [self._nodes[i] for i in operator.inputs]
        call = relax.call_dps_packed(
            operator.name, relax.Tuple(given), kinds[0] if len(kinds) == 1 else kinds
        )
        whole = self.bb.emit(call)
        fields = (
            [whole]
            if len(kinds) == 1
            else [self.bb.emit(relax.TupleGetItem(whole, i)) for i in range(len(kinds))]
        )
        self.operators[operator.outputs[0]] = operator
        self.opaque_types[operator.outputs[0]] = types
        by_output = dict(zip(operator.outputs, fields, strict=True))
        nodes = operator.nodes
        names = nodes[0].output if len(nodes) == 1 else operator.outputs
        return [by_output.get(name) for name in names]

    def _type_of(self, value: str, operator: OpaqueOperator, reason: str) -> TensorType:
        """Return the type of what an opaque operator makes; raises ``UnknownType``."""
        if value in self._opaque.open_types:
            return self._opaque.open_types[value]
        element, shape = self._types.get(value, (0, None))
        if shape is not None and element in AT_BORDER:
            return TensorType(shape, dtype_name(element))
        node = next(n for n in operator.nodes if value in n.output)
        domain = f" of {node.domain}" if node.domain else ""
        why = f" ({reason.rstrip('.')})" if reason else ""
        raise UnknownType(
            f"{self._path}: the operator {node.op_type}{domain} (node '{node_name(node)}') "
            f"cannot be imported into Relax{why}, and the type of its result '{value}' is not "
            "known, which an operator for ONNX runtimes alone needs",
            value,
            node,
        )

    def _convert(self, node: onnx.NodeProto) -> list[Any]:
        """Return the results of one node, each a variable or a constant."""
        attributes = self._parse_attr(node.attribute)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        inputs = onnx_frontend.onnx_input()
        inputs.extend(self._nodes[i] if i else None for i in node.input)
        own = CONVERTERS.get(node.op_type)
        read = OnnxNode(self.bb, inputs, attributes, self.opset)
        result = own(read) if own else None
        if result is None:
            table = onnx_frontend._get_convert_map()
            convert = table[node.op_type].get_converter(self.opset)
            result = convert(self.bb, inputs, attributes, [self._nodes, self._params])
        if isinstance(result, relax.Tuple):
            return [self._bind(f) for f in result.fields]
        bound = self._bind(result)
        if isinstance(bound.ty, relax.TupleType):
            return [self.bb.emit(relax.TupleGetItem(bound, i)) for i in range(len(bound.ty.fields))]
        return [bound]

    def _bind(self, value: Any) -> Any:
        if isinstance(value, (relax.Var, GenericConst)):
            return value
        if isinstance(value, (Call, relax.TupleGetItem)):
            bound = self.bb.emit(value)
            if isinstance(bound.ty, (relax.TensorType, relax.TupleType)):
                return bound
        if isinstance(value, relax.ShapeExpr) or tvm.ir.is_prim_expr(value):
            raise ValueError("a shape that is known only when the model runs is not supported")
        raise ValueError(f"the importer gave a {type(value).__name__}")


def _text_inputs(model: onnx.ModelProto) -> set[str]:
    """Return the names of the model's inputs that hold texts."""
    return {
        name
        for name, value in open_inputs(model).items()
        if value.type.tensor_type.elem_type == onnx.TensorProto.STRING
    }


def _as_one_node(operator: OpaqueOperator) -> onnx.NodeProto:
    """Return a node that stands for all of an operator's, with the values at its border."""
    return onnx.helper.make_node(
        operator.name, operator.inputs, operator.outputs, name=node_name(operator.nodes[0])
    )
