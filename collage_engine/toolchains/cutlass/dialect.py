"""Describes the convolutions of CUTLASS's kernels, and what can follow them."""

from __future__ import annotations

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime import chains
from collage_engine.toolchains.runtime.products import Dialect

TYPES = ("float16", "bfloat16")
"""Element types that the kernels read."""


def layout(node: Node) -> str:
    """Returns the layout of a convolution's images."""
    return str(node.attributes.get("data_layout", "NCHW"))


def _check(graph: DataflowGraph, node: Node) -> None:
    """Checks the types and attributes of a convolution.

    Raises:
        UnsupportedError: The kernels cannot compute it, for the reason in the message.
    """
    title, attributes = onnx_type(node.op), node.attributes
    kinds = {graph.nodes[i].type.dtype for i in node.inputs} | {node.type.dtype}
    if len(kinds) != 1 or node.type.dtype not in TYPES:
        raise UnsupportedError(
            f"{title}: CUTLASS's kernels here take no {' by '.join(sorted(kinds))}"
        )
    if 0 in node.type.shape:
        raise UnsupportedError(f"{title}: an empty result")
    if int(attributes.get("groups", 1)) != 1:
        raise UnsupportedError(f"{title}: CUTLASS's kernels here have no groups")
    if layout(node) not in ("NCHW", "NHWC"):
        raise UnsupportedError(f"{title}: CUTLASS has no layout {layout(node)}")
    if str(attributes.get("out_layout") or layout(node)) != layout(node):
        raise UnsupportedError(f"{title}: a result in another layout than the image")
    if sorted(str(attributes["kernel_layout"])) != sorted("OIHW"):
        raise UnsupportedError(f"{title}: no kernel layout {attributes['kernel_layout']}")
    if graph.nodes[node.inputs[1]].form != "constant":
        raise UnsupportedError(f"{title}: weights that are computed")


DIALECT = Dialect(
    name="CUTLASS",
    check=_check,
    activations={"nn.relu": "relu", "nn.silu": "silu"},
    chains=(("silu", chains.silu),),
    channel_axes={"nn.conv2d": lambda node: layout(node).index("C")},
)
"""The checks and tables by which convolutions for CUTLASS are recognised."""
