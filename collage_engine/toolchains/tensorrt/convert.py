"""Converts a function of the dataflow graph to a TensorRT network."""

from __future__ import annotations

from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import members, node_set
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.precision import PRODUCTS
from collage_engine.records.reasons import short_reason
from collage_engine.toolchains.tensorrt.library import Api
from collage_engine.toolchains.tensorrt.network import Net
from collage_engine.toolchains.tensorrt.supports import reason_against
from collage_engine.toolchains.tensorrt.table import LAYERS
from collage_engine.toolchains.tensorrt.values import Constants, Values

FULL = frozenset(
    {
        "nn.softmax",
        "nn.log_softmax",
        "nn.layer_norm",
        "nn.rms_norm",
        "nn.group_norm",
        "nn.instance_norm",
        "nn.batch_norm",
        "mean",
        "sum",
        "prod",
        "variance",
        "std",
        "cumsum",
        "exp",
        "log",
        "power",
        "log_add_exp",
        "nn.softplus",
        "sqrt",
        "rsqrt",
        "quantize",
        "dequantize",
    }
)
"""Operators that stay in single precision where the rest is computed in half precision: they add
many numbers, or their results exceed the range of half precision."""


def input_name(place: int) -> str:
    """Returns the name of the network's input at a position."""
    return f"input{place}"


def output_name(place: int) -> str:
    """Returns the name of the network's output at a position."""
    return f"output{place}"


class Converter:
    """Adds the calls of one function to a network, in order.

    ``half`` is the element type (float16, bfloat16) in which float32 values are computed inside;
    with None they are computed as the graph says. Only strongly typed networks need it.
    """

    def __init__(
        self,
        api: Api,
        network: Any,
        graph: DataflowGraph,
        constants: Constants,
        half: str | None = None,
    ) -> None:
        self.api = api
        self.net = Net(api, network)
        self.graph = graph
        self.half = half
        self._constants = constants

    def convert(
        self, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[NodeIndex, ...]
    ) -> None:
        """Adds the inputs, every call and the outputs of a function to the network.

        Raises:
            UnsupportedError: A call has no layers; the text names it.
        """
        values = Values(self.net, self.graph, self._constants, nodes, node_set(outputs))
        for place, index in enumerate(inputs):
            kind = self.graph.nodes[index].type
            self._check_border(kind.dtype)
            tensor = self.net.network.add_input(
                input_name(place), self.net.dtype(kind.dtype), tuple(kind.shape)
            )
            if tensor is None:
                raise UnsupportedError(f"TensorRT takes no input {kind}")
            values.made[index] = values.inputs[index] = tensor
        for index in members(nodes):
            node = self.graph.nodes[index]
            if node.form == "call" and index not in values.inputs and index not in values.same_as:
                self._call(values, node)
        for place, index in enumerate(outputs):
            self._mark(values, index, output_name(place))

    def _check_border(self, dtype: str) -> None:
        if dtype == "int64" and not self.api.wide_integers:
            raise UnsupportedError(f"TensorRT {self.api.version} takes and gives no int64")

    # ---- calls -----------------------------------------------------------------------------

    def _call(self, values: Values, node: Node) -> None:
        reason = reason_against(self.graph, node.index)
        if reason is not None:
            raise UnsupportedError(reason)
        layer = LAYERS[node.op]
        if node.op == "dequantize":
            operands = []  # its operand may be held in another form
        elif node.op == "quantize":
            operands = [values.tensor(node.inputs[0])]
        elif node.op == "astype" and {node.inputs[0]} & {*values.counted, *values.shifted}:
            operands = [values.steps(node.inputs[0])]
        else:
            operands = [values.tensor(i) for i in node.inputs]
        try:
            found = layer(values, node, self._in_precision(node, operands))
        except (TypeError, ValueError, AttributeError) as error:
            # These are the binding's own words on what this release lacks or takes differently.
            raise UnsupportedError(
                f"{onnx_type(node.op)}: {short_reason(error, line='first')}"
            ) from error
        if found is None:
            return  # held as 8-bit values in another form
        self._check(node, found if isinstance(found, list) else [found])
        values.made[node.index] = found

    def _in_precision(self, node: Node, operands: list[Any]) -> list[Any]:
        if self.half is None:
            return operands
        half, single = self.net.dtype(self.half), self.net.dtype("float32")
        flat = [t for given in operands for t in (given if isinstance(given, list) else [given])]
        if node.op in FULL:
            wanted = single
        elif node.op in PRODUCTS or node.op.startswith("nn.attention"):
            wanted = half
        else:
            wanted = half if any(t.dtype == half for t in flat) else single

        def put(tensor: Any) -> Any:
            return self.net.cast(tensor, wanted) if tensor.dtype in (half, single) else tensor

        return [[put(t) for t in x] if isinstance(x, list) else put(x) for x in operands]

    def _check(self, node: Node, found: list[Any]) -> None:
        """Checks that TensorRT infers the type that the graph states."""
        if len(found) != len(node.types):
            raise UnsupportedError(
                f"{onnx_type(node.op)}: {len(node.types)} results, not {len(found)}"
            )
        for tensor, kind in zip(found, node.types, strict=True):
            allowed = [self.net.dtype(kind.dtype)]
            if self.half is not None and kind.dtype == "float32":
                allowed.append(self.net.dtype(self.half))
            if tuple(tensor.shape) != tuple(kind.shape):
                raise UnsupportedError(
                    f"{onnx_type(node.op)}: TensorRT makes {list(tensor.shape)} of it, not {kind}"
                )
            if tensor.dtype not in allowed:
                made = self.net.name_of(tensor.dtype)
                raise UnsupportedError(
                    f"{onnx_type(node.op)}: TensorRT makes {made} of it, not {kind}"
                )

    def _mark(self, values: Values, index: int, name: str) -> None:
        tensor = values.tensor(index)
        kind = self.graph.nodes[index].type
        self._check_border(kind.dtype)
        if self.half is not None and kind.dtype == "float32":
            tensor = self.net.cast(tensor, self.net.dtype("float32"))
        # A tensor is one output at most, and none of the inputs.
        if tensor.is_network_input or tensor.is_network_output:
            tensor = self.net.identity(tensor)
        tensor.name = name
        self.net.network.mark_output(tensor)
        if not self.api.strongly_typed:
            tensor.dtype = self.net.dtype(kind.dtype)
