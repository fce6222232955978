"""Makes imported models for tests of a graph alone."""

from __future__ import annotations

import numpy as np
import onnx

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.importer import ImportedModel
from collage_engine.records.graph import ModelRecord


def imported_model(graph: DataflowGraph) -> ImportedModel:
    """Returns a model of this graph, with zeros as constants; nothing of it can be compiled."""
    zeros = {
        value.index: np.zeros(value.type.shape, value.type.dtype)
        for value in graph.record.constants
    }
    record = ModelRecord(path="model.onnx", sha256="m", nodes=len(graph.operators))
    return ImportedModel(record, onnx.ModelProto(), graph, (), (), None, (), {}, _arrays=zeros)  # type: ignore[arg-type]
