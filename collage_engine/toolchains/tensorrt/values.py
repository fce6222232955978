"""Keeps the values of one function while it is converted: what a layer reads and may write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.numpy_types import numpy_type
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.tensorrt.network import MIDDLE, Net

Constants = Callable[[int], np.ndarray]
"""A function that returns a constant's value, given its graph index."""


class Values:
    """Tensors by graph index, and the forms that TensorRT's 8-bit values are held in.

    ``nodes`` are the function's, ``leaving`` those of its outputs.
    """

    def __init__(
        self,
        net: Net,
        graph: DataflowGraph,
        constants: Constants,
        nodes: NodeSet,
        leaving: NodeSet,
    ) -> None:
        self.net = net
        self.api = net.api
        self.graph = graph
        self.nodes = nodes
        self.leaving = leaving
        self.inputs: dict[int, Any] = {}
        self.shifted: dict[int, Any] = {}
        """uint8 values as int8, 128 less."""
        self.counted: dict[int, Any] = {}
        """8-bit values as whole numbers in floating point."""
        self.made: dict[int, Any] = {}
        """The tensor of each converted node, or a list of tensors for a tuple."""
        self.same_as: dict[int, int] = {}
        """Additions of a bias → the convolution that does them."""
        self._constants = constants

    def array(self, index: int, dtype: str | None = None) -> np.ndarray | None:
        """Return the value of a constant, in another element type if one is given.

        None: it is none.
        """
        if self.graph.nodes[index].form != "constant":
            return None
        found = np.asarray(self._constants(index))
        return found if dtype is None else found.astype(numpy_type(dtype))

    def tensor(self, index: int) -> Any:
        """Return a value as a tensor of the graph's type (or in half precision).

        A list for a tuple.
        """
        index = self.same_as.get(index, index)
        if index in self.made:
            return self.made[index]
        node = self.graph.nodes[index]
        if node.form == "constant":
            found = self.net.const(self.array(index))
        elif node.form == "projection":
            found = self.tensor(node.inputs[0])[node.field]
        elif node.form == "tuple":
            found = [self.tensor(i) for i in node.inputs]
        elif index in self.shifted or index in self.counted:
            found = self.cast_as(self.steps(index), node.type.dtype)
        else:
            raise UnsupportedError(f"{onnx_type(node.op)} is read before it is made")
        self.made[index] = found
        return found

    def as_count(self, index: int, dtype: str) -> Any:
        """Return an 8-bit or 32-bit value as whole numbers in floating point."""
        if index in self.counted or index in self.shifted:
            return self.net.cast(self.steps(index), self.net.dtype(dtype))
        return self.cast_as(self.tensor(index), dtype)

    def cast_as(self, x: Any, dtype: str) -> Any:
        """Adds a conversion between element types; TensorRT converts some by way of others."""
        wanted = self.net.dtype(dtype)
        if x.dtype == wanted:
            return x
        single = self.net.dtype("float32")
        small = (self.net.dtype("int8"), self.net.dtype("uint8"))
        if x.dtype == small[0]:
            x = self.net.dequantized(x, np.ones((), np.float32), 0, "float32")
        elif x.dtype == small[1]:
            x = self.net.cast(x, single)
        if wanted == small[0]:
            x = self.net.cast(x, single)
            return self.net.quantized(x, np.ones((), np.float32), 0)
        if wanted == small[1]:
            x = self.net.cast(x, single)
        return self.net.cast(x, wanted)

    def steps(self, index: int) -> Any:
        """Returns an 8-bit value held in another form, as whole numbers in floating point."""
        if index not in self.shifted:
            return self.counted[index]
        one = np.ones((), np.float32)
        steps = self.net.dequantized(self.shifted[index], one, 0, "float32")
        return self.net.binary("SUM", steps, self.net.scalar(MIDDLE, steps))

    def is_integer(self, x: Any) -> bool:
        """Tell whether a tensor holds whole numbers."""
        return self.net.name_of(x.dtype) in ("int32", "int64", "int8", "uint8")

    def bias_behind(self, node: Node, channels: int, dtype: Any) -> np.ndarray | None:
        """Returns the constant per channel that is added to a convolution; None without one.

        Nothing else may read the convolution before. The addition then counts as done: its value is
        the convolution's.
        """
        users = self.graph.users[node.index]
        if len(users) != 1 or self.leaving >> node.index & 1:
            return None
        follower = self.graph.nodes[users[0]]
        if not self.nodes >> follower.index & 1 or follower.op != "add":
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
        self.same_as[follower.index] = node.index
        return array.reshape(-1)


Layer = Callable[[Values, Node, list[Any]], Any]
"""A function that adds the layers of a call: from the values, the call and its operands as tensors
to the call's value, or one value for each field of a tuple."""
