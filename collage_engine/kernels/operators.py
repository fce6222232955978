"""Lists the Relax operators that become PrimFuncs, so that TVM need not be asked."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.opaque_names import is_opaque, title
from collage_engine.records.operator_titles import onnx_type
from collage_engine.records.operators import names_where

SUPPORTED = names_where(kernel=True)
"""Relax operators that TVM makes kernels of."""
REASONS = {
    "nonzero": "its output's size depends on the data",
    "unique": "its output's size depends on the data",
    "dynamic_strided_slice": "its output's size depends on the data",
    "shape_of": "it computes with shapes, not with tensors",
    "tensor_to_shape": "it computes with shapes, not with tensors",
    "shape_to_tensor": "it computes with shapes, not with tensors",
    "sort": "TVM sorts by a library call, not by a kernel of its own",
    "argsort": "TVM sorts by a library call, not by a kernel of its own",
    "topk": "TVM sorts by a library call, not by a kernel of its own",
    "median": "TVM sorts by a library call, not by a kernel of its own",
    "cumsum": "TVM scans by a library call, not by a kernel of its own",
    "cumprod": "TVM scans by a library call, not by a kernel of its own",
}


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
    why = REASONS.get(op)
    if is_opaque(op):
        return f"TVM has no operator like ONNX's {title(op)}"
    return f"{onnx_type(op)}: {why}" if why else f"TVM has no kernel for {onnx_type(op)}"
