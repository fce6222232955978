"""Adds layers of convolutions, products, pools, softmax, attention and images."""

from __future__ import annotations

from typing import Any

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.runtime.per_axis import pads, per_axis
from collage_engine.toolchains.tensorrt.values import Layer, Values

CONVOLUTIONS = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
DECONVOLUTIONS = tuple(f"{op}_transpose" for op in CONVOLUTIONS)
POOLS = tuple(f"nn.{kind}_pool{rank}d" for kind in ("max", "avg") for rank in (1, 2, 3))
ADAPTIVE = tuple(f"nn.adaptive_avg_pool{rank}d" for rank in (1, 2, 3))
"""Relax operators by the kind of layer that they become."""
SPACE = "DHW"
"""Names of the axes of space in layouts; operators of fewer dimensions use the last ones."""


def logical_layout(rank: int) -> str:
    """Returns NCW, NCHW or NCDHW, by the number of axes of space."""
    return "NC" + (SPACE[3 - rank :] if rank > 1 else "W")


def kernel_layouts(rank: int, transposed: bool) -> str:
    """Returns TensorRT's layout of a kernel: OIHW, or IOHW for transposed convolutions."""
    return ("IO" if transposed else "OI") + logical_layout(rank)[2:]


def _permuted(c: Values, x: Any, layout: str, wanted: str, op: str) -> Any:
    if sorted(layout) != sorted(wanted):
        raise UnsupportedError(f"{onnx_type(op)} in layout {layout}")
    return c.net.transpose(x, [layout.index(letter) for letter in wanted])


def _as_image(c: Values, x: Any) -> Any:
    """Returns a signal (…, W) as an image of one row."""
    return c.net.reshape(x, (*x.shape[:2], 1, *x.shape[2:]))


class _Kernel:
    """The weights in TensorRT's order.

    Constant ones are part of the layer, others an input of it.
    """

    def __init__(self, c: Values, node: Node, value: Any, wanted: str, signal: bool) -> None:
        layout = str(node.attributes.get("kernel_layout") or wanted)
        if sorted(layout) != sorted(wanted):
            raise UnsupportedError(f"{onnx_type(node.op)}: kernel layout {layout}")
        order = [layout.index(letter) for letter in wanted]
        known = c.array(node.inputs[1], c.net.name_of(value.dtype))
        self.tensor: Any = None
        self.weights = c.net.trt.Weights()
        if known is not None:
            known = known.transpose(order)
            if signal:
                known = known[:, :, None]
            self.shape: tuple[int, ...] = known.shape
            self.weights = c.net.weights(known)
        else:
            tensor = c.net.transpose(value, order)
            self.tensor = _as_image(c, tensor) if signal else tensor
            self.shape = tuple(self.tensor.shape)


