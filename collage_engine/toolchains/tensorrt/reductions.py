"""Adds TensorRT's layers of reductions, sorting and normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.tensorrt.values import Layer, Values

if TYPE_CHECKING:
    from collage_engine.toolchains.tensorrt.network import Net

REDUCTIONS = {"max": "MAX", "mean": "AVG", "min": "MIN", "prod": "PROD", "sum": "SUM"}
"""The name of TensorRT's operation for each Relax reduction."""
MOST_SORTED = 3840
"""Elements that TensorRT's TopK returns at most (TensorRT's operator reference)."""


def _axes(c: Values, node: Node) -> list[int]:
    axes = node.attributes.get("axis")
    rank = len(c.graph.nodes[node.inputs[0]].type.shape)
    if axes is None:
        return list(range(rank))
    return [int(a) % rank for a in (axes if isinstance(axes, list) else [axes])]


def _reduce(name: str) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        return c.net.reduce(name, inputs[0], _axes(c, node), bool(node.attributes.get("keepdims")))

    return layer


def _variance(root: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, axes = c.net, _axes(c, node)
        apart = net.binary("SUB", inputs[0], net.reduce("AVG", inputs[0], axes))
        keep = bool(node.attributes.get("keepdims"))
        found = net.reduce("AVG", net.binary("PROD", apart, apart), axes, keep)
        return net.unary("SQRT", found) if root else found

    return layer


def _top(c: Values, x: Any, count: int, axis: int, largest: bool) -> tuple[Any, Any]:
    """Returns the first ``count`` values along an axis, in order, and their places as int32."""
    net = c.net
    flat = len(x.shape) == 1
    if flat:  # TopK wants two axes
        x, axis = net.reshape(x, (1, *x.shape)), 1
    kind = net.trt.TopKOperation.MAX if largest else net.trt.TopKOperation.MIN
    layer = net.network.add_topk(x, kind, count, 1 << axis)
    values, places = net.out(layer), net.out(layer, 1)
    if flat:
        values, places = (net.reshape(t, (count,)) for t in (values, places))
    return values, places


def _arg(largest: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, x, axis = c.net, inputs[0], node.attributes.get("axis")
        if axis is None:
            x, axis = net.reshape(x, (c.graph.nodes[node.inputs[0]].type.elements,)), 0
        _, places = _top(c, x, 1, int(axis) % len(x.shape), largest)
        return net.cast(net.reshape(places, node.type.shape), net.dtype(node.type.dtype))

    return layer


def _topk(c: Values, node: Node, inputs: list[Any]) -> Any:
    a = node.attributes
    shape = c.graph.nodes[node.inputs[0]].type.shape
    axis = int(a["axis"]) % len(shape)
    count = shape[axis] if int(a["k"]) < 1 else int(a["k"])
    values, places = _top(c, inputs[0], count, axis, bool(a["largest"]))
    wanted = a.get("ret_type", "both")
    places = c.net.cast(places, c.net.dtype(node.types[-1].dtype)) if wanted != "values" else None
    return [values, places] if wanted == "both" else values if wanted == "values" else places


def _sorted(indices: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        a = node.attributes
        axis = int(a["axis"]) % len(node.type.shape)
        values, places = _top(c, inputs[0], node.type.shape[axis], axis, bool(a.get("descending")))
        return c.net.cast(places, c.net.dtype(node.type.dtype)) if indices else values

    return layer


def _cumsum(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, x = c.net, inputs[0]
    add = net.need(net.network, "add_cumulative", "cumsum")
    axis = node.attributes.get("axis")
    x = net.cast(x, net.dtype(node.type.dtype))
    if axis is None:
        x, axis = net.reshape(x, node.type.shape), 0
    place = net.const(int(axis) % len(node.type.shape), "int32")
    exclusive = bool(node.attributes.get("exclusive"))
    return net.out(add(x, place, net.trt.CumulativeOperation.SUM, exclusive, False))


# ---- normalisation -----------------------------------------------------------------------------


def normalized(net: Net, x: Any, axes: Sequence[int], epsilon: float) -> Any:
    """Adds (x − mean) / √(variance + ε) over some axes."""
    apart = net.binary("SUB", x, net.reduce("AVG", x, axes))
    variance = net.reduce("AVG", net.binary("PROD", apart, apart), axes)
    root = net.unary("SQRT", net.binary("SUM", variance, net.scalar(epsilon, x)))
    return net.binary("DIV", apart, root)


def _affine(net: Net, x: Any, parts: Sequence[Any], shape: Sequence[int]) -> Any:
    """Adds a scale and a shift to a normalised value, each brought to the shape.

    TVM applies both whatever the attributes "scale" and "center" say.
    """
    scale, shift = (net.reshape(part, shape) for part in parts)
    return net.binary("SUM", net.binary("PROD", x, scale), shift)


def _layer_norm(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a, x = c.net, node.attributes, inputs[0]
    axes = sorted(int(v) % len(x.shape) for v in a["axes"])
    shape = [e if i in axes else 1 for i, e in enumerate(node.type.shape)]
    add = getattr(net.network, "add_normalization", None)
    whole = axes == list(range(axes[0], len(node.type.shape)))
    if add is None or not whole:
        return _affine(net, normalized(net, x, axes, float(a["epsilon"])), inputs[1:], shape)
    scale, shift = (net.reshape(given, shape) for given in inputs[1:3])
    layer = add(x, scale, shift, net.mask(x, axes))
    layer.epsilon = float(a["epsilon"])
    return net.out(layer)


def _rms_norm(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a, x = c.net, node.attributes, inputs[0]
    mean = net.reduce("AVG", net.binary("PROD", x, x), [int(v) for v in a["axes"]])
    root = net.unary("SQRT", net.binary("SUM", mean, net.scalar(float(a["epsilon"]), x)))
    return net.binary("PROD", net.binary("DIV", x, root), inputs[1])


def _per_channel(node: Node, axis: int) -> list[int]:
    shape = [1] * len(node.type.shape)
    shape[axis] = node.type.shape[axis]
    return shape


def _group_norm(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a = c.net, node.attributes
    shape = node.type.shape
    axis = int(a["channel_axis"]) % len(shape)
    if axis != 1 or sorted(int(v) % len(shape) for v in a["axes"]) != list(range(2, len(shape))):
        raise UnsupportedError("nn.group_norm over these axes")
    groups = int(a["num_groups"])
    together = (shape[0], groups, node.type.elements // (shape[0] * groups))
    found = normalized(net, net.reshape(inputs[0], together), [2], float(a["epsilon"]))
    found = net.reshape(found, shape)
    return _affine(net, found, inputs[1:], _per_channel(node, axis))


def _instance_norm(c: Values, node: Node, inputs: list[Any]) -> Any:
    a = node.attributes
    rank = len(node.type.shape)
    axes = sorted(int(v) % rank for v in a["axes"])
    found = normalized(c.net, inputs[0], axes, float(a["epsilon"]))
    return _affine(c.net, found, inputs[1:], _per_channel(node, int(a["channel_axis"]) % rank))


def _batch_norm(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a = c.net, node.attributes
    if a.get("training"):
        raise UnsupportedError("nn.batch_norm in training")
    x, mean, variance = inputs[0], inputs[3], inputs[4]
    shape = _per_channel(node, int(a["axis"]) % len(node.type.shape))
    apart = net.binary("SUB", x, net.reshape(mean, shape))
    epsilon = net.scalar(float(a["epsilon"]), variance)
    root = net.unary("SQRT", net.binary("SUM", variance, epsilon))
    found = net.binary("DIV", apart, net.reshape(root, shape))
    found = _affine(net, found, inputs[1:3], shape)
    return [found, mean, variance] if node.is_tuple else found


LAYERS: dict[str, Layer] = {
    **{op: _reduce(name) for op, name in REDUCTIONS.items()},
    "argmax": _arg(largest=True),
    "argmin": _arg(largest=False),
    "argsort": _sorted(indices=True),
    "cumsum": _cumsum,
    "nn.batch_norm": _batch_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.layer_norm": _layer_norm,
    "nn.rms_norm": _rms_norm,
    "sort": _sorted(indices=False),
    "std": _variance(root=True),
    "topk": _topk,
    "variance": _variance(root=False),
}
"""The function that adds the layers of each of these Relax operators."""
