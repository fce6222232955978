"""Lists the Relax operators that become PrimFuncs, so that TVM need not be asked."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.opaque_names import is_opaque, title
from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.operators import names_where

SUPPORTED = names_where(kernel=True)
"""Relax operators that TVM makes kernels of."""


def reason_against(graph: DataflowGraph, index: int) -> str | None:
    """Returns None when the call can be lowered to kernels, else a sentence why not."""
    node = graph.nodes[index]
    op, attributes = node.op, node.attributes
    read = (kind for source in node.inputs for kind in graph.nodes[source].types)
    if any(not kind.elements for kind in (*node.types, *read)):
        return f"{onnx_type(op)}: a kernel may read beyond a value without elements"
    if op.endswith("_transpose") and (
        int(attributes["groups"]) > 1 or any(int(d) > 1 for d in attributes["dilation"])
    ):
        return f"{onnx_type(op)}: TVM has no fast kernel with groups or dilation"
    if op in SUPPORTED or op.startswith("call_tir:"):
        return None
    if is_opaque(op):
        return f"TVM has no operator like ONNX's {title(op)}"
    return f"TVM has no kernel for {onnx_type(op)}"
