"""Converts ONNX to Relax where TVM's converters lower to TE or blow one node up to many.

Each takes (block builder, inputs, attributes, opset) and returns an expression, or None to
leave the node to TVM's converter. Inputs are variables or constants; shapes are static.

In Gather, scatter and Slice negative indices become positive with the known extents. TVM's
converters read the extents when the model runs (shape_of, take, add, less, where for one Gather),
and lose the output's size doing so.

Relax's image operators sample images only, by the ratio of the sizes, and TVM's converter looks at
nothing else. A Resize that samples otherwise stays one of ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst

from collage_engine.model.einsum import matmul_plan
from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS

Converter = Callable[[Any, Any, dict[str, Any], int], Any]
"""A function from a block builder, the inputs, attributes and opset of a node to its expression, or
to None, which leaves the node to TVM's converter."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a Relax value, all of whose sizes are known."""
    return tuple(int(d) for d in value.ty.shape.values)


def dtype_of(value: Any) -> str:
    """Return the element type of a Relax value."""
    return str(value.ty.dtype.dtype)


def values_of(value: Any) -> np.ndarray | None:
    """Return a constant's values; None when the value is no constant, or absent."""
    return value.value.numpy() if isinstance(value, GenericConst) else None


def text_of(attributes: dict[str, Any], name: str, default: str) -> str:
    """Return a text attribute of an ONNX node, or the default when it is absent."""
    value = attributes.get(name, default)
    return value.decode() if isinstance(value, bytes) else value


def _positive(indices: Any, extent: np.ndarray) -> Any:
    """Add ``extent`` (a number, or one per coordinate) to the negative ones of some indices."""
    kind = dtype_of(indices)
    if kind.startswith("uint"):
        return indices
    value = values_of(indices)
    if value is not None:
        if not (value < 0).any():
            return indices
        return relax.const(np.where(value < 0, value + extent, value).astype(kind), kind)
    wide = relax.const(np.asarray(extent).astype(kind), kind)
    less = relax.op.less(indices, relax.const(0, kind))
    return relax.op.where(less, relax.op.add(indices, wide), indices)


