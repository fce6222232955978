"""Lowers convolutions, pools and resizing of batches of images, signals or volumes.

oneDNN's logical order is batch, channels, space, in whatever order memory is. Other Relax layouts
are transposed views, which cost nothing.
"""

from __future__ import annotations

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.onednn.steps import OneDnnProgram
from collage_engine.toolchains.runtime.per_axis import pads, per_axis

_SPACE = "DHW"
"""Names of the axes of space in layouts; operators of fewer dimensions use the last ones."""


def _axes(layout: str, wanted: str, op: str) -> tuple[int, ...]:
    """Returns the permutation that takes ``layout`` to ``wanted``."""
    if sorted(layout) != sorted(wanted):
        raise UnsupportedError(f"{onnx_type(op)}: oneDNN has no layout {layout}")
    return tuple(layout.index(c) for c in wanted)


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


def _image(plan: OneDnnProgram, node: Node, layout: str) -> tuple[int, tuple[int, ...]]:
    """Returns a node's data in logical order, and the permutation that undoes it."""
    rank = len(layout) - 2
    axes = _axes(layout, "NC" + _SPACE[3 - rank :], node.op)
    return plan.permute(plan.tensor(node.inputs[0]), axes), _inverse(axes)


def _logical(dims: tuple[int, ...], undo: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the sizes of a result in logical order, given its sizes in the node's layout."""
    return tuple(dims[undo.index(d)] for d in range(len(dims)))


def convolution(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a convolution.

    Raises:
        UnsupportedError: oneDNN has no such layout.
    """
    attributes = node.attributes
    layout = str(attributes.get("data_layout", "NCHW"))
    rank = len(layout) - 2
    if attributes.get("out_layout", layout) not in (layout, ""):
        raise UnsupportedError(f"{onnx_type(node.op)}: oneDNN keeps the layout of the data")
    src, undo = _image(plan, node, layout)
    dims = _logical(node.type.shape, undo)
    groups = int(attributes.get("groups", 1))
    space = _SPACE[3 - rank :]
    order = _axes(str(attributes["kernel_layout"]), "OI" + space, node.op)
    weights = plan.permute(plan.tensor(node.inputs[1]), order)
    shape = plan.dims[weights]
    if groups > 1:
        weights = plan.reshape(weights, (groups, shape[0] // groups, *shape[1:]))
    strides = per_axis(attributes["strides"], rank)
    dilation = per_axis(attributes["dilation"], rank)
    begin, end = pads(attributes["padding"], rank)
    out = plan.emit(
        "conv",
        dims,
        src=src,
        weights=weights,
        strides=strides,
        dilation=[d - 1 for d in dilation],
        pads_begin=begin,
        pads_end=end,
    )
    return plan.permute(out, undo)


def pool(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a maximum or average pooling.

    Raises:
        UnsupportedError: The last windows would count elements beyond the padding.
    """
    attributes = node.attributes
    layout = str(attributes["layout"])
    rank = len(layout) - 2
    src, undo = _image(plan, node, layout)
    dims = _logical(node.type.shape, undo)
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
    out = plan.emit(
        "pool",
        dims,
        src=src,
        alg=alg,
        kernel=kernel,
        strides=strides,
        dilation=[d - 1 for d in dilation],
        pads_begin=begin,
        pads_end=needed,
    )
    return plan.permute(out, undo)


def global_pool(plan: OneDnnProgram, value: int, alg: str) -> int:
    """Appends the mean or maximum over all axes of space, which are kept with extent one."""
    dims = plan.dims[value]
    space = list(dims[2:])
    zeros, ones = [0] * len(space), [1] * len(space)
    return plan.emit(
        "pool",
        (*dims[:2], *ones),
        src=value,
        alg=alg,
        kernel=space,
        strides=ones,
        dilation=zeros,
        pads_begin=zeros,
        pads_end=zeros,
    )


SPATIAL = {
    **{f"nn.conv{d}d": convolution for d in (1, 2, 3)},
    **{f"nn.{kind}_pool{d}d": pool for kind in ("max", "avg") for d in (1, 2, 3)},
}
"""The function that lowers each of these Relax operators."""
