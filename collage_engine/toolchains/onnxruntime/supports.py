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
    """None when a session can be expected to take the call.

    An operator without an ONNX form of its own still runs as the ONNX node it came from, in a
    sub-graph that holds the whole of that node.
    """
    from collage_engine.model.onnx_forms import FORMS

    node = graph.nodes[index]
    if node.op not in FORMS and not node.onnx_nodes:
        return f"{node.op} has no ONNX form"
    for value in (*node.types, *(t for i in node.inputs for t in graph.nodes[i].types)):
        if value.dtype not in TYPES:
            return f"ONNX Runtime's CPU provider takes no {value.dtype}"
    return None
