"""From a function of the dataflow graph to a TensorRT network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, members, node_set
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.records.precision import PRODUCTS
from collage_engine.records.reasons import short_reason
from collage_engine.toolchains.tensorrt import (
    anchors,
    elementwise,
    quantised,
    reductions,
    shaping,
)
from collage_engine.toolchains.tensorrt.elementwise import Layer
from collage_engine.toolchains.tensorrt.library import Api
from collage_engine.toolchains.tensorrt.network import Net, numpy_type
from collage_engine.toolchains.tensorrt.supports import reason_against

LAYERS: dict[str, Layer] = {
    **elementwise.LAYERS,
    **shaping.LAYERS,
    **reductions.LAYERS,
    **anchors.LAYERS,
    **quantised.LAYERS,
}

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
"""Operators that stay in single precision where the rest is computed in half: they add many
numbers, or give numbers that half precision has no room for."""

Constants = Callable[[int], np.ndarray]


def input_name(place: int) -> str:
    return f"input{place}"


def output_name(place: int) -> str:
    return f"output{place}"


class Converter:
    """Adds the calls of one function to a network, in order.

    ``half``: the element type (float16, bfloat16) in which float32 values are computed inside;
    None: as the graph says. Only strongly typed networks need it.
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
        self.inputs: dict[int, Any] = {}
        self.shifted: dict[int, Any] = {}
        """uint8 values as int8, 128 less."""
        self.counted: dict[int, Any] = {}
        """8-bit values as whole numbers in floating point."""
        self._constants = constants
        self._values: dict[int, Any] = {}
        self._nodes = NO_NODES
        self._leaving = NO_NODES
        self._same_as: dict[int, int] = {}
        """Additions of a bias → the convolution that does them."""

    def convert(
        self, nodes: NodeSet, inputs: tuple[int, ...], outputs: tuple[NodeIndex, ...]
    ) -> None:
        """Inputs, every call, outputs; ``UnsupportedError`` names a call that has no layers."""
        self._nodes = nodes
        self._leaving = node_set(outputs)
        for place, index in enumerate(inputs):
            kind = self.graph.nodes[index].type
            self._check_border(kind.dtype)
            tensor = self.net.network.add_input(
                input_name(place), self.net.dtype(kind.dtype), tuple(kind.shape)
            )
            if tensor is None:
                raise UnsupportedError(f"TensorRT takes no input {kind}")
            self._values[index] = self.inputs[index] = tensor
        for index in members(nodes):
            node = self.graph.nodes[index]
            if node.form == "call" and index not in self.inputs and index not in self._same_as:
                self._call(node)
        for place, index in enumerate(outputs):
            self._mark(index, output_name(place))

    def _check_border(self, dtype: str) -> None:
        if dtype == "int64" and not self.api.wide_integers:
            raise UnsupportedError(f"TensorRT {self.api.version} takes and gives no int64")

    # ---- values ----------------------------------------------------------------------------

    def array(self, index: int, dtype: str | None = None) -> np.ndarray | None:
        """The value of a constant, in another element type if one is given; None: it is none."""
        if self.graph.nodes[index].form != "constant":
            return None
        found = np.asarray(self._constants(index))
        return found if dtype is None else found.astype(numpy_type(dtype))

    def tensor(self, index: int) -> Any:
        """A value as a tensor of the graph's type (or in half precision); a list for a tuple."""
        index = self._same_as.get(index, index)
        if index in self._values:
            return self._values[index]
        node = self.graph.nodes[index]
        if node.form == "constant":
            found = self.net.const(self.array(index))
        elif node.form == "projection":
            found = self.tensor(node.inputs[0])[node.field]
        elif node.form == "tuple":
            found = [self.tensor(i) for i in node.inputs]
        elif index in self.shifted or index in self.counted:
            found = self.cast_as(self._steps(index), node.type.dtype)
        else:
            raise UnsupportedError(f"{node.op or 'a value'} is read before it is made")
        self._values[index] = found
        return found

    def as_count(self, index: int, dtype: str) -> Any:
        """An 8-bit or 32-bit value as whole numbers in floating point."""
        if index in self.counted or index in self.shifted:
            return self.net.cast(self._steps(index), self.net.dtype(dtype))
        return self.cast_as(self.tensor(index), dtype)

    def cast_as(self, x: Any, dtype: str) -> Any:
        """A conversion between element types, where TensorRT converts some by way of others."""
        wanted = self.net.dtype(dtype)
        if x.dtype == wanted:
            return x
        single = self.net.dtype("float32")
        small = (self.net.dtype("int8"), self.net.dtype("uint8"))
        if x.dtype == small[0]:
            x = quantised.dequantized(self, x, np.ones((), np.float32), 0, "float32")
        elif x.dtype == small[1]:
            x = self.net.cast(x, single)
        if wanted == small[0]:
            x = self.net.cast(x, single)
            return quantised.quantized(self, x, np.ones((), np.float32), 0)
        if wanted == small[1]:
            x = self.net.cast(x, single)
        return self.net.cast(x, wanted)

    def _steps(self, index: int) -> Any:
        """An 8-bit value that is held in another form, as whole numbers in floating point."""
        if index not in self.shifted:
            return self.counted[index]
        one = np.ones((), np.float32)
        steps = quantised.dequantized(self, self.shifted[index], one, 0, "float32")
        return self.net.binary("SUM", steps, self.net.scalar(quantised.MIDDLE, steps))

    def is_integer(self, x: Any) -> bool:
        return self.net.name_of(x.dtype) in ("int32", "int64", "int8", "uint8")

    # ---- calls -----------------------------------------------------------------------------

    def _call(self, node: Node) -> None:
        reason = reason_against(self.graph, node.index)
        if reason is not None:
            raise UnsupportedError(reason)
        layer = LAYERS[node.op]
        if node.op == "dequantize":
            operands = []  # its operand may be held in another form
        elif node.op == "quantize":
            operands = [self.tensor(node.inputs[0])]
        elif node.op == "astype" and {node.inputs[0]} & {*self.counted, *self.shifted}:
            operands = [self._steps(node.inputs[0])]
        else:
            operands = [self.tensor(i) for i in node.inputs]
        try:
            found = layer(self, node, self._in_precision(node, operands))
        except UnsupportedError as error:
            said = str(error).removeprefix(f"{node.op}: ")
            raise UnsupportedError(f"{node.op}: {said}") from None
        except (TypeError, ValueError, AttributeError) as error:
            # The binding's own words, for what this release has not or takes differently.
            raise UnsupportedError(f"{node.op}: {short_reason(error, line='first')}") from error
        if found is None:
            return  # held as 8-bit values in another form
        self._check(node, found if isinstance(found, list) else [found])
        self._values[node.index] = found

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
        """What TensorRT infers must be what the graph says."""
        if len(found) != len(node.types):
            raise UnsupportedError(f"{node.op}: {len(node.types)} results, not {len(found)}")
        for tensor, kind in zip(found, node.types, strict=True):
            allowed = [self.net.dtype(kind.dtype)]
            if self.half is not None and kind.dtype == "float32":
                allowed.append(self.net.dtype(self.half))
            if tuple(tensor.shape) != tuple(kind.shape):
                raise UnsupportedError(
                    f"{node.op}: TensorRT makes {list(tensor.shape)} of it, not {kind}"
                )
            if tensor.dtype not in allowed:
                made = self.net.name_of(tensor.dtype)
                raise UnsupportedError(f"{node.op}: TensorRT makes {made} of it, not {kind}")

    def bias_behind(self, node: Node, channels: int, dtype: Any) -> np.ndarray | None:
        """A constant per channel that is added to a convolution and nothing else reads before.

        The addition then counts as done: its value is the convolution's.
        """
        users = self.graph.users[node.index]
        if len(users) != 1 or self._leaving >> node.index & 1:
            return None
        follower = self.graph.nodes[users[0]]
        if not self._nodes >> follower.index & 1 or follower.op != "add":
            return None
        others = [i for i in follower.inputs if i != node.index]
        if len(others) != 1 or follower.type != node.type:
            return None
        array = self.array(others[0], self.net.name_of(dtype))
        rank = len(node.type.shape)
        if array is None:
            return None
        shape = (1,) * (rank - array.ndim) + array.shape
        if shape != (1, channels) + (1,) * (rank - 2):
            return None
        self._same_as[follower.index] = node.index
        return array.reshape(-1)

    def _mark(self, index: int, name: str) -> None:
        tensor = self.tensor(index)
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
