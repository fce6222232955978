"""Emits 8-bit convolutions (QDQ) as one cuDNN graph: integer sums, then a factor and an offset.

cuDNN's engines for them read int8 images whose channels are innermost. A plain border is therefore
refused when the partition is compiled; one that takes and gives nhwc is not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition import quantized
from collage_engine.partition.quantized import Kind, Quantized
from collage_engine.partition.quantized_numbers import Numbers
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.numbering import NodeSet
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.cudnn.program import CudnnProgram, View
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.runtime.requantized import LARGEST_FLOAT, Requantized, requantized

KINDS: tuple[Kind, ...] = ("conv",)
"""The kinds of composites for which cuDNN has engines."""
CHANNEL_MULTIPLE = 4
"""Channels have to be a multiple of it, because engines read them in words of 4 bytes."""


def within(graph: DataflowGraph, nodes: NodeSet, leaving: NodeSet) -> dict[int, Quantized]:
    """Returns the composites in a set for which cuDNN has engines, by root.

    Only their types are considered.
    """
    return {
        root: found
        for root, found in quantized.within(graph, nodes, leaving).items()
        if reason_against(graph, found) is None
    }


def reason_against(graph: DataflowGraph, found: Quantized) -> str | None:
    """Returns why cuDNN has no engine for a composite, as far as types tell.

    The result is None where it has one.
    """
    node = graph.nodes[found["anchor"]]
    if found.kind not in KINDS or node.op != "nn.conv2d":
        return f"{onnx_type(node.op)}: cuDNN has engines for 8-bit convolutions of images only"
    if int(node.attributes.get("groups", 1)) != 1:
        return f"{onnx_type(node.op)}: 8-bit convolutions in groups"
    layout = str(node.attributes.get("data_layout", "NCHW"))
    if layout not in ("NCHW", "NHWC") or sorted(str(node.attributes["kernel_layout"])) != sorted(
        "OIHW"
    ):
        return f"{onnx_type(node.op)}: cuDNN has no layout {layout}"
    data, result = graph.nodes[found["data"]].type, graph.nodes[found.root].type
    if data.dtype != "int8" or result.dtype not in ("int8", "float32"):
        return f"{onnx_type(node.op)}: 8-bit convolutions from {data.dtype} to {result.dtype}"
    channels = [kind.shape[layout.index("C")] for kind in (data, result)]
    if any(c % CHANNEL_MULTIPLE for c in channels):
        return f"{onnx_type(node.op)}: {channels[0]} and {channels[1]} channels of 8 bits"
    if "residual" in found:
        residual = graph.nodes[found["residual"]].type
        if residual.dtype != "int8" or residual.shape != result.shape:
            return f"{onnx_type(node.op)}: a {residual.dtype} tensor added"
    return None


def emit(program: CudnnProgram, found: Quantized) -> None:
    """Emits one step: a convolution, factor, offset, residual sum and limits."""
    node = program.graph.nodes[found["anchor"]]
    layout = str(node.attributes.get("data_layout", "NCHW"))

    def image(view: View) -> View:
        view = view.permuted(tuple(layout.index(c) for c in "NCHW"))
        if view.strides[1] != 1 and not program.dry:
            raise UnsupportedError(
                f"{onnx_type(node.op)}: 8-bit images whose channels do not lie innermost"
            )
        return view

    x = image(program.view(found["data"]))
    begin, end = pads(node.attributes["padding"], 2)
    numbers = Numbers(program.graph, found, program.constants)
    made = _numbers(program, numbers, found, padded=any((*begin, *end)))
    order = str(node.attributes["kernel_layout"])
    stored = program.constant(made.weights.transpose([order.index(c) for c in "OHWI"]))
    last = program.graph.nodes[found.root].type
    y = image(program.result(found.root))
    posts = _posts(program, made, found, image, small=last.dtype == "int8")
    program.emit(
        "conv",
        node.name or f"{node.op} {node.index}",
        x=x.as_json(),
        w=stored.permuted((0, 3, 1, 2)).as_json(),
        y=y.as_json(),
        pre=list(begin),
        post=list(end),
        stride=list(per_axis(node.attributes["strides"], 2)),
        dilation=list(per_axis(node.attributes["dilation"], 2)),
        groups=1,
        sums="int32",
        posts=posts,
    )


def _posts(
    program: CudnnProgram, made: Requantized, found: Quantized, image: Any, *, small: bool
) -> list[dict[str, Any]]:
    """``(sum · factor / ratio + offset / ratio + residual) · ratio``, then the limits."""

    def number(values: np.ndarray | float) -> dict[str, Any]:
        array = np.asarray(values, np.float32).reshape(1, -1, 1, 1)
        return program.constant(array).as_json()

    ratio = made.ratio if "residual" in found and made.ratio else 1.0
    posts: list[dict[str, Any]] = [
        {"mode": "multiply", "other": number(made.factor / ratio), "swapped": False},
        {"mode": "add", "other": number(made.offset / ratio), "swapped": False},
    ]
    if "residual" in found:
        added = image(program.view(found["residual"])).as_json()
        posts.append({"mode": "add", "other": added, "swapped": False})
        posts.append({"mode": "multiply", "other": number(ratio), "swapped": False})
    low, high = (-128.0, 127.0) if small else (-LARGEST_FLOAT, LARGEST_FLOAT)
    if made.low > low or made.high < high:  # what the type does not do by itself
        posts.append({"mode": "clip", "low": made.low, "high": made.high})
    return posts


def _numbers(
    program: CudnnProgram, numbers: Numbers, found: Quantized, *, padded: bool
) -> Requantized:
    if not program.dry:
        return requantized(numbers, padded=padded)
    shape = program.graph.nodes[found["weights"]].type.shape
    channels = np.ones(1, np.float32)
    limits = (-LARGEST_FLOAT, LARGEST_FLOAT)
    return Requantized(np.zeros(shape, np.int8), channels, channels, 0.0, *limits)
