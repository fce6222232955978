"""Lowers convolutions and pools of batches of images, signals or volumes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from collage_engine.records.graph import Node
from collage_engine.records.operators import onnx_type
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime.products import pads, per_axis


def _channels_first(node: Node, layout: str) -> int:
    """Return the number of axes of space.

    Raises:
        UnsupportedError: The axes are in another order than ONNX has them.
    """
    rank = len(layout) - 2
    if layout != "NC" + "DHW"[3 - rank :]:
        raise UnsupportedError(f"{onnx_type(node.op)}: oneDNN has no layout {layout} here")
    return rank


def _windows(
    strides: Sequence[int], dilation: Sequence[int], begin: Sequence[int], end: Sequence[int]
) -> dict[str, Any]:
    """Return how windows move over an image, for the runtime, which counts what dilation adds."""
    apart = [d - 1 for d in dilation]
    return {"strides": strides, "dilation": apart, "pads_begin": begin, "pads_end": end}


def convolution(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a convolution."""
    attributes = node.attributes
    rank = _channels_first(node, str(attributes["data_layout"]))
    src, weights = plan.tensor(node.inputs[0]), plan.weights(node)
    groups = int(attributes.get("groups", 1))
    shape = plan.dims[weights]
    if groups > 1:
        weights = plan.reshape(weights, (groups, shape[0] // groups, *shape[1:]))
    strides = per_axis(attributes["strides"], rank)
    dilation = per_axis(attributes["dilation"], rank)
    begin, end = pads(attributes["padding"], rank)
    fields = {"src": src, "weights": weights, **_windows(strides, dilation, begin, end)}
    return plan.emit("conv", node.type.shape, **fields)


def pool(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a maximum or average pooling.

    Raises:
        UnsupportedError: The last windows would count elements beyond the padding.
    """
    attributes = node.attributes
    rank = _channels_first(node, str(attributes["layout"]))
    src, dims = plan.tensor(node.inputs[0]), node.type.shape
    kernel = per_axis(attributes["pool_size"], rank)
    strides = per_axis(attributes["strides"], rank)
    dilation = per_axis(attributes["dilation"], rank)
    begin, end = pads(attributes["padding"], rank)
    average = "avg" in node.op
    # A ceiling of the size is more padding at the end; a floor may leave some of it unread.
    data = plan.dims[src][2:]
    needed = [
        (dims[2 + d] - 1) * strides[d] + (kernel[d] - 1) * dilation[d] + 1 - data[d] - begin[d]
        for d in range(rank)
    ]
    include = bool(attributes.get("count_include_pad"))
    if average and include and any(n > e for n, e in zip(needed, end, strict=True)):
        raise UnsupportedError(
            f"{onnx_type(node.op)}: the last windows count elements beyond the padding"
        )
    alg = "max" if not average else "avg_include" if include else "avg"
    fields = {"src": src, "alg": alg, "kernel": kernel}
    return plan.emit("pool", dims, **fields, **_windows(strides, dilation, begin, needed))


def global_pool(plan: OneDnnProgram, value: int, alg: str) -> int:
    """Append the mean or maximum over all axes of space, which are kept with extent one."""
    dims = plan.dims[value]
    space = list(dims[2:])
    zeros, ones = [0] * len(space), [1] * len(space)
    fields = {"src": value, "alg": alg, "kernel": space, **_windows(ones, ones, zeros, zeros)}
    return plan.emit("pool", (*dims[:2], *ones), **fields)


SPATIAL = {
    **{f"nn.conv{d}d": convolution for d in (1, 2, 3)},
    **{f"nn.{kind}_pool{d}d": pool for kind in ("max", "avg") for d in (1, 2, 3)},
}
"""The function that lowers each of these Relax operators."""
