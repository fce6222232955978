"""Collects the ONNX nodes, constants and opset of a sub-graph that is written by operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from collage_engine.records.graph import Node, TensorType

if TYPE_CHECKING:
    from collage_engine.model.importer import ImportedModel

Form = Callable[["Writer", Node, list[Any], list[str]], None]
"""A function that adds the ONNX nodes of an operator, given the writer, the node, and the names of
its inputs and outputs. A tuple input is a list of names."""

_OLDEST_OPSET = 18
"""Opset that a written sub-graph has at least: every form is written for it. Chosen."""


class Writer:
    """Collects the ONNX nodes and constants of one sub-graph."""

    def __init__(self, model: ImportedModel) -> None:
        self.model = model
        self.opset = _OLDEST_OPSET
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._count = 0
        self._constants: dict[tuple[Any, ...], str] = {}

    def fresh(self) -> str:
        """Return a value name that no other value of the sub-graph has."""
        self._count += 1
        return f"t{self._count}"

    def add(
        self,
        op: str,
        inputs: Iterable[str],
        output: str | list[str] | None = None,
        **attributes: Any,
    ) -> str:
        """Add a node; returns the name of its (first) output."""
        outputs = (
            [self.fresh()] if output is None else [output] if isinstance(output, str) else output
        )
        self.nodes.append(helper.make_node(op, list(inputs), outputs, **attributes))
        return outputs[0]

    def const(self, values: Any, dtype: Any = None) -> str:
        """Return a small constant; equal ones are shared."""
        array = np.asarray(values, dtype=dtype)
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            name = f"k{len(self._constants)}"
            self.weights.append(numpy_helper.from_array(array, name))
            self._constants[key] = name
        return self._constants[key]

    def ints(self, values: Iterable[int]) -> str:
        """Add a one-dimensional int64 constant and return its name."""
        return self.const([int(v) for v in values], np.int64)

    def need(self, opset: int) -> None:
        """Raise the opset of the sub-graph to at least this one."""
        self.opset = max(self.opset, opset)

    def types(self, node: Node) -> list[TensorType]:
        """Return the types of a node's inputs, tuples spread out."""
        found: list[TensorType] = []
        for source in node.inputs:
            found += self.model.graph.nodes[source].types
        return found
