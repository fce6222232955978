"""Converts ONNX to Relax where TVM's converters lower to TE or blow one node up to many.

Each takes an ``OnnxNode`` and returns an expression, or None to leave the node to TVM's converter.
Shapes are static.

In Gather, scatter and Slice negative indices become positive with the known extents. TVM's
converters read the extents when the model runs (shape_of, take, add, less, where for one Gather),
and lose the output's size doing so.

Relax's image operators sample images only, by the ratio of the sizes, and TVM's converter looks at
nothing else. A Resize that samples otherwise stays one of ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax, tirx
from tvm.ir import Expr, GenericConst

from collage_engine.model.einsum import matmul_plan
from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS


@dataclass(frozen=True)
class OnnxNode:
    """An ONNX node that is converted, with the Relax values that it reads."""

    builder: relax.BlockBuilder
    inputs: Sequence[Any]
    """Variables and constants; None for an input that is left out."""
    attributes: Mapping[str, Any]
    opset: int

    def text(self, name: str, default: str) -> str:
        """Return a text attribute, or the default where it is absent."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value


Converter = Callable[[OnnxNode], Any]
"""A function from a node to its expression, or to None, which leaves it to TVM's converter."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Return the shape of a Relax value, all of whose sizes are known."""
    return tuple(int(d) for d in value.ty.shape.values)


def dtype_of(value: Any) -> str:
    """Return the element type of a Relax value."""
    return str(value.ty.dtype.dtype)


def values_of(value: Any) -> np.ndarray | None:
    """Return a constant's values; None when the value is no constant, or absent."""
    return value.value.numpy() if isinstance(value, GenericConst) else None


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


def _gather(node: OnnxNode) -> Expr | None:
    """Convert Gather to one operator: known indices are made positive, others wrap."""
    data, indices = node.inputs[0], node.inputs[1]
    axis = node.attributes.get("axis", 0)
    if values_of(indices) is None:
        return relax.op.take(data, indices, axis, mode="wrap")
    return relax.op.take(data, _positive(indices, np.array(shape_of(data)[axis])), axis)


def _gather_elements(node: OnnxNode) -> Expr | None:
    axis = node.attributes.get("axis", 0)
    extent = np.array(shape_of(node.inputs[0])[axis])
    return relax.op.gather_elements(node.inputs[0], _positive(node.inputs[1], extent), axis)


def _gather_nd(node: OnnxNode) -> Expr | None:
    batch = node.attributes.get("batch_dims", 0)
    width = shape_of(node.inputs[1])[-1]
    extents = np.array(shape_of(node.inputs[0])[batch : batch + width])
    return relax.op.gather_nd(node.inputs[0], _positive(node.inputs[1], extents), batch)


def _slice(node: OnnxNode) -> Expr | None:
    """Convert Slice before opset 10, where bounds are attributes that TVM's converter ignores."""
    if node.opset >= 10:
        return None
    starts, ends = node.attributes["starts"], node.attributes["ends"]
    rank = len(shape_of(node.inputs[0]))
    axes = [a % rank for a in node.attributes.get("axes", range(len(starts)))]
    return relax.op.strided_slice(node.inputs[0], axes, list(starts), list(ends), [1] * len(axes))


def _reduction(node: OnnxNode) -> str:
    how = node.text("reduction", "none")
    return "update" if how == "none" else how


def _scatter_elements(node: OnnxNode) -> Expr | None:
    shape, reached = list(shape_of(node.inputs[0])), list(shape_of(node.inputs[1]))
    axis = node.attributes.get("axis", 0) % len(shape)
    indices = _positive(node.inputs[1], np.array(shape[axis]))
    del shape[axis], reached[axis]
    if shape != reached:  # TVM's kernel takes both for equally long but along the axis
        raise ValueError("indices that reach a part of the data only are not supported")
    how = _reduction(node)
    return relax.op.scatter_elements(
        node.inputs[0], indices, node.inputs[2], axis=axis, reduction=how
    )


def _scatter_nd(node: OnnxNode) -> Expr | None:
    extents = np.array(shape_of(node.inputs[0])[: shape_of(node.inputs[1])[-1]])
    indices = _positive(node.inputs[1], extents)
    return relax.op.scatter_nd(node.inputs[0], indices, node.inputs[2], _reduction(node))


def _one_hot(node: OnnxNode) -> Expr | None:
    depth, values = values_of(node.inputs[1]), values_of(node.inputs[2])
    if depth is None or values is None:
        raise ValueError("a depth or values known only when the model runs are not supported")
    extent, kind = int(depth.reshape(-1)[0]), dtype_of(node.inputs[2])
    off, on = (relax.prim_value(tirx.const(v.item(), kind)) for v in values)
    indices = node.inputs[0]
    if not dtype_of(indices).startswith(("int", "uint")):
        indices = relax.op.astype(indices, "int64")
    indices = node.builder.normalize(indices)
    axis = node.attributes.get("axis", -1) % (len(shape_of(indices)) + 1)
    return relax.op.one_hot(_positive(indices, np.array(extent)), on, off, extent, axis)


