"""Describes the floating-point products of CUTLASS's kernels: anchors, and what can follow them."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.products import Dialect, layout_of

TYPES = ("float32", "float16", "bfloat16")
"""Element types that the kernels read; float32 where it may be rounded to tf32."""


def layout(node: Node) -> str:
    """Returns the layout of a convolution's images."""
    return str(node.attributes.get("data_layout", "NCHW"))


def check_convolution(graph: DataflowGraph, node: Node) -> None:
    """Checks the attributes of a convolution.

    Raises:
        UnsupportedError: The kernels cannot compute it, for the reason in the message.
    """
    attributes = node.attributes
    if int(attributes.get("groups", 1)) != 1:
        raise UnsupportedError(f"{onnx_type(node.op)}: CUTLASS's kernels here have no groups")
    if layout(node) not in ("NCHW", "NHWC"):
        raise UnsupportedError(f"{onnx_type(node.op)}: CUTLASS has no layout {layout(node)}")
    if str(attributes.get("out_layout") or layout(node)) != layout(node):
        raise UnsupportedError(f"{onnx_type(node.op)}: a result in another layout than the image")
    if sorted(str(attributes["kernel_layout"])) != sorted("OIHW"):
        raise UnsupportedError(
            f"{onnx_type(node.op)}: no kernel layout {attributes['kernel_layout']}"
        )


def _check(graph: DataflowGraph, node: Node) -> None:
    """Checks the types and attributes of an anchor.

    Raises:
        UnsupportedError: The kernels cannot compute it, for the reason in the message.
    """
    kinds = {graph.nodes[i].type.dtype for i in node.inputs} | {node.type.dtype}
    if len(kinds) != 1 or node.type.dtype not in TYPES:
        raise UnsupportedError(
            f"{onnx_type(node.op)}: CUTLASS's kernels take no {' by '.join(sorted(kinds))}"
        )
    if 0 in node.type.shape:
        raise UnsupportedError(f"{onnx_type(node.op)}: an empty result")
    if node.op == "matmul":
        left, right = (graph.nodes[i].type.shape for i in node.inputs)
        layout_of(left, right, node.type.shape)
        return
    check_convolution(graph, node)
    if graph.nodes[node.inputs[1]].form != "constant":
        raise UnsupportedError(f"{onnx_type(node.op)}: weights that are computed")


DIALECT = Dialect(
    name="CUTLASS",
    check=_check,
    activations={
        "nn.relu": "relu",
        "nn.gelu": "gelu",
        "nn.gelu_tanh": "gelu_tanh",
        "nn.silu": "silu",
    },
    chains=(("gelu_tanh", chains.gelu_tanh), ("gelu", chains.gelu_erf), ("silu", chains.silu)),
    channel_axes={
        "matmul": lambda node: len(node.type.shape) - 1,
        "nn.conv2d": lambda node: layout(node).index("C"),
    },
)
"""The checks and tables by which products for CUTLASS are recognised."""