def _convolution(transposed: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, a = c.net, node.attributes
        rank = len(node.type.shape) - 2
        logical = logical_layout(rank)
        layout = str(a.get("data_layout") or logical)
        x = _permuted(c, inputs[0], layout, logical, node.op)
        signal = rank == 1
        kernel = _Kernel(c, node, inputs[1], kernel_layouts(rank, transposed), signal)
        strides, dilation = (per_axis(a[k], rank) for k in ("strides", "dilation"))
        before, after = pads(a["padding"], rank)
        groups = int(a.get("groups", 1))
        more = per_axis(a.get("output_padding") or [0], rank) if transposed else (0,) * rank
        if signal:
            x = _as_image(c, x)
            strides, dilation, before = (1, *strides), (1, *dilation), (0, *before)
            after, more = (0, *after), (0, *more)
        after = tuple(e - m for e, m in zip(after, more, strict=True))
        beyond = tuple(max(0, -e) for e in after)
        channels = kernel.shape[1] * groups if transposed else kernel.shape[0]
        bias = net.trt.Weights()
        done = None if transposed or layout != logical else c.bias_behind(node, channels, x.dtype)
        if done is not None:
            bias = net.weights(done)
        add = net.network.add_deconvolution_nd if transposed else net.network.add_convolution_nd
        made = add(x, channels, tuple(kernel.shape[2:]), kernel.weights, bias)
        if made is None:
            raise UnsupportedError(f"{onnx_type(node.op)}: TensorRT refused it")
        if kernel.tensor is not None:
            made.set_input(1, kernel.tensor)
        made.stride_nd, made.dilation_nd = strides, dilation
        made.pre_padding, made.post_padding = before, tuple(max(0, e) for e in after)
        made.num_groups = groups
        y = net.out(made)
        if any(beyond):  # output padding beyond what the kernel reaches: nothing lands there
            size = [*y.shape[:2], *(s + b for s, b in zip(y.shape[2:], beyond, strict=True))]
            zero = net.const(0.0, net.name_of(y.dtype))
            y = net.slice(y, [0] * len(size), size, mode="FILL", fill=zero)
        if signal:
            y = net.reshape(y, (y.shape[0], y.shape[1], y.shape[3]))
        return _permuted(c, y, logical, str(a.get("out_layout") or layout), node.op)

    return layer


def _matmul(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, (a, b) = c.net, inputs
    if len(a.shape) == 1:
        a = net.reshape(a, (1, *a.shape))
    if len(b.shape) == 1:
        b = net.reshape(b, (*b.shape, 1))
    return net.reshape(net.matmul(a, b), node.type.shape)


# ---- pools -------------------------------------------------------------------------------------


def _pool(average: bool) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, a = c.net, node.attributes
        rank = len(node.type.shape) - 2
        logical = logical_layout(rank)
        layout = str(a.get("layout") or logical)
        x = _permuted(c, inputs[0], layout, logical, node.op)
        window, strides = (per_axis(a[k], rank) for k in ("pool_size", "strides"))
        before, after = pads(a["padding"], rank)
        if rank == 1:
            x = _as_image(c, x)
            window, strides = (1, *window), (1, *strides)
            before, after = (0, *before), (0, *after)
        kind = net.trt.PoolingType.AVERAGE if average else net.trt.PoolingType.MAX
        made = net.network.add_pooling_nd(x, kind, window)
        made.stride_nd, made.pre_padding, made.post_padding = strides, before, after
        if average:
            made.average_count_excludes_padding = not a.get("count_include_pad")
        if a.get("ceil_mode"):
            made.padding_mode = net.trt.PaddingMode.EXPLICIT_ROUND_UP
        y = net.out(made)
        if rank == 1:
            y = net.reshape(y, (y.shape[0], y.shape[1], y.shape[3]))
        return _permuted(c, y, logical, str(a.get("out_layout") or layout), node.op)

    return layer


def _adaptive(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, x = c.net, inputs[0]
    taken, given = tuple(x.shape[2:]), node.type.shape[2:]
    if all(g == 1 for g in given):
        return net.reduce("AVG", x, range(2, len(x.shape)))
    window = tuple(t // g for t, g in zip(taken, given, strict=True))
    if len(window) == 1:
        x, window = _as_image(c, x), (1, *window)
    made = net.network.add_pooling_nd(x, net.trt.PoolingType.AVERAGE, window)
    made.stride_nd = window
    return net.reshape(net.out(made), node.type.shape)


# ---- softmax and attention ---------------------------------------------------------------------


def _softmax(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.softmax(inputs[0], int(node.attributes.get("axis", -1)))


def _log_softmax(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Adds ``x − max − log Σ exp(x − max)``; the logarithm of a softmax would lose small values."""
    net, axis = c.net, [int(node.attributes.get("axis", -1))]
    apart = net.binary("SUB", inputs[0], net.reduce("MAX", inputs[0], axis))
    total = net.reduce("SUM", net.unary("EXP", apart), axis)
    return net.binary("SUB", apart, net.unary("LOG", total))


def _attention(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Adds ``softmax(q·kᵀ·scale + bias)·v``, with q, k, v as [batch, sequence, heads, width]."""
    net, a = c.net, node.attributes
    width = inputs[0].shape[-1]
    scale = a["scale"] if a.get("scale") is not None else width**-0.5
    q, v = (net.transpose(inputs[i], (0, 2, 1, 3)) for i in (0, 2))
    k = net.transpose(inputs[1], (0, 2, 3, 1))
    scores = net.matmul(net.binary("PROD", q, net.scalar(float(scale), q)), k)
    if len(inputs) > 3:
        scores = net.binary("SUM", scores, inputs[3])
    return net.transpose(net.matmul(net.softmax(scores, -1), v), (0, 2, 1, 3))


# ---- images ------------------------------------------------------------------------------------

ROUNDING = {
    "": "HALF_DOWN",
    "round": "HALF_DOWN",
    "round_prefer_floor": "HALF_DOWN",
    "round_prefer_ceil": "HALF_UP",
    "floor": "FLOOR",
    "ceil": "CEIL",
}
"""TensorRT's rounding of coordinates for each of Relax's."""
COORDINATES = {
    "half_pixel": "HALF_PIXEL",
    "pytorch_half_pixel": "HALF_PIXEL",
    "asymmetric": "ASYMMETRIC",
    "align_corners": "ALIGN_CORNERS",
}
"""TensorRT's transformation of coordinates for each of Relax's."""
METHODS = {"nearest_neighbor": "NEAREST", "linear": "LINEAR", "cubic": "CUBIC"}
"""TensorRT's interpolation for each method of Relax's resizing."""
SAMPLING = {"bilinear": "LINEAR", "nearest": "NEAREST", "bicubic": "CUBIC"}
"""TensorRT's interpolation for each method of Relax's grid_sample."""
BORDERS = {"zeros": "FILL", "border": "CLAMP", "reflection": "REFLECT"}
"""TensorRT's mode for what lies beyond the borders, for each of Relax's."""


def _resize(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a = c.net, node.attributes
    trt = net.trt
    made = net.network.add_resize(inputs[0])
    made.shape = tuple(node.type.shape)
    modes = getattr(trt, "InterpolationMode", None) or trt.ResizeMode
    made.resize_mode = getattr(modes, METHODS[a["method"]])
    how = str(a["coordinate_transformation_mode"])
    made.coordinate_transformation = getattr(trt.ResizeCoordinateTransformation, COORDINATES[how])
    if how == "pytorch_half_pixel":
        made.selector_for_single_pixel = trt.ResizeSelector.UPPER
    if METHODS[a["method"]] == "NEAREST":
        made.nearest_rounding = getattr(
            trt.ResizeRoundMode, ROUNDING[str(a.get("rounding_method") or "")]
        )
    if METHODS[a["method"]] == "CUBIC":
        made.cubic_coeff = float(a["cubic_alpha"])
        made.exclude_outside = bool(a["cubic_exclude"])
    return net.out(made)


def _grid_sample(c: Values, node: Node, inputs: list[Any]) -> Any:
    net, a = c.net, node.attributes
    grid = net.transpose(inputs[1], (0, 2, 3, 1))  # Relax: [N, 2, H, W]
    made = net.network.add_grid_sample(inputs[0], grid)
    modes = getattr(net.trt, "InterpolationMode", None) or net.trt.ResizeMode
    made.interpolation_mode = getattr(modes, SAMPLING[a["method"]])
    made.sample_mode = getattr(net.trt.SampleMode, BORDERS[a["padding_mode"]])
    made.align_corners = bool(a["align_corners"])
    return net.out(made)


LAYERS: dict[str, Layer] = {
    **dict.fromkeys(CONVOLUTIONS, _convolution(transposed=False)),
    **dict.fromkeys(DECONVOLUTIONS, _convolution(transposed=True)),
    **{op: _pool(".avg" in op) for op in POOLS},
    **dict.fromkeys(ADAPTIVE, _adaptive),
    "image.grid_sample": _grid_sample,
    "image.resize2d": _resize,
    "image.resize3d": _resize,
    "matmul": _matmul,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.log_softmax": _log_softmax,
    "nn.softmax": _softmax,
}
"""The function that adds the layers of each of these Relax operators."""


def floor_size(size: int, window: int, stride: int, padding: int) -> int:
    """Returns how many windows fit whole along an axis."""
    return (size + padding - window) // stride + 1
