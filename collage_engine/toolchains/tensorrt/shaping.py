"""Adds TensorRT layers of operators that move, repeat, select or create elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.records.graph import Node
from collage_engine.toolchains.tensorrt.values import Layer, Values


def _reshape(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.reshape(inputs[0], node.type.shape)


def _permute(c: Values, node: Node, inputs: list[Any]) -> Any:
    rank = len(node.type.shape)
    axes = node.attributes.get("axes") or list(range(rank))[::-1]
    return c.net.transpose(inputs[0], [int(a) % rank for a in axes])


def _broadcast_to(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.broadcast(inputs[0], node.type.shape)


def _concat(c: Values, node: Node, inputs: list[Any]) -> Any:
    axis = int(node.attributes.get("axis") or 0) % len(node.type.shape)
    return c.net.concat(inputs[0], axis)


def _stack(c: Values, node: Node, inputs: list[Any]) -> Any:
    axis = int(node.attributes.get("axis") or 0) % len(node.type.shape)
    thin = list(node.type.shape)
    thin[axis] = 1
    return c.net.concat([c.net.reshape(part, thin) for part in inputs[0]], axis)


def _split(c: Values, node: Node, inputs: list[Any]) -> Any:
    axis = int(node.attributes["axis"]) % len(node.types[0].shape)
    parts, start = [], 0
    for kind in node.types:
        begin = [0] * len(kind.shape)
        begin[axis] = start
        parts.append(c.net.slice(inputs[0], begin, kind.shape))
        start += kind.shape[axis]
    return parts


def _strided_slice(c: Values, node: Node, inputs: list[Any]) -> Any:
    shape = c.graph.nodes[node.inputs[0]].type.shape
    a = node.attributes
    steps = a.get("strides") or [1] * len(a["begin"])
    start, stride = [0] * len(shape), [1] * len(shape)
    for axis, begin, end, step in zip(a["axes"], a["begin"], a["end"], steps, strict=True):
        axis = int(axis) % len(shape)
        found = slice(int(begin), int(end), int(step)).indices(shape[axis])
        start[axis], stride[axis] = found[0], found[2]
    return c.net.slice(inputs[0], start, node.type.shape, stride)


def _flip(c: Values, node: Node, inputs: list[Any]) -> Any:
    shape = node.type.shape
    axis = int(node.attributes["axis"]) % len(shape)
    start, stride = [0] * len(shape), [1] * len(shape)
    start[axis], stride[axis] = shape[axis] - 1, -1
    return c.net.slice(inputs[0], start, shape, stride)


def _pad(c: Values, node: Node, inputs: list[Any]) -> Any:
    a, x = node.attributes, inputs[0]
    before = [int(w) for w in a["pad_width"][0::2]]
    mode = {"constant": "FILL", "reflect": "REFLECT", "replicate": "CLAMP", "circular": "WRAP"}
    start = [-w for w in before]
    fill = None
    if a["pad_mode"] == "constant":
        fill = c.net.const(float(a["pad_value"]), c.net.name_of(x.dtype))
    return c.net.slice(x, start, node.type.shape, mode=mode[a["pad_mode"]], fill=fill)


def _tile(c: Values, node: Node, inputs: list[Any]) -> Any:
    x = c.net.with_rank(inputs[0], len(node.type.shape))
    return c.net.slice(x, [0] * len(node.type.shape), node.type.shape, mode="WRAP")


def _repeat(c: Values, node: Node, inputs: list[Any]) -> Any:
    shape = list(c.graph.nodes[node.inputs[0]].type.shape)
    times, axis = int(node.attributes["repeats"]), node.attributes.get("axis")
    if axis is None:
        shape, axis = [int(np.prod(shape))], 0
    axis = int(axis) % len(shape)
    thin = [*shape[: axis + 1], 1, *shape[axis + 1 :]]
    wide = [*shape[: axis + 1], times, *shape[axis + 1 :]]
    spread = c.net.broadcast(c.net.reshape(inputs[0], thin), wide)
    return c.net.reshape(spread, node.type.shape)


def _take(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, (data, indices) = c.net, inputs
    table = c.graph.nodes[node.inputs[0]].type
    axis = node.attributes.get("axis")
    extent = table.elements if axis is None else table.shape[int(axis)]
    if axis is None:
        data, axis = net.reshape(data, (table.elements,)), 0
    known = c.array(node.inputs[1])
    if known is not None:
        places = known.astype(np.int64)
        if node.attributes.get("mode") == "clip":
            places = np.clip(places, 0, extent - 1)
        elif node.attributes.get("mode") == "wrap":
            places %= extent
        return net.gather(data, net.const(places.astype(np.int32)), int(axis))
    indices = net.cast(indices, net.dtype("int32"))
    if node.attributes.get("mode") == "clip":
        indices = net.binary("MAX", indices, net.scalar(0, indices))
        indices = net.binary("MIN", indices, net.scalar(extent - 1, indices))
    # Other modes differ only outside of the table, where no model may point.
    return net.gather(data, indices, int(axis))


def _places(c: Values, node: Node, extents: list[int]) -> Any:
    """Return the second operand as indices from the front.

    ``extents`` along its last axis, or one.
    """
    net, index = c.net, node.inputs[1]
    known = c.array(index)
    sizes = np.asarray(extents, np.int32)
    if known is not None:
        places = known.astype(np.int64)
        return net.const(np.where(places < 0, places + sizes, places).astype(np.int32))
    places = net.cast(c.tensor(index), net.dtype("int32"))
    rank = len(places.shape)
    more = net.const(sizes.reshape((1,) * (rank - 1) + (-1,)))
    negative = net.binary("LESS", places, net.scalar(0, places))
    return net.select(negative, net.binary("SUM", places, more), places)


def _gather(mode: str) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net = c.net
        shape = c.graph.nodes[node.inputs[0]].type.shape
        indices = _places(c, node, _extents(c, node, shape, mode))
        made = net.network.add_gather_v2(inputs[0], indices, getattr(net.trt.GatherMode, mode))
        if mode == "ELEMENT":
            made.axis = int(node.attributes["axis"]) % len(node.type.shape)
        else:
            made.num_elementwise_dims = int(node.attributes.get("batch_dims") or 0)
        return net.out(made)

    return layer


def _extents(c: Values, node: Node, shape: tuple[int, ...], mode: str) -> list[int]:
    """Return the sizes of the axes that the indices of a call point into."""
    if mode == "ELEMENT":
        return [shape[int(node.attributes["axis"]) % len(shape)]]
    first = int(node.attributes.get("batch_dims") or 0)
    deep = c.graph.nodes[node.inputs[1]].type.shape[-1]
    return list(shape[first : first + deep])


def _scatter(mode: str) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net = c.net
        data, updates = inputs[0], inputs[2]
        indices = _places(c, node, _extents(c, node, tuple(node.type.shape), mode))
        kind = getattr(net.trt.ScatterMode, mode)
        made = net.network.add_scatter(data, indices, updates, kind)
        if mode == "ELEMENT":
            made.axis = int(node.attributes["axis"]) % len(node.type.shape)
        return net.out(made)

    return layer


def _one_hot(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Return the indices compared with 0, 1, … along a new axis."""
    net, a = c.net, node.attributes
    shape = node.type.shape
    axis = int(a["axis"]) % len(shape)
    depth = int(a["depth"])
    thin = [*shape[:axis], 1, *shape[axis + 1 :]]
    along = [1] * len(shape)
    along[axis] = depth
    indices = net.reshape(net.cast(inputs[0], net.dtype("int32")), thin)
    places = net.const(np.arange(depth, dtype=np.int32).reshape(along))
    kind = node.type.dtype
    on, off = (net.const(np.full((1,) * len(shape), a[k]), kind) for k in ("on_value", "off_value"))
    return net.select(net.binary("EQUAL", indices, places), on, off)


