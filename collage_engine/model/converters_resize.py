"""Converts Resize and Upsample to Relax's image operators, where these sample alike.

They sample images only, by the ratio of the sizes; TVM's converter looks at nothing else. A node
that samples otherwise stays one of ONNX's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Expr

from collage_engine.model.converter_tools import Converter, shape_of, text_of, values_of

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
