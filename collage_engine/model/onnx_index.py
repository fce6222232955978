"""Finds the nodes and weights of an ONNX model by the names of their values."""

from __future__ import annotations

from onnx import ModelProto, NodeProto, TensorProto


class OnnxIndex:
    """Producers and weights of a model by name."""

    def __init__(self, model: ModelProto) -> None:
        self.producer: dict[str, NodeProto] = {o: n for n in model.graph.node for o in n.output}
        self.place = {id(n): i for i, n in enumerate(model.graph.node)}
        self.initializer: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        self._nodes = list(model.graph.node)  # keeps the ids above alive