def _reverse_sequence(node: OnnxNode) -> Expr | None:
    axes = node.attributes.get("time_axis", 0), node.attributes.get("batch_axis", 1)
    return relax.op.reverse_sequence(node.inputs[0], node.inputs[1], *axes)


_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_COORDINATES = (
    "half_pixel",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
)


def _numbers(value: Any, attributes: Mapping[str, Any], rest: Sequence[float]) -> list[float]:
    """Scales or sizes for every dimension (since opset 18 they may be for some ``axes``)."""
    known = values_of(value)
    if known is None:
        raise ValueError("sizes that are known only when the model runs are not supported")
    full = list(rest)
    axes = attributes.get("axes", range(len(full)))
    for axis, number in zip(axes, known.tolist(), strict=True):
        full[axis % len(full)] = number
    return full


def _scaled(shape: Sequence[int], factors: Sequence[float]) -> list[int]:
    """Return the sizes that factors give.

    Raises:
        ValueError: They are rounded, so that their ratio is not the factor.
    """
    exact = [
        float(np.float32(size) * np.float32(by)) for size, by in zip(shape, factors, strict=True)
    ]
    sizes = [int(np.floor(size)) for size in exact]
    if any(abs(e - s) > 1e-3 for e, s in zip(exact, sizes, strict=True)):
        raise ValueError("it samples by factors that are not the ratio of the sizes")
    return sizes


