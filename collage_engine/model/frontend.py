"""TVM's ONNX importer, made to remember: every ONNX value bound to a Relax variable.

In TVM 0.27 converters return unbound calls, print to standard output when they fail and
lower some operators through TE although a Relax operator exists; ``converters`` has ours.
Recipe: reference page ``mixed-placements``, section 1.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import onnx
import tvm
from tvm import relax
from tvm.ir import Call, GenericConst
from tvm.relax.frontend.onnx import onnx_frontend

from collage_engine.model.converters import CONVERTERS, USABLE_OUTPUTS
from collage_engine.model.draft import node_name
from collage_engine.model.onnx_file import tensor_array
from collage_engine.records.errors import ModelError
from collage_engine.records.reasons import last_line, short_reason


@dataclass(frozen=True)
class RelaxImport:
    """The raw imported module and where its variables came from."""

    module: tvm.IRModule
    values: dict[str, Any]
    """ONNX value → the Relax expression it is (a variable, or a constant)."""
    bounds: list[tuple[onnx.NodeProto, list[Any]]]
    """Every ONNX node, in order, with the variables of its results."""


class Frontend(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no types.
    """Imports one cleaned model; messages name the node that fails."""

    def __init__(self, model: onnx.ModelProto, path: str) -> None:
        super().__init__({}, "float32", keep_params_in_input=False, sanitize=True)
        self._model = model
        self._path = path
        self._bounds: list[tuple[onnx.NodeProto, list[Any]]] = []
        self._inside = False
        self._read = {v for n in model.graph.node for v in n.input if v}
        self._read |= {o.name for o in model.graph.output}

    def run(self) -> RelaxImport:
        """Import the model; raises ``ModelError`` that names what TVM cannot take."""
        opset = next(
            (o.version for o in self._model.opset_import if o.domain in ("", "ai.onnx")), 1
        )
        try:
            module = self.from_onnx(self._model.graph, opset)
        except Exception as error:
            if self._inside:
                # Left open, the block makes the builder complain on standard error when it dies.
                self.bb._end_block()
            if isinstance(error, ModelError):
                raise
            raise ModelError(
                f"{self._path} cannot be imported into Relax: {short_reason(error)}"
            ) from error
        return RelaxImport(module, self._nodes, self._bounds)

    def _sanitize_name(self, name: str) -> str:
        word = re.sub(r"\W", "_", name) or "input"
        if not (word[0].isalpha() or word[0] == "_"):
            word = f"input_{word}"
        return str(self._name_supply.fresh_name(word))

    def _parse_array(self, tensor_proto: onnx.TensorProto) -> Any:
        return tvm.runtime.tensor(tensor_array(tensor_proto, f"'{tensor_proto.name}'"))

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        known = onnx_frontend._get_convert_map()
        for node in graph.node:
            # TVM goes by the type alone; its Attention is the one of com.microsoft.
            foreign = node.op_type == "Attention" and not node.domain
            if foreign or (node.op_type not in known and node.op_type not in CONVERTERS):
                domain = f" of {node.domain}" if node.domain else ""
                raise ModelError(
                    f"{self._path}: the operator {node.op_type}{domain} (node "
                    f"'{node_name(node)}') cannot be imported into Relax."
                )

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._inside = True
        for node in graph.node:
            try:
                results = self._convert(node)
            except ModelError:
                raise
            except Exception as error:  # converters raise whatever their author chose
                said = _readable(last_line(str(error))) or type(error).__name__
                raise ModelError(
                    f"{self._path}: the node '{node_name(node)}' ({node.op_type}) cannot be "
                    f"imported into Relax: {said[:300]}"
                ) from error
            names = list(node.output)
            usable = min(len(results), USABLE_OUTPUTS.get(node.op_type, len(results)))
            if any(name in self._read for name in names[usable:]):
                raise ModelError(
                    f"{self._path}: only the first {usable} of the outputs of the node "
                    f"'{node_name(node)}' ({node.op_type}) can be imported."
                )
            for name, value in zip(names[:usable], results, strict=False):
                if name:
                    self._nodes[name] = value
            self._bounds.append((node, [r for r in results if isinstance(r, relax.Var)]))

    def _convert(self, node: onnx.NodeProto) -> list[Any]:
        """Results of one node, each a variable or a constant."""
        attributes = self._parse_attr(node.attribute)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        inputs = onnx_frontend.onnx_input()
        inputs.extend(self._nodes[i] if i else None for i in node.input)
        own = CONVERTERS.get(node.op_type)
        result = own(self.bb, inputs, attributes, self.opset) if own else None
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


def _readable(text: str) -> str:
    """What TVM says, with its operators and numbers by their names and not in full."""
    while (start := text.find("ir.Op(")) >= 0:
        depth, end = 0, start
        for end in range(start + len("ir.Op"), len(text)):
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            if not depth:
                break
        name = re.search(r'name="(?:relax\.)?([^"]+)"', text[start : end + 1])
        text = text[:start] + (name.group(1) if name else "the operator") + text[end + 1 :]
    return re.sub(r"\bT\.(?:int|float|bool)\d*\(([^()]*)\)", r"\1", text)
