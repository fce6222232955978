"""Builds dataflow graphs from records, whose constants have values."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import GraphRecord, Node, TensorType

Shape = tuple[int, ...]


class ValuedGraph:
    """Nodes with their types given; each method returns the node's index.

    Attributes:
        values: The constants' values by node.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.values: dict[int, np.ndarray] = {}

    def add_node(self, form: Any, shape: Shape, dtype: str = "float32", **fields: Any) -> int:
        index = len(self.nodes)
        kind = (TensorType(tuple(shape), dtype),)
        self.nodes.append(Node(index=index, form=form, types=kind, **fields))
        return index

    def input(self, *shape: int, dtype: str = "float32") -> int:
        return self.add_node("parameter", shape, dtype, name=f"x{len(self.nodes)}")

    def const(self, values: Any, dtype: str = "float32") -> int:
        array = np.asarray(values, dtype)
        index = self.add_node("constant", array.shape, dtype, scalar=array.shape == ())
        self.values[index] = array
        return index

    def call(
        self, op: str, extents: Shape, *inputs: int, dtype: str = "float32", **attributes: Any
    ) -> int:
        return self.add_node("call", extents, dtype, op=op, inputs=inputs, attributes=attributes)

    def conv2d(self, x: int, w: int, extents: Shape, **attributes: Any) -> int:
        """Add a convolution of images with channels first, without padding unless it is given."""
        chosen = {
            "strides": [1, 1],
            "padding": [0, 0, 0, 0],
            "dilation": [1, 1],
            "groups": 1,
            "data_layout": "NCHW",
            "kernel_layout": "OIHW",
            "out_layout": "",
        }
        return self.call("nn.conv2d", extents, x, w, **{**chosen, **attributes})

    def graph(self, *outputs: int) -> DataflowGraph:
        inputs = tuple(n.index for n in self.nodes if n.form == "parameter")
        return DataflowGraph(GraphRecord(nodes=tuple(self.nodes), inputs=inputs, outputs=outputs))
