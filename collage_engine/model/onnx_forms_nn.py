"""Writes ONNX forms of Relax's neural-network, image and quantisation operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.model.numpy_types import numpy_type
from collage_engine.model.onnx_builder import Form, Writer
from collage_engine.model.onnx_types import element_type
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node

_PLAIN_LAYOUTS = {"NCW", "NCHW", "NCDHW", "OIW", "OIHW", "OIDHW", "IOW", "IOHW", "IODHW"}


def _check_layouts(node: Node) -> None:
    for name in ("data_layout", "kernel_layout", "out_layout", "layout"):
        layout = node.attributes.get(name)
        if layout and layout not in _PLAIN_LAYOUTS:
            raise UnsupportedError(f"{node.op} in layout {layout} has no ONNX form")


def _scalar(w: Writer, value: float, node: Node) -> str:
    return w.const(value, numpy_type(node.type.dtype))


def _conv(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    _check_layouts(node)
    a = node.attributes
    w.add(
        "Conv",
        inputs,
        outputs[0],
        strides=a["strides"],
        pads=a["padding"],
        dilations=a["dilation"],
        group=a["groups"],
    )


def _conv_transpose(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    _check_layouts(node)
    a = node.attributes
    w.add(
        "ConvTranspose",
        inputs,
        outputs[0],
        strides=a["strides"],
        pads=a["padding"],
        dilations=a["dilation"],
        group=a["groups"],
        output_padding=a["output_padding"],
    )


def _matmul(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    kinds = [t.dtype for t in w.types(node)]
    if all(k in ("int8", "uint8") for k in kinds) and node.type.dtype == "int32":
        w.add("MatMulInteger", inputs, outputs[0])
    elif kinds != [node.type.dtype] * 2:
        raise UnsupportedError(f"matmul of {kinds[0]} to {node.type.dtype} has no ONNX form")
    else:
        w.add("MatMul", inputs, outputs[0])


def _pool(op: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        _check_layouts(node)
        a = node.attributes
        more: dict[str, Any] = {}
        if any(d != 1 for d in a["dilation"]):
            more["dilations"] = a["dilation"]
            if op == "AveragePool":
                w.need(19)
        if op == "AveragePool":
            more["count_include_pad"] = int(bool(a["count_include_pad"]))
        w.add(
            op,
            inputs,
            outputs[0],
            kernel_shape=a["pool_size"],
            strides=a["strides"],
            pads=a["padding"],
            ceil_mode=int(bool(a["ceil_mode"])),
            **more,
        )

    return form


def _adaptive_pool(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    _check_layouts(node)
    taken, given = w.types(node)[0].shape[2:], node.type.shape[2:]
    if all(g == 1 for g in given):
        w.add("GlobalAveragePool", inputs, outputs[0])
        return
    if any(t % g for t, g in zip(taken, given, strict=True)):
        raise UnsupportedError(f"{node.op} from {taken} to {given} has no ONNX form")
    kernel = [t // g for t, g in zip(taken, given, strict=True)]
    w.add("AveragePool", inputs, outputs[0], kernel_shape=kernel, strides=kernel)


def _gelu(approximate: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        w.need(20)
        w.add("Gelu", inputs, outputs[0], approximate=approximate)

    return form


def _silu(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add("Mul", [inputs[0], w.add("Sigmoid", inputs)], outputs[0])


def _softplus(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    beta = node.attributes.get("beta", 1.0)
    if beta == 1.0:
        w.add("Softplus", inputs, outputs[0])
        return
    scale = _scalar(w, beta, node)
    w.add("Div", [w.add("Softplus", [w.add("Mul", [inputs[0], scale])]), scale], outputs[0])


def _prelu(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    rank = len(node.type.shape)
    slope = w.types(node)[1]
    shape = [1] * rank
    shape[node.attributes["axis"] % rank] = slope.elements
    w.add("PRelu", [inputs[0], w.add("Reshape", [inputs[1], w.ints(shape)])], outputs[0])


def _pad(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    widths, value = a["pad_width"], a["pad_value"]
    pads = w.ints([*widths[0::2], *widths[1::2]])
    mode = {
        "constant": "constant",
        "reflect": "reflect",
        "replicate": "edge",
        "circular": "wrap",
    }.get(a["pad_mode"])
    if mode is None:
        raise UnsupportedError(f"nn.pad in mode {a['pad_mode']} has no ONNX form")
    if mode == "wrap":
        w.need(19)
    more = [_scalar(w, value, node)] if mode == "constant" else []
    w.add("Pad", [inputs[0], pads, *more], outputs[0], mode=mode)


def _normalized(w: Writer, data: str, axes: str, epsilon: str) -> str:
    """Writes (x − mean) / √(variance + ε) over some axes."""
    apart = w.add("Sub", [data, w.add("ReduceMean", [data, axes], keepdims=1)])
    variance = w.add("ReduceMean", [w.add("Mul", [apart, apart]), axes], keepdims=1)
    return w.add("Div", [apart, w.add("Sqrt", [w.add("Add", [variance, epsilon])])])


def _affine(w: Writer, value: str, parts: list[str], shape: list[int], output: str) -> None:
    """Writes a normalised value times a scale plus a shift, each brought to the shape.

    TVM applies both whatever the attributes "scale" and "center" say.
    """
    scale, shift = (w.add("Reshape", [part, w.ints(shape)]) for part in parts)
    w.add("Add", [w.add("Mul", [value, scale]), shift], output)


def _layer_norm(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    rank = len(node.type.shape)
    axes = sorted(x % rank for x in a["axes"])
    if axes == list(range(axes[0], rank)):
        w.add("LayerNormalization", inputs, outputs[0], axis=axes[0], epsilon=a["epsilon"])
        return
    shape = [e if i in axes else 1 for i, e in enumerate(node.type.shape)]
    found = _normalized(w, inputs[0], w.ints(axes), _scalar(w, a["epsilon"], node))
    _affine(w, found, inputs[1:], shape, outputs[0])


def _rms_norm(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    square = w.add("Mul", [inputs[0], inputs[0]])
    mean = w.add("ReduceMean", [square, w.ints(a["axes"])], keepdims=1)
    root = w.add("Sqrt", [w.add("Add", [mean, _scalar(w, a["epsilon"], node)])])
    w.add("Mul", [w.add("Div", [inputs[0], root]), inputs[1]], outputs[0])


def _per_channel(node: Node, axis: int) -> list[int]:
    shape = [1] * len(node.type.shape)
    shape[axis] = node.type.shape[axis]
    return shape


def _group_norm(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    rank = len(node.type.shape)
    axis = a["channel_axis"] % rank
    if axis != 1 or sorted(x % rank for x in a["axes"]) != list(range(2, rank)):
        raise UnsupportedError("nn.group_norm over these axes has no ONNX form")
    batch, groups = node.type.shape[0], a["num_groups"]
    grouped = w.add("Reshape", [inputs[0], w.ints([batch, groups, -1])])
    found = _normalized(w, grouped, w.ints([2]), _scalar(w, a["epsilon"], node))
    found = w.add("Reshape", [found, w.ints(node.type.shape)])
    _affine(w, found, inputs[1:], _per_channel(node, axis), outputs[0])


def _instance_norm(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    rank = len(node.type.shape)
    axis = a["channel_axis"] % rank
    axes = sorted(x % rank for x in a["axes"])
    if axis == 1 and axes == list(range(2, rank)):
        w.add("InstanceNormalization", inputs, outputs[0], epsilon=a["epsilon"])
        return
    found = _normalized(w, inputs[0], w.ints(axes), _scalar(w, a["epsilon"], node))
    _affine(w, found, inputs[1:], _per_channel(node, axis), outputs[0])


def _batch_norm(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    if a.get("training") or a["axis"] != 1:
        raise UnsupportedError("nn.batch_norm in training, or not over channels, has no ONNX form")
    w.add("BatchNormalization", inputs, outputs[0], epsilon=a["epsilon"])
    for source, output in zip(inputs[3:5], outputs[1:], strict=False):
        w.add("Identity", [source], output)


def _quantize(op: str) -> Form:
    def form(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
        types = w.types(node)
        small = node.type.dtype if op == "QuantizeLinear" else types[0].dtype
        if small not in ("int8", "uint8", "int32", "int16", "uint16"):
            raise UnsupportedError(f"{node.op} with {small} has no ONNX form")
        if small in ("int16", "uint16"):
            w.need(21)
        if types[1].dtype != "float32":
            w.need(19)
        axis = node.attributes["axis"] % max(len(types[0].shape), 1)
        zero = inputs[2]
        # ONNX wants the zero point to have the shape of the scale, and the small type.
        if types[2].dtype != small:
            zero = w.add("Cast", [zero], to=element_type(small))
        if types[2].shape != types[1].shape:
            zero = w.add("Expand", [zero, w.ints(types[1].shape)])
        w.add(op, [inputs[0], inputs[1], zero], outputs[0], axis=axis)

    return form


def _resize(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    if a["layout"] not in ("NCHW", "NCDHW"):
        raise UnsupportedError(f"{node.op} in layout {a['layout']} has no ONNX form")
    mode = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}[a["method"]]
    nearest = {"round": "round_prefer_floor", "": "round_prefer_floor"}.get(
        a["rounding_method"], a["rounding_method"]
    )
    more: dict[str, Any] = {}
    if mode == "nearest":
        more["nearest_mode"] = nearest
    if mode == "cubic":
        more = {"cubic_coeff_a": a["cubic_alpha"], "exclude_outside": int(a["cubic_exclude"])}
    how = a["coordinate_transformation_mode"]
    roi = ""
    if how == "tf_crop_and_resize":
        rank = len(node.type.shape)
        spatial = rank - 2
        box = list(a["roi"])
        if spatial == 3:  # TVM orders a 3-D box (w, h, d)
            box = [*box[2::-1], *box[:2:-1]]
        full = [0.0, 0.0, *box[:spatial], 1.0, 1.0, *box[spatial:]]
        roi = w.const(full, np.float32)
        more["extrapolation_value"] = a["extrapolation_value"]
    sizes = w.ints(node.type.shape)
    w.add(
        "Resize",
        [inputs[0], roi, "", sizes],
        outputs[0],
        mode=mode,
        coordinate_transformation_mode=how,
        **more,
    )


def _grid_sample(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    if a.get("layout") != "NCHW":
        raise UnsupportedError(f"{node.op} in layout {a.get('layout')} has no ONNX form")
    method = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}[a["method"]]
    grid = w.add("Transpose", [inputs[1]], perm=[0, 2, 3, 1])  # Relax: [N, 2, H, W]
    w.need(20)
    w.add(
        "GridSample",
        [inputs[0], grid],
        outputs[0],
        mode=method,
        padding_mode=a["padding_mode"],
        align_corners=int(bool(a["align_corners"])),
    )


def _pixel_shuffle(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    w.add(
        "DepthToSpace", inputs, outputs[0], blocksize=node.attributes["upscale_factor"], mode="CRD"
    )


def _attention(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    """Writes softmax(q·kᵀ·scale + bias)·v; q, k and v are [batch, sequence, heads, width]."""
    a = node.attributes
    if a.get("causal_mask") or a.get("window_size"):
        raise UnsupportedError("nn.attention with a causal mask has no ONNX form")
    width = w.types(node)[0].shape[-1]
    scale = a["scale"] if a.get("scale") is not None else width**-0.5
    q = w.add("Transpose", [inputs[0]], perm=[0, 2, 1, 3])
    k = w.add("Transpose", [inputs[1]], perm=[0, 2, 3, 1])
    v = w.add("Transpose", [inputs[2]], perm=[0, 2, 1, 3])
    scores = w.add("MatMul", [w.add("Mul", [q, _scalar(w, scale, node)]), k])
    if len(inputs) > 3:
        scores = w.add("Add", [scores, inputs[3]])
    found = w.add("MatMul", [w.add("Softmax", [scores], axis=-1), v])
    w.add("Transpose", [found], outputs[0], perm=[0, 2, 1, 3])


def _roi_align(w: Writer, node: Node, inputs: list[Any], outputs: list[str]) -> None:
    a = node.attributes
    _check_layouts(node)
    batch = w.add("Slice", [inputs[1], w.ints([0]), w.ints([1]), w.ints([1])])
    batch = w.add("Cast", [w.add("Squeeze", [batch, w.ints([1])])], to=element_type("int64"))
    boxes = w.add("Slice", [inputs[1], w.ints([1]), w.ints([5]), w.ints([1])])
    if a.get("aligned"):
        # The importer has subtracted the half pixel that ONNX subtracts again.
        boxes = w.add("Add", [boxes, _scalar(w, 0.5, node)])
    height, width = a["pooled_size"]
    w.add(
        "RoiAlign",
        [inputs[0], boxes, batch],
        outputs[0],
        mode="avg" if a["mode"] in ("avg", 0) else "max",
        output_height=height,
        output_width=width,
        sampling_ratio=max(a["sample_ratio"], 0),
        spatial_scale=a["spatial_scale"],
        coordinate_transformation_mode="half_pixel" if a.get("aligned") else "output_half_pixel",
    )


NN_FORMS: dict[str, Form] = {
    "dequantize": _quantize("DequantizeLinear"),
    "image.grid_sample": _grid_sample,
    "image.resize2d": _resize,
    "image.resize3d": _resize,
    "matmul": _matmul,
    "nn.adaptive_avg_pool1d": _adaptive_pool,
    "nn.adaptive_avg_pool2d": _adaptive_pool,
    "nn.adaptive_avg_pool3d": _adaptive_pool,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.avg_pool1d": _pool("AveragePool"),
    "nn.avg_pool2d": _pool("AveragePool"),
    "nn.avg_pool3d": _pool("AveragePool"),
    "nn.batch_norm": _batch_norm,
    "nn.conv1d": _conv,
    "nn.conv1d_transpose": _conv_transpose,
    "nn.conv2d": _conv,
    "nn.conv2d_transpose": _conv_transpose,
    "nn.conv3d": _conv,
    "nn.conv3d_transpose": _conv_transpose,
    "nn.gelu": _gelu("none"),
    "nn.gelu_tanh": _gelu("tanh"),
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.layer_norm": _layer_norm,
    "nn.max_pool1d": _pool("MaxPool"),
    "nn.max_pool2d": _pool("MaxPool"),
    "nn.max_pool3d": _pool("MaxPool"),
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "nn.prelu": _prelu,
    "nn.rms_norm": _rms_norm,
    "nn.silu": _silu,
    "nn.softplus": _softplus,
    "quantize": _quantize("QuantizeLinear"),
    "vision.roi_align": _roi_align,
}
