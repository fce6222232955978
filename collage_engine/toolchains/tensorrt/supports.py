"""Says which operators TensorRT can compute, as far as the graph tells.

The library is not needed to ask. What only an installed release can tell is refused when an engine
is built.
"""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import Node, TensorType
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.tensorrt import anchors
from collage_engine.toolchains.tensorrt.network import NAMES
from collage_engine.toolchains.tensorrt.reductions import MOST_SORTED
from collage_engine.toolchains.tensorrt.table import LAYERS

MOST_AXES = 8
"""Dimensions of a tensor, at most (TensorRT's Dims::MAX_DIMS)."""
FLOATS = ("float32", "float16", "bfloat16")
"""Floating-point element types that TensorRT computes."""
NO_FLOATS = {"int8", "uint8"}
"""8-bit element types, which only ``SMALL_READERS`` take and give."""
WHOLE = ("int32", "int64")
"""Integer element types that TensorRT computes."""
SMALL_READERS = frozenset(
    {
        "quantize",
        "dequantize",
        "astype",
        "reshape",
        "flatten",
        "squeeze",
        "expand_dims",
        "permute_dims",
        "concat",
        "nn.batch_flatten",
        "nn.dropout",
    }
)
"""Operators whose operands or results may be 8-bit values."""
BOOLEAN = frozenset(
    {
        "logical_and",
        "logical_or",
        "logical_xor",
        "logical_not",
        "equal",
        "not_equal",
        "where",
        "astype",
        "concat",
        "tril",
        "triu",
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "take",
        "broadcast_to",
        "permute_dims",
        "reshape",
        "expand_dims",
        "squeeze",
        "flatten",
        "strided_slice",
        "split",
        "nn.batch_flatten",
        "greater",
        "greater_equal",
        "less",
        "less_equal",
        "isnan",
        "isinf",
        "isfinite",
        "one_hot",
        "flip",
        "tile",
        "repeat",
        "nn.dropout",
    }
)
"""Operators whose operands or results may be truth values."""


def reason_against(graph: DataflowGraph, index: NodeIndex) -> str | None:
    """Returns why TensorRT cannot be expected to compute a call; None where it can."""
    node = graph.nodes[index]
    if node.op not in LAYERS:
        return f"{onnx_type(node.op)} has no TensorRT layer"
    for value in (*node.types, *_operands(graph, node)):
        if value.dtype not in NAMES:
            return f"TensorRT computes no {value.dtype}"
        if 0 in value.shape:
            return f"{onnx_type(node.op)}: an empty tensor"
        if len(value.shape) > MOST_AXES:
            return f"{onnx_type(node.op)}: more than {MOST_AXES} axes"
        if value.dtype in NO_FLOATS and node.op not in SMALL_READERS:
            return f"{onnx_type(node.op)}: TensorRT computes no {value.dtype} but what QDQ asks for"
        if value.dtype == "bool" and node.op not in BOOLEAN:
            return f"{onnx_type(node.op)}: TensorRT computes it of no truth values"
    if node.op in _CHECKS:
        return _CHECKS[node.op](graph, node)
    return None


def _operands(graph: DataflowGraph, node: Node) -> list[TensorType]:
    return [t for i in node.inputs for t in graph.nodes[i].types]


def _spatial(graph: DataflowGraph, node: Node) -> str | None:
    rank = len(node.type.shape) - 2
    logical = anchors.logical_layout(rank)
    for name in ("data_layout", "layout", "out_layout"):
        layout = str(node.attributes.get(name) or logical)
        if sorted(layout) != sorted(logical):
            return f"{onnx_type(node.op)} in layout {layout}"
    if graph.nodes[node.inputs[0]].type.dtype not in FLOATS:
        return f"{onnx_type(node.op)} of {graph.nodes[node.inputs[0]].type.dtype}"
    return None


def _convolution(graph: DataflowGraph, node: Node) -> str | None:
    kinds = {graph.nodes[i].type.dtype for i in node.inputs} | {node.type.dtype}
    if len(kinds) > 1:
        return f"{onnx_type(node.op)} of {' and '.join(sorted(kinds))}"
    return _spatial(graph, node)


def _matmul(graph: DataflowGraph, node: Node) -> str | None:
    kinds = [graph.nodes[i].type.dtype for i in node.inputs]
    if kinds != [node.type.dtype] * 2 or node.type.dtype not in FLOATS:
        return f"matmul of {kinds[0]} to {node.type.dtype}"
    return None


def _pool(graph: DataflowGraph, node: Node) -> str | None:
    a = node.attributes
    rank = len(node.type.shape) - 2
    if set(per_axis(a.get("dilation", 1), rank)) != {1}:
        return f"{onnx_type(node.op)}: windows with gaps"
    found = _spatial(graph, node)
    if found is not None or "avg" not in node.op or not a.get("ceil_mode"):
        return found
    layout = str(a.get("layout") or anchors.logical_layout(rank))
    axes = [layout.index(letter) for letter in anchors.logical_layout(rank)[2:]]
    window, strides = (per_axis(a[k], rank) for k in ("pool_size", "strides"))
    before, after = pads(a["padding"], rank)
    taken = graph.nodes[node.inputs[0]].type.shape
    for d, axis in enumerate(axes):
        whole = anchors.floor_size(taken[axis], window[d], strides[d], before[d] + after[d])
        if whole != node.type.shape[axis]:
            return f"{onnx_type(node.op)}: windows that reach beyond the padding"
    return None


