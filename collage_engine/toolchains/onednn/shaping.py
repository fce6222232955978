"""Lowers operators that move elements: to views where possible, otherwise to one copy."""

from __future__ import annotations

from collage_engine.records.graph import Node
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.steps import OneDnnProgram


def reshape(plan: OneDnnProgram, node: Node) -> int:
    """Lowers reshape, expand_dims and squeeze, by the shape of the result."""
    return plan.reshape(plan.tensor(node.inputs[0]), node.type.shape)


def permute(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a transpose."""
    value = plan.tensor(node.inputs[0])
    rank = len(plan.dims[value])
    axes = node.attributes.get("axes")
    order = range(rank - 1, -1, -1) if axes is None else [int(a) % rank for a in axes]
    return plan.permute(value, tuple(order))


def broadcast(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a broadcast to a shape."""
    value = plan.tensor(node.inputs[0])
    shape = node.type.shape
    value = plan.reshape(value, (1,) * (len(shape) - len(plan.dims[value])) + plan.dims[value])
    if plan.dims[value] == shape:
        return value
    return plan.emit("expand", shape, src=value)


def strided_slice(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a slice with positive steps.

    Raises:
        UnsupportedError: A step is negative, or the last one ends beyond its axis.
    """
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    begin, step = [0] * len(dims), [1] * len(dims)
    axes = [int(a) % len(dims) for a in node.attributes["axes"]]
    strides = node.attributes.get("strides") or [1] * len(axes)
    for axis, first, stride in zip(axes, node.attributes["begin"], strides, strict=True):
        if int(stride) < 1:
            raise UnsupportedError("Slice: oneDNN has no negative strides")
        first = int(first)
        begin[axis] = max(0, first + dims[axis] if first < 0 else first)
        step[axis] = int(stride)
    wide = [n * s for n, s in zip(node.type.shape, step, strict=True)]
    if any(w > d and s > 1 for w, d, s in zip(wide[1:], dims[1:], step[1:], strict=True)):
        # The view's rows would seem to overlap: n·step elements where there are fewer.
        raise UnsupportedError("Slice: a last step that ends beyond the axis")
    return plan.emit("slice", node.type.shape, src=value, begin=begin, step=step)


def take(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a gather with one constant index as a slice, since oneDNN has no gather.

    Raises:
        UnsupportedError: The index is not one constant, or there is no axis.
    """
    index = plan.graph.values[node.inputs[1]]
    if not index.constant or index.type.elements != 1:
        raise UnsupportedError("Gather: oneDNN takes one constant index only")
    value = plan.tensor(node.inputs[0])
    dims = plan.dims[value]
    axis = node.attributes.get("axis")
    if axis is None:
        raise UnsupportedError("Gather: oneDNN takes along one axis only")
    axis = int(axis) % len(dims)
    chosen = plan.array(index.index)
    at = 0 if chosen is None else int(chosen.reshape(())) % dims[axis]
    kept = [1 if d == axis else e for d, e in enumerate(dims)]
    return plan.reshape(plan.slice(value, kept, {axis: at}), node.type.shape)


def split_field(plan: OneDnnProgram, node: Node, field: int) -> int:
    """Lowers one part of a split."""
    value = plan.tensor(node.inputs[0])
    axis = int(node.attributes["axis"]) % len(plan.dims[value])
    begin = sum(t.shape[axis] for t in node.types[:field])
    return plan.slice(value, node.types[field].shape, {axis: begin})


def concat(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a concatenation."""
    values = [plan.tensor(i) for i in node.inputs]
    if len(values) == 1:
        return values[0]
    axis = int(node.attributes.get("axis") or 0) % len(node.type.shape)
    return plan.emit("concat", node.type.shape, srcs=values, axis=axis)


SHAPING = {
    **dict.fromkeys(("reshape", "expand_dims", "squeeze"), reshape),
    "permute_dims": permute,
    "broadcast_to": broadcast,
    "strided_slice": strided_slice,
    "take": take,
    "concat": concat,
}
"""The function that lowers each of these Relax operators."""
