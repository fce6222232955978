"""What ONNX Runtime's CPU provider can run, operator by operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collage_engine.model.dataflow_graph import DataflowGraph

TYPES = {
    "float32", "float16", "float64", "bool", "int8", "uint8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64",
}  # fmt: skip
"""Element types that most CPU kernels take; bfloat16 has none."""


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """None when a session can be expected to take the call."""
    node = graph.nodes[index]
    if node.op.startswith("call_tir:"):
        return f"{node.op} has no ONNX form by itself"
    for value in (*node.types, *(t for i in node.inputs for t in graph.nodes[i].types)):
        if value.dtype not in TYPES:
            return f"ONNX Runtime's CPU provider takes no {value.dtype}"
    return None
