"""Converts ONNX to Relax where TVM's converters lower to TE or blow one node up to many.

Each takes (block builder, inputs, attributes, opset) and returns an expression, or None to
leave the node to TVM's converter. Inputs are variables or constants; shapes are static.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from onnx import helper
from tvm import relax
from tvm.ir import Expr

from collage_engine.model.converter_tools import (
    Converter,
    dtype_of,
    shape_of,
    text_of,
    values_of,
)
from collage_engine.model.converters_index import INDEX_CONVERTERS
from collage_engine.model.converters_resize import RESIZE_CONVERTERS
from collage_engine.model.einsum import matmul_plan
from collage_engine.model.onnx_expand import SOFTMAX_OF_ONE_AXIS


def _clip(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Converts Clip: to clip for two known bounds, else to maximum or minimum."""
    x = inputs[0]
    kind = dtype_of(x)
    if opset < 11:
        given = [attributes.get("min"), attributes.get("max")]
        bounds = [None if g is None else relax.const(g, kind) for g in given]
    else:
        bounds = [inputs[1], inputs[2]]
    known: list[float | None] = []
    for place, bound in enumerate(bounds):
        values = None if bound is None else values_of(bound)
        number = None if values is None else values.reshape(-1)[0].item()
        if number is not None and number != number:
            bounds[place] = number = None  # NaN means none, as in ONNX Runtime
        known.append(number)
    if None not in known:
        wrap = float if kind.startswith(("float", "bfloat")) else int
        return relax.op.clip(x, *(wrap(k) for k in known if k is not None))
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
        found = [None if inputs[i] is None else values_of(inputs[i]) for i in (1, 2, 3)]
        if any(inputs[i] is not None and found[i - 1] is None for i in (1, 2, 3)):
            raise ValueError("pads that are known only when the model runs are not supported")
        widths, fill, which = found
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
    for place, axis in enumerate(axes):
        around[2 * axis], around[2 * axis + 1] = int(pads[place]), int(pads[half + place])
    return relax.op.nn.pad(inputs[0], around, mode, float(value))


def _power(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Converts Pow: squares and roots as what they are; exponents in the base's type."""
    base, exponent = inputs[0], inputs[1]
    kind = dtype_of(base)
    known = values_of(exponent)
    if known is not None and known.size == 1 and len(known.shape) <= len(shape_of(base)):
        number = float(known.reshape(-1)[0])
        if number == 2.0:
            return relax.op.multiply(base, base)
        if number == 0.5 and kind.startswith("float"):
            return relax.op.sqrt(base)
    if dtype_of(exponent) == kind:
        return relax.op.power(base, exponent)
    if kind.startswith("float"):
        if known is not None:
            return relax.op.power(base, relax.const(known.astype(kind), kind))
        return relax.op.power(base, relax.op.astype(exponent, kind))
    wide = relax.op.power(relax.op.astype(base, dtype_of(exponent)), exponent)
    return relax.op.astype(wide, kind)


def _isinf(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    x = inputs[0]
    found = relax.op.isinf(x)
    zero = relax.const(0, dtype_of(x))
    if not attributes.get("detect_negative", 1):
        found = relax.op.logical_and(found, relax.op.greater(x, zero))
    if not attributes.get("detect_positive", 1):
        found = relax.op.logical_and(found, relax.op.less(x, zero))
    return found


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
    """Converts Einsum: products of two tensors to matmul, which toolchains know.

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
    place = int(axis.reshape(-1)[0])
    turned = relax.op.flip(inputs[0], place)
    exclusive = bool(attributes.get("exclusive", 0))
    return relax.op.flip(relax.op.cumsum(turned, place, exclusive=exclusive), place)


def _mean_variance_normalization(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    """Converts MeanVarianceNormalization: distances from the mean by their deviation plus 1e-9.

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
    """Converts Elu to relu(x) − α·relu(1 − eˣ), in x's own type."""
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
