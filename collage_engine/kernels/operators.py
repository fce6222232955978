"""Lists the Relax operators that become PrimFuncs, so that TVM need not be asked."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.opaque_names import is_opaque, title
from collage_engine.records.operator_titles import onnx_type

_NAMES = """
abs acos acosh add arange argmax argmin asin asinh astype atan atan2 atanh bitwise_and
bitwise_not bitwise_or bitwise_xor broadcast_to bucketize ceil clip concat cos cosh dequantize
divide einsum equal erf ewise_fma exp expand_dims eye eye_like flatten flip floor floor_divide
floor_mod full full_like gather_elements gather_nd greater greater_equal image.affine_grid
image.grid_sample image.resize2d image.resize3d index_put index_tensor isfinite isinf isnan
layout_transform left_shift less less_equal log log_add_exp logical_and logical_not logical_or
logical_xor matmul max maximum mean meshgrid min minimum mod multiply negative
nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.attention
nn.attention_bias nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.batch_flatten nn.batch_norm
nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d nn.conv3d_transpose
nn.dropout nn.gelu nn.gelu_tanh nn.group_norm nn.instance_norm nn.layer_norm nn.leakyrelu
nn.log_softmax nn.max_pool1d nn.max_pool2d nn.max_pool3d nn.pad nn.pixel_shuffle nn.prelu
nn.relu nn.rms_norm nn.selu nn.silu nn.softmax nn.softplus not_equal one_hot ones ones_like
outer permute_dims power prod quantize repeat reshape reverse_sequence right_shift round rsqrt
scatter_elements scatter_nd sigmoid sign sin sinh slice_scatter split sqrt square squeeze stack
std strided_slice subtract sum take tan tanh tile tril triu trunc variance where zeros
zeros_like
"""
SUPPORTED = frozenset(_NAMES.split())
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
    op = node.op
    read = (kind for source in node.inputs for kind in graph.nodes[source].types)
    if any(not kind.elements for kind in (*node.types, *read)):
        return f"{onnx_type(op)}: a kernel may read beyond a value without elements"
    if op in SUPPORTED or op.startswith("call_tir:"):
        return None
    why = REASONS.get(op)
    if is_opaque(op):
        return f"TVM has no operator like ONNX's {title(op)}"
    return f"{onnx_type(op)}: {why}" if why else f"TVM has no kernel for {onnx_type(op)}"
