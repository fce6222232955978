"""Lowers convolutions, matrix products, pools, reductions, softmax and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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


def matmul(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a matrix product of any ranks.

    Vectors become matrices, and missing batch axes get extent one.
    """
    left, right = plan.tensor(node.inputs[0]), plan.weights(node)
    if len(plan.graph.values[node.inputs[0]].type.shape) == 1:
        left = plan.reshape(left, (1, *plan.dims[left]))
    if len(plan.graph.values[node.inputs[1]].type.shape) == 1:
        right = plan.reshape(right, (*plan.dims[right], 1))
    rank = max(len(plan.dims[left]), len(plan.dims[right]))
    left, right = (
        plan.reshape(v, (1,) * (rank - len(plan.dims[v])) + plan.dims[v]) for v in (left, right)
    )
    a, b = plan.dims[left], plan.dims[right]
    batch = tuple(max(p, q) for p, q in zip(a[:-2], b[:-2], strict=True))
    out = plan.emit("matmul", (*batch, a[-2], b[-1]), src=left, weights=right)
    return plan.reshape(out, node.type.shape)


REDUCTIONS = {"mean": "mean", "sum": "sum", "max": "max", "min": "min", "prod": "mul"}
"""The name of oneDNN's algorithm for each Relax reduction."""


def _reduced(node: Node, rank: int) -> list[int]:
    """Return the axes over which a node reduces a value of so many axes, ascending."""
    axes = node.attributes.get("axis")
    axes = range(rank) if axes is None else [axes] if isinstance(axes, int) else axes
    return sorted({int(a) % rank for a in axes})


def reduce(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a reduction; over all axes of space it becomes a pooling."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    chosen = _reduced(node, len(dims))
    if all(dims[a] == 1 for a in chosen):
        return plan.reshape(value, node.type.shape)
    kept = tuple(1 if d in chosen else e for d, e in enumerate(dims))
    if 3 <= len(dims) <= 5 and chosen == list(range(2, len(dims))) and node.op in ("mean", "max"):
        alg, space = "avg" if node.op == "mean" else "max", list(dims[2:])
        zeros, ones = [0] * len(space), [1] * len(space)
        windows = _windows(ones, ones, zeros, zeros)
        out = plan.emit("pool", kept, src=value, alg=alg, kernel=space, **windows)
    else:
        out = plan.emit("reduce", kept, src=value, alg=REDUCTIONS[node.op])
    return plan.reshape(out, node.type.shape)


def softmax(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a softmax or its logarithm."""
    value = plan.tensor(node.inputs[0])
    rank = len(plan.dims[value])
    axis = int(node.attributes.get("axis", -1)) % rank
    log = int(node.op == "nn.log_softmax")
    return plan.emit("softmax", plan.dims[value], src=value, axis=axis, log=log)


def layer_norm(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a layer normalisation over the last axes; several axes are flattened into one."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    axes = sorted(int(a) % len(dims) for a in node.attributes["axes"])
    if axes != list(range(len(dims) - len(axes), len(dims))):
        raise UnsupportedError("layer_norm: oneDNN normalises over the last axes only")
    extent = int(np.prod([dims[a] for a in axes]))
    rows = int(np.prod(dims)) // extent
    flat = plan.reshape(value, dims if len(axes) == 1 and len(dims) > 1 else (rows, extent))
    # TVM applies both whatever the attributes "scale" and "center" say.
    scale, shift = (plan.reshape(plan.tensor(i), (extent,)) for i in node.inputs[1:3])
    epsilon = float(node.attributes["epsilon"])
    fields = {"epsilon": epsilon, "scale": scale, "shift": shift}
    return plan.reshape(plan.emit("layer_norm", plan.dims[flat], src=flat, **fields), dims)


def variance(plan: OneDnnProgram, node: Node) -> int:
    """Lowers the mean of the squared distances from the mean."""
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    kept = tuple(1 if d in _reduced(node, len(dims)) else e for d, e in enumerate(dims))
    mean = plan.emit("reduce", kept, src=value, alg="mean")
    squared = plan.eltwise(plan.binary("sub", value, mean), "square")
    return plan.reshape(plan.emit("reduce", kept, src=squared, alg="mean"), node.type.shape)


ANCHORS = {
    **{f"nn.conv{d}d": convolution for d in (1, 2, 3)},
    **{f"nn.{kind}_pool{d}d": pool for kind in ("max", "avg") for d in (1, 2, 3)},
    "matmul": matmul,
    **dict.fromkeys(REDUCTIONS, reduce),
    "variance": variance,
    "nn.softmax": softmax,
    "nn.log_softmax": softmax,
    "nn.layer_norm": layer_norm,
}
"""The function that lowers each of these Relax operators."""