def _gather(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Gather to one operator: known indices are made positive, others wrap."""
    data, indices = inputs[0], inputs[1]
    axis = attributes.get("axis", 0)
    if values_of(indices) is None:
        return relax.op.take(data, indices, axis, mode="wrap")
    return relax.op.take(data, _positive(indices, np.array(shape_of(data)[axis])), axis)


def _gather_elements(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    axis = attributes.get("axis", 0)
    extent = np.array(shape_of(inputs[0])[axis])
    return relax.op.gather_elements(inputs[0], _positive(inputs[1], extent), axis)


def _gather_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    batch = attributes.get("batch_dims", 0)
    width = shape_of(inputs[1])[-1]
    extents = np.array(shape_of(inputs[0])[batch : batch + width])
    return relax.op.gather_nd(inputs[0], _positive(inputs[1], extents), batch)


def _slice(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Slice before opset 10, where bounds are attributes that TVM's converter ignores."""
    if opset >= 10:
        return None
    starts, ends = attributes["starts"], attributes["ends"]
    rank = len(shape_of(inputs[0]))
    axes = [a % rank for a in attributes.get("axes", range(len(starts)))]
    return relax.op.strided_slice(inputs[0], axes, list(starts), list(ends), [1] * len(axes))


def _reduction(attributes: dict[str, Any]) -> str:
    how = attributes.get("reduction", b"none")
    how = how.decode() if isinstance(how, bytes) else how
    return "update" if how == "none" else how


def _scatter_elements(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    shape, reached = list(shape_of(inputs[0])), list(shape_of(inputs[1]))
    axis = attributes.get("axis", 0) % len(shape)
    indices = _positive(inputs[1], np.array(shape[axis]))
    del shape[axis], reached[axis]
    if shape != reached:  # TVM's kernel takes both for equally long but along the axis
        raise ValueError("indices that reach a part of the data only are not supported")
    how = _reduction(attributes)
    return relax.op.scatter_elements(inputs[0], indices, inputs[2], axis=axis, reduction=how)


def _scatter_nd(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    extents = np.array(shape_of(inputs[0])[: shape_of(inputs[1])[-1]])
    indices = _positive(inputs[1], extents)
    return relax.op.scatter_nd(inputs[0], indices, inputs[2], _reduction(attributes))


def _one_hot(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    depth, values = values_of(inputs[1]), values_of(inputs[2])
    if depth is None or values is None:
        raise ValueError("a depth or values known only when the model runs are not supported")
    extent, kind = int(depth.reshape(-1)[0]), dtype_of(inputs[2])
    off, on = (relax.prim_value(tirx.const(v.item(), kind)) for v in values)
    indices = inputs[0]
    if not dtype_of(indices).startswith(("int", "uint")):
        indices = relax.op.astype(indices, "int64")
    indices = bb.normalize(indices)
    axis = attributes.get("axis", -1) % (len(shape_of(indices)) + 1)
    return relax.op.one_hot(_positive(indices, np.array(extent)), on, off, extent, axis)


def _reverse_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    axes = attributes.get("time_axis", 0), attributes.get("batch_axis", 1)
    return relax.op.reverse_sequence(inputs[0], inputs[1], *axes)


INDEX_CONVERTERS: dict[str, Converter] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
}


_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_COORDINATES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
)


class _OtherSampling(ValueError):
    """Relax's operators compute something else."""


def _numbers(value: Any, attributes: dict[str, Any], rest: Sequence[float]) -> list[float]:
    """Scales or sizes for every dimension (since opset 18 they may be for some ``axes``)."""
    known = values_of(value)
    if known is None:
        raise _OtherSampling("sizes that are known only when the model runs are not supported")
    full = list(rest)
    axes = attributes.get("axes", range(len(full)))
    for axis, number in zip(axes, known.tolist(), strict=True):
        full[axis % len(full)] = number
    return full


def _scaled(shape: Sequence[int], factors: Sequence[float]) -> list[int]:
    """Return the sizes that factors give.

    Raises:
        _OtherSampling: They are rounded, so that their ratio is not the factor.
    """
    exact = [
        float(np.float32(size) * np.float32(by)) for size, by in zip(shape, factors, strict=True)
    ]
    sizes = [int(np.floor(size)) for size in exact]
    if any(abs(e - s) > 1e-3 for e, s in zip(exact, sizes, strict=True)):
        raise _OtherSampling("it samples by factors that are not the ratio of the sizes")
    return sizes


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    x = inputs[0]
    shape = shape_of(x)
    policy = text_of(attributes, "keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" or attributes.get("antialias", 0):
        raise _OtherSampling("it keeps the ratio of the sides, or smooths")
    if opset >= 11 and inputs[3] is not None:
        sizes = [int(size) for size in _numbers(inputs[3], attributes, shape)]
    else:
        factors = inputs[1] if opset < 11 else inputs[2]
        sizes = _scaled(shape, _numbers(factors, attributes, [1.0] * len(shape)))
    return _image(x, sizes, attributes, opset)


def _upsample(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    shape = shape_of(inputs[0])
    factors = attributes["scales"] if opset < 9 else _numbers(inputs[1], {}, shape)
    return _image(inputs[0], _scaled(shape, factors), attributes, opset)


def _image(x: Expr, sizes: list[int], attributes: dict[str, Any], opset: int) -> Any:
    """Return the image operator.

    Raises:
        _OtherSampling: It samples otherwise.
    """
    shape, spatial = shape_of(x), sizes[2:]
    mode = text_of(attributes, "mode", "nearest")
    if opset < 11:
        how, rounding = "asymmetric", "floor"
        shrinks = any(size < extent for size, extent in zip(sizes, shape, strict=True))
        if shrinks and mode == "nearest":
            raise _OtherSampling("it rounds up where it shrinks")
    else:
        how = text_of(attributes, "coordinate_transformation_mode", "half_pixel")
        rounding = text_of(attributes, "nearest_mode", "round_prefer_floor")
    if how not in _COORDINATES:
        raise _OtherSampling(f"coordinate_transformation_mode {how} is not supported")
    rank = len(shape)
    # TVM divides by a new extent less one, and a signal is an image one pixel high.
    divides_by_zero = how == "align_corners" and (rank == 3 or 1 in spatial)
    if rank not in (3, 4, 5) or tuple(sizes[:2]) != shape[:2] or divides_by_zero:
        raise _OtherSampling("Relax resizes images of more than one pixel only")
    if rank == 3 and mode == "cubic":
        raise _OtherSampling("Relax has no cubic signals")
    common: dict[str, Any] = {
        "method": _METHODS[mode],
        "coordinate_transformation_mode": how,
        "rounding_method": rounding,
        "cubic_alpha": attributes.get("cubic_coeff_a", -0.75),
        "cubic_exclude": int(attributes.get("exclude_outside", 0)),
    }
    if rank == 5:
        return relax.op.image.resize3d(
            x, relax.ShapeExpr(spatial), roi=[0.0] * 6, layout="NCDHW", **common
        )
    if rank == 3:
        x = relax.op.expand_dims(x, [2])
        spatial = [1, *spatial]
    y = relax.op.image.resize2d(x, relax.ShapeExpr(spatial), roi=[0.0] * 4, layout="NCHW", **common)
    return relax.op.squeeze(y, [2]) if rank == 3 else y


RESIZE_CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}


def _clip(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Clip: to clip for two known bounds, else to maximum or minimum."""
    x = inputs[0]
    kind = dtype_of(x)
    if opset < 11:
        given = [attributes.get("min"), attributes.get("max")]
        bounds = [None if g is None else relax.const(g, kind) for g in given]
    else:
        bounds = [inputs[1], inputs[2]]
    limits: list[float | None] = []
    for index, bound in enumerate(bounds):
        values = None if bound is None else values_of(bound)
        number = None if values is None else values.reshape(-1)[0].item()
        if number is not None and number != number:
            bounds[index] = number = None  # NaN means none, as in ONNX Runtime
        limits.append(number)
    if None not in limits:
        wrap = float if kind.startswith(("float", "bfloat")) else int
        return relax.op.clip(x, *(wrap(k) for k in limits if k is not None))
    for op, bound in zip((relax.op.maximum, relax.op.minimum), bounds, strict=True):
        if bound is not None:
            x = op(x, bound)
    return x


def _cast(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    target = str(helper.tensor_dtype_to_np_dtype(attributes["to"]))
    return inputs[0] if dtype_of(inputs[0]) == target else relax.op.astype(inputs[0], target)


def _unsqueeze(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    axes = attributes.get("axes") if opset < 13 else values_of(inputs[1])
    if axes is None:
        return None
    return relax.op.expand_dims(inputs[0], [int(a) for a in axes])


def _softmax_with(op: Callable[..., Any]) -> Converter:
    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
    ) -> Expr | None:
        axis = attributes.get("axis", 1)
        alone = all(extent == 1 for extent in shape_of(inputs[0])[axis + 1 :])
        return op(inputs[0], axis=axis) if opset < SOFTMAX_OF_ONE_AXIS and alone else None

    return convert


def _pairwise(op: Callable[..., Any]) -> Converter:
    def convert(
        bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
    ) -> Expr | None:
        result = inputs[0]
        for other in inputs[1:]:
            result = op(result, other)
        return result

    return convert


def _mean(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    total = _pairwise(relax.op.add)(bb, inputs, attributes, opset)
    if len(inputs) == 1:
        return total
    return relax.op.divide(total, relax.const(len(inputs), dtype_of(inputs[0])))


def _tile(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    repeats = values_of(inputs[1])
    return None if repeats is None else relax.op.tile(inputs[0], [int(r) for r in repeats])


def _pad(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    rank = len(shape_of(inputs[0]))
    if opset < 11:
        pads, value = list(attributes["pads"]), attributes.get("value", 0.0)
        axes = list(range(rank))
    else:
        operands = [None if inputs[i] is None else values_of(inputs[i]) for i in (1, 2, 3)]
        if any(inputs[i] is not None and operands[i - 1] is None for i in (1, 2, 3)):
            raise ValueError("pads that are known only when the model runs are not supported")
        widths, fill, which = operands
        if widths is None:
            return None
        pads = widths.tolist()
        value = 0.0 if fill is None else fill.reshape(-1)[0].item()
        axes = list(range(rank)) if which is None else [int(a) % rank for a in which]
    mode = {
        "constant": "constant",
        "edge": "replicate",
        "reflect": "reflect",
        "wrap": "circular",
    }.get(text_of(attributes, "mode", "constant"))
    if mode is None or any(p < 0 for p in pads):
        return None
    around = [0] * (2 * rank)
    half = len(pads) // 2
    for number, axis in enumerate(axes):
        around[2 * axis], around[2 * axis + 1] = int(pads[number]), int(pads[half + number])
    return relax.op.nn.pad(inputs[0], around, mode, float(value))


def _power(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Pow: squares and roots as what they are; exponents in the base's type."""
    base, exponent = inputs[0], inputs[1]
    kind = dtype_of(base)
    value = values_of(exponent)
    if value is not None and value.size == 1 and len(value.shape) <= len(shape_of(base)):
        number = float(value.reshape(-1)[0])
        if number == 2.0:
            return relax.op.multiply(base, base)
        if number == 0.5 and kind.startswith("float"):
            return relax.op.sqrt(base)
    if dtype_of(exponent) == kind:
        return relax.op.power(base, exponent)
    if kind.startswith("float"):
        if value is not None:
            return relax.op.power(base, relax.const(value.astype(kind), kind))
        return relax.op.power(base, relax.op.astype(exponent, kind))
    wide = relax.op.power(relax.op.astype(base, dtype_of(exponent)), exponent)
    return relax.op.astype(wide, kind)


def _isinf(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    x = inputs[0]
    result = relax.op.isinf(x)
    zero = relax.const(0, dtype_of(x))
    if not attributes.get("detect_negative", 1):
        result = relax.op.logical_and(result, relax.op.greater(x, zero))
    if not attributes.get("detect_positive", 1):
        result = relax.op.logical_and(result, relax.op.less(x, zero))
    return result


def _space_to_depth(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    if text_of(attributes, "mode", "DCR") != "CRD":
        return None
    n, c, h, w = shape_of(inputs[0])
    size = attributes["blocksize"]
    x = relax.op.reshape(inputs[0], (n, c, h // size, size, w // size, size))
    x = relax.op.permute_dims(x, [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(x, (n, c * size * size, h // size, w // size))


def _einsum(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Einsum: products of two tensors to matmul, which toolchains know.

    Others stay einsum.
    """
    equation = text_of(attributes, "equation", "").replace(" ", "")
    plan = matmul_plan(equation, [shape_of(i) for i in inputs])
    if plan is None:
        return relax.op.einsum(list(inputs), equation)
    a = relax.op.reshape(relax.op.permute_dims(inputs[0], plan.left), plan.left_shape)
    b = relax.op.reshape(relax.op.permute_dims(inputs[1], plan.right), plan.right_shape)
    product = relax.op.reshape(relax.op.matmul(a, b), plan.shape)
    return relax.op.permute_dims(product, plan.order)


def _cumsum(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    if not attributes.get("reverse", 0):
        return None
    axis = values_of(inputs[1])
    if axis is None:
        return None
    axis_number = int(axis.reshape(-1)[0])
    turned = relax.op.flip(inputs[0], axis_number)
    exclusive = bool(attributes.get("exclusive", 0))
    return relax.op.flip(relax.op.cumsum(turned, axis_number, exclusive=exclusive), axis_number)


def _mean_variance_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert MeanVarianceNormalization: distances from the mean by their deviation plus 1e-9.

    TVM's own converter takes the difference of two squares, which cancel each other far from zero,
    and divides equal values by zero, as ONNX Runtime does; by the standard they give 0.
    """
    x, axes = inputs[0], list(attributes.get("axes", (0, 2, 3)))
    apart = bb.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
    variance = relax.op.mean(relax.op.multiply(apart, apart), axes, keepdims=True)
    deviation = relax.op.add(relax.op.sqrt(variance), relax.const(1e-9, dtype_of(x)))
    return relax.op.divide(apart, deviation)


def _elu(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Convert Elu to relu(x) − α·relu(1 − eˣ), in x's own type."""
    x, kind = inputs[0], dtype_of(inputs[0])
    below = relax.op.nn.relu(relax.op.subtract(relax.const(1.0, kind), relax.op.exp(x)))
    alpha = relax.const(-float(attributes.get("alpha", 1.0)), kind)
    return relax.op.add(relax.op.multiply(alpha, below), relax.op.nn.relu(x))


def _selu(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    alpha = attributes.get("alpha", 1.67326319217681884765625)
    gamma = attributes.get("gamma", 1.05070102214813232421875)
    y = _elu(bb, inputs, {"alpha": alpha}, opset)
    return relax.op.multiply(relax.const(gamma, dtype_of(inputs[0])), y)


CONVERTERS: dict[str, Converter] = {
    **INDEX_CONVERTERS,
    **RESIZE_CONVERTERS,
    "Cast": _cast,
    "Clip": _clip,
    "CumSum": _cumsum,
    "Einsum": _einsum,
    "Elu": _elu,
    "IsInf": _isinf,
    "LogSoftmax": _softmax_with(relax.op.nn.log_softmax),
    "Max": _pairwise(relax.op.maximum),
    "Mean": _mean,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "Min": _pairwise(relax.op.minimum),
    "Pad": _pad,
    "Pow": _power,
    "Selu": _selu,
    "Softmax": _softmax_with(relax.op.nn.softmax),
    "SpaceToDepth": _space_to_depth,
    "Sum": _pairwise(relax.op.add),
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
}

USABLE_OUTPUTS = {
    "AveragePool": 1,
    "BatchNormalization": 1,
    "EmbedLayerNormalization": 1,
    "LayerNormalization": 1,
    "MaxPool": 1,
    "SkipLayerNormalization": 1,
}
"""How many of a node's outputs the importer makes right, by operator; TVM's converters give
placeholders for the rest."""