def _filled(value: float | None) -> Layer:
    """Return a tensor of one value: given, or the operator's scalar argument."""

    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        if value is not None:
            return c.net.const(np.full(node.type.shape, value), node.type.dtype)
        scalar = c.net.cast(inputs[-1], c.net.dtype(node.type.dtype))
        return c.net.broadcast(scalar, node.type.shape)

    return layer


def _arange(c: Values, node: Node, inputs: list[Any]) -> Any:
    a = node.attributes
    return c.net.const(np.arange(a["start"], a["end"], a["step"]), node.type.dtype)


def _eye(c: Values, node: Node, inputs: list[Any]) -> Any:
    rows, columns = node.type.shape
    return c.net.const(np.eye(rows, columns, int(node.attributes["k"])), node.type.dtype)


def _triangle(upper: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, x = c.net, inputs[0]
        shape = node.type.shape
        keep = np.ones(shape[-2:], bool)
        k = int(node.attributes["k"])
        keep = np.triu(keep, k) if upper else np.tril(keep, k)
        mask = net.const(keep.reshape((1,) * (len(shape) - 2) + keep.shape))
        return net.select(mask, x, net.scalar(0, x))

    return layer


def _einsum(c: Values, node: Node, inputs: list[Any]) -> Any:
    equation = str(node.attributes["subscripts"]).replace(" ", "")
    return c.net.out(c.net.network.add_einsum(list(inputs[0]), equation))


def _pixel_shuffle(c: Values, node: Node, inputs: list[Any]) -> Any:
    n, channels, height, width = c.graph.nodes[node.inputs[0]].type.shape
    r = int(node.attributes["upscale_factor"])
    apart = c.net.reshape(inputs[0], (n, channels // (r * r), r, r, height, width))
    return c.net.reshape(c.net.transpose(apart, (0, 1, 4, 2, 5, 3)), node.type.shape)


LAYERS: dict[str, Layer] = {
    "arange": _arange,
    "broadcast_to": _broadcast_to,
    "concat": _concat,
    "einsum": _einsum,
    "expand_dims": _reshape,
    "eye": _eye,
    "eye_like": _eye,
    "flatten": _reshape,
    "flip": _flip,
    "full": _filled(None),
    "full_like": _filled(None),
    "gather_elements": _gather("ELEMENT"),
    "gather_nd": _gather("ND"),
    "nn.batch_flatten": _reshape,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "one_hot": _one_hot,
    "ones": _filled(1),
    "ones_like": _filled(1),
    "permute_dims": _permute,
    "repeat": _repeat,
    "reshape": _reshape,
    "scatter_elements": _scatter("ELEMENT"),
    "scatter_nd": _scatter("ND"),
    "split": _split,
    "squeeze": _reshape,
    "stack": _stack,
    "strided_slice": _strided_slice,
    "take": _take,
    "tile": _tile,
    "tril": _triangle(upper=False),
    "triu": _triangle(upper=True),
    "zeros": _filled(0),
    "zeros_like": _filled(0),
}
"""The function that adds the layers of each of these Relax operators."""