def _adaptive(graph: DataflowGraph, node: Node) -> str | None:
    taken, given = graph.nodes[node.inputs[0]].type.shape[2:], node.type.shape[2:]
    layout = str(node.attributes.get("layout") or anchors.logical_layout(len(given)))
    if layout != anchors.logical_layout(len(given)):
        return f"{onnx_type(node.op)} in layout {layout}"
    if any(t % g for t, g in zip(taken, given, strict=True)):
        return f"{onnx_type(node.op)} from {list(taken)} to {list(given)}"
    return None


def _attention(graph: DataflowGraph, node: Node) -> str | None:
    if node.attributes.get("causal_mask") or node.attributes.get("window_size"):
        return f"{onnx_type(node.op)} with a causal mask"
    return None


def _resize(graph: DataflowGraph, node: Node) -> str | None:
    a = node.attributes
    if a["layout"] not in ("NCHW", "NCDHW"):
        return f"{onnx_type(node.op)} in layout {a['layout']}"
    if a["coordinate_transformation_mode"] not in anchors.COORDINATES:
        return f"{onnx_type(node.op)}: coordinates {a['coordinate_transformation_mode']}"
    if a["method"] not in anchors.METHODS:
        return f"{onnx_type(node.op)} by {a['method']}"
    if node.op == "image.resize3d" and a["method"] == "cubic":
        return f"{onnx_type(node.op)} by cubic"
    if str(a.get("rounding_method") or "") not in anchors.ROUNDING:
        return f"{onnx_type(node.op)}: rounding {a['rounding_method']}"
    return None


def _grid_sample(graph: DataflowGraph, node: Node) -> str | None:
    a = node.attributes
    if a.get("layout") != "NCHW" or len(node.type.shape) != 4:
        return f"{onnx_type(node.op)} in layout {a.get('layout')}"
    if a["method"] not in anchors.SAMPLING or a["padding_mode"] not in anchors.BORDERS:
        return f"{onnx_type(node.op)} by {a['method']}, {a['padding_mode']}"
    return None


def _pad(graph: DataflowGraph, node: Node) -> str | None:
    widths = [int(w) for w in node.attributes["pad_width"]]
    mode = node.attributes["pad_mode"]
    if mode not in ("constant", "reflect", "replicate", "circular"):
        return f"nn.pad in mode {mode}"
    if any(w < 0 for w in widths):
        return "Pad by less than nothing"
    return None


def _sorted(graph: DataflowGraph, node: Node) -> str | None:
    a = node.attributes
    shape = graph.nodes[node.inputs[0]].type.shape
    if not shape:
        return f"{onnx_type(node.op)} of a scalar"
    extent = shape[int(a.get("axis", -1)) % len(shape)]
    count = int(a["k"]) if node.op == "topk" and int(a["k"]) >= 1 else extent
    if count > MOST_SORTED:
        return f"{onnx_type(node.op)}: TensorRT gives {MOST_SORTED} elements in order at most"
    return None


def _scatter(graph: DataflowGraph, node: Node) -> str | None:
    if node.attributes.get("reduction", "update") not in ("update", "none"):
        return f"{onnx_type(node.op)} that reduces"
    return None


def _quantize(graph: DataflowGraph, node: Node) -> str | None:
    small = node.type.dtype if node.op == "quantize" else graph.nodes[node.inputs[0]].type.dtype
    if small not in ("int8", "uint8") and not (node.op == "dequantize" and small == "int32"):
        return f"{onnx_type(node.op)} with {small}"
    return None


def _floating(graph: DataflowGraph, node: Node) -> str | None:
    """Returns why a layer that has no integers cannot compute a call; None where it can."""
    if node.type.dtype in WHOLE:
        return f"{onnx_type(node.op)} of {node.type.dtype}"
    return None


def _negated(graph: DataflowGraph, node: Node) -> str | None:
    if graph.nodes[node.inputs[0]].type.dtype not in FLOATS:
        return f"{onnx_type(node.op)} of {graph.nodes[node.inputs[0]].type.dtype}"
    return None


_CHECKS = {
    **dict.fromkeys((*anchors.CONVOLUTIONS, *anchors.DECONVOLUTIONS), _convolution),
    **dict.fromkeys(anchors.POOLS, _pool),
    **dict.fromkeys(anchors.ADAPTIVE, _adaptive),
    **dict.fromkeys(("nn.attention", "nn.attention_bias"), _attention),
    **dict.fromkeys(("image.resize2d", "image.resize3d"), _resize),
    **dict.fromkeys(("topk", "sort", "argsort"), _sorted),
    **dict.fromkeys(("scatter_elements", "scatter_nd"), _scatter),
    **dict.fromkeys(("quantize", "dequantize"), _quantize),
    **dict.fromkeys(("power", "mean", "variance", "std", "nn.leakyrelu", "nn.softmax"), _floating),
    **dict.fromkeys(("isnan", "isinf", "isfinite"), _negated),
    "image.grid_sample": _grid_sample,
    "matmul": _matmul,
    "nn.pad": _pad,
}
