"""Says what ONNX Runtime's CPU provider can run, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from collage_engine.records.numbering import NodeIndex
from collage_engine.toolchains.runtime.supported import against_onnx

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

TYPES = {
    "float32",
    "float16",
    "float64",
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "string",
}
"""Element types that most CPU kernels take; bfloat16 has none."""


def reason_against(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns None when a session can be expected to take the call, else why not."""
    return against_onnx(graph, index, TYPES, "ONNX Runtime's CPU provider takes no")