def _resize(node: OnnxNode) -> Expr | None:
    x = node.inputs[0]
    shape = shape_of(x)
    policy = node.text("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch" or node.attributes.get("antialias", 0):
        raise ValueError("it keeps the ratio of the sides, or smooths")
    if node.opset >= 11 and node.inputs[3] is not None:
        sizes = [int(size) for size in _numbers(node.inputs[3], node.attributes, shape)]
    else:
        factors = node.inputs[1] if node.opset < 11 else node.inputs[2]
        sizes = _scaled(shape, _numbers(factors, node.attributes, [1.0] * len(shape)))
    return _image(node, sizes)


def _upsample(node: OnnxNode) -> Expr | None:
    shape = shape_of(node.inputs[0])
    factors = node.attributes["scales"] if node.opset < 9 else _numbers(node.inputs[1], {}, shape)
    return _image(node, _scaled(shape, factors))


def _image(node: OnnxNode, sizes: list[int]) -> Any:
    """Return the image operator.

    Raises:
        ValueError: It samples otherwise.
    """
    x = node.inputs[0]
    shape, spatial = shape_of(x), sizes[2:]
    mode = node.text("mode", "nearest")
    if node.opset < 11:
        how, rounding = "asymmetric", "floor"
        shrinks = any(size < extent for size, extent in zip(sizes, shape, strict=True))
        if shrinks and mode == "nearest":
            raise ValueError("it rounds up where it shrinks")
    else:
        how = node.text("coordinate_transformation_mode", "half_pixel")
        rounding = node.text("nearest_mode", "round_prefer_floor")
    if how not in _COORDINATES:
        raise ValueError(f"coordinate_transformation_mode {how} is not supported")
    rank = len(shape)
    # TVM divides by a new extent less one, and a signal is an image one pixel high.
    divides_by_zero = how == "align_corners" and (rank == 3 or 1 in spatial)
    if rank not in (3, 4, 5) or tuple(sizes[:2]) != shape[:2] or divides_by_zero:
        raise ValueError("Relax resizes images of more than one pixel only")
    if rank == 3 and mode == "cubic":
        raise ValueError("Relax has no cubic signals")
    common: dict[str, Any] = {
        "method": _METHODS[mode],
        "coordinate_transformation_mode": how,
        "rounding_method": rounding,
        "cubic_alpha": node.attributes.get("cubic_coeff_a", -0.75),
        "cubic_exclude": int(node.attributes.get("exclude_outside", 0)),
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


def _clip(node: OnnxNode) -> Expr | None:
    """Convert Clip: to clip for two known bounds, else to maximum or minimum."""
    x = node.inputs[0]
    kind = dtype_of(x)
    if node.opset < 11:
        given = [node.attributes.get("min"), node.attributes.get("max")]
        bounds = [None if g is None else relax.const(g, kind) for g in given]
    else:
        bounds = [node.inputs[1], node.inputs[2]]
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


def _cast(node: OnnxNode) -> Expr | None:
    target = str(helper.tensor_dtype_to_np_dtype(node.attributes["to"]))
    return (
        node.inputs[0]
        if dtype_of(node.inputs[0]) == target
        else relax.op.astype(node.inputs[0], target)
    )


def _unsqueeze(node: OnnxNode) -> Expr | None:
    axes = node.attributes.get("axes") if node.opset < 13 else values_of(node.inputs[1])
    if axes is None:
        return None
    return relax.op.expand_dims(node.inputs[0], [int(a) for a in axes])


def _softmax_with(op: Callable[..., Any]) -> Converter:
    def convert(node: OnnxNode) -> Expr | None:
        axis = node.attributes.get("axis", 1)
        alone = all(extent == 1 for extent in shape_of(node.inputs[0])[axis + 1 :])
        return op(node.inputs[0], axis=axis) if node.opset < SOFTMAX_OF_ONE_AXIS and alone else None

    return convert


def _of_two(op: Callable[..., Any]) -> Converter:
    """Return the converter of an operator that reads two values: clean-up makes chains of more."""
    return lambda node: op(*node.inputs)


def _mean(node: OnnxNode) -> Expr | None:
    total = reduce(relax.op.add, node.inputs)
    return relax.op.divide(total, relax.const(len(node.inputs), dtype_of(node.inputs[0])))


def _tile(node: OnnxNode) -> Expr | None:
    repeats = values_of(node.inputs[1])
    return None if repeats is None else relax.op.tile(node.inputs[0], [int(r) for r in repeats])


def _pad(node: OnnxNode) -> Expr | None:
    rank = len(shape_of(node.inputs[0]))
    if node.opset < 11:
        pads, value = list(node.attributes["pads"]), node.attributes.get("value", 0.0)
        axes = list(range(rank))
    else:
        operands = [
            None if node.inputs[i] is None else values_of(node.inputs[i]) for i in (1, 2, 3)
        ]
        if any(node.inputs[i] is not None and operands[i - 1] is None for i in (1, 2, 3)):
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
    }.get(node.text("mode", "constant"))
    if mode is None or any(p < 0 for p in pads):
        return None
    around = [0] * (2 * rank)
    half = len(pads) // 2
    for number, axis in enumerate(axes):
        around[2 * axis], around[2 * axis + 1] = int(pads[number]), int(pads[half + number])
    return relax.op.nn.pad(node.inputs[0], around, mode, float(value))


def _power(node: OnnxNode) -> Expr | None:
    """Convert Pow: squares and roots as what they are; exponents in the base's type."""
    base, exponent = node.inputs[0], node.inputs[1]
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


def _isinf(node: OnnxNode) -> Expr | None:
    x = node.inputs[0]
    result = relax.op.isinf(x)
    zero = relax.const(0, dtype_of(x))
    if not node.attributes.get("detect_negative", 1):
        result = relax.op.logical_and(result, relax.op.greater(x, zero))
    if not node.attributes.get("detect_positive", 1):
        result = relax.op.logical_and(result, relax.op.less(x, zero))
    return result


def _space_to_depth(node: OnnxNode) -> Expr | None:
    if node.text("mode", "DCR") != "CRD":
        return None
    n, c, h, w = shape_of(node.inputs[0])
    size = node.attributes["blocksize"]
    x = relax.op.reshape(node.inputs[0], (n, c, h // size, size, w // size, size))
    x = relax.op.permute_dims(x, [0, 1, 3, 5, 2, 4])
    return relax.op.reshape(x, (n, c * size * size, h // size, w // size))


def _einsum(node: OnnxNode) -> Expr | None:
    """Convert Einsum: products of two tensors to matmul, which toolchains know.

    Others stay einsum.
    """
    equation = node.text("equation", "").replace(" ", "")
    plan = matmul_plan(equation, [shape_of(i) for i in node.inputs])
    if plan is None:
        return relax.op.einsum(list(node.inputs), equation)
    a = relax.op.reshape(relax.op.permute_dims(node.inputs[0], plan.left), plan.left_shape)
    b = relax.op.reshape(relax.op.permute_dims(node.inputs[1], plan.right), plan.right_shape)
    product = relax.op.reshape(relax.op.matmul(a, b), plan.shape)
    return relax.op.permute_dims(product, plan.order)


def _mean_variance_normalization(node: OnnxNode) -> Expr | None:
    """Convert MeanVarianceNormalization: distances from the mean by their deviation plus 1e-9.

    TVM's own converter takes the difference of two squares, which cancel each other far from zero,
    and divides equal values by zero, as ONNX Runtime does; by the standard they give 0.
    """
    x, axes = node.inputs[0], list(node.attributes.get("axes", (0, 2, 3)))
    apart = node.builder.emit(relax.op.subtract(x, relax.op.mean(x, axes, keepdims=True)))
    variance = relax.op.mean(relax.op.multiply(apart, apart), axes, keepdims=True)
    deviation = relax.op.add(relax.op.sqrt(variance), relax.const(1e-9, dtype_of(x)))
    return relax.op.divide(apart, deviation)


CONVERTERS: dict[str, Converter] = {
    "Cast": _cast,
    "Clip": _clip,
    "Einsum": _einsum,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "IsInf": _isinf,
    "LogSoftmax": _softmax_with(relax.op.nn.log_softmax),
    "Max": _of_two(relax.op.maximum),
    "Mean": _mean,
    "MeanVarianceNormalization": _mean_variance_normalization,
    "Min": _of_two(relax.op.minimum),
    "OneHot": _one_hot,
    "Pad": _pad,
    "Pow": _power,
    "Resize": _resize,
    "ReverseSequence": _reverse_sequence,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Slice": _slice,
    "Softmax": _softmax_with(relax.op.nn.softmax),
    "SpaceToDepth": _space_to_depth,
    "Tile": _tile,
    "Unsqueeze": _unsqueeze,
    "Upsample": _upsample,
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
