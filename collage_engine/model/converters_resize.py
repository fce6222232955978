"""Converts Resize and Upsample: to an image operator where Relax samples alike, else axis by axis.

Relax's samples images only, by the ratio of the sizes; TVM's converter looks at nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import Expr

from collage_engine.model.converter_tools import (
    Converter,
    dtype_of,
    shape_of,
    text_of,
    values_of,
)
from collage_engine.model.resampling import Sampling, scaled_extent, taps

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "align_corners",
    "asymmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
)
MOST_TAPS = 4
"""Taps from which an axis is resampled by a matrix product, in fewer passes. Chosen."""


@dataclass(frozen=True)
class _Target:
    """The extents that every dimension gets."""

    sizes: list[int]
    scales: list[float]


def _all_axes(values: np.ndarray, attributes: dict[str, Any], rest: list[Any]) -> list[Any]:
    """Scales or sizes for every dimension (since opset 18 they may be for some ``axes``)."""
    axes = attributes.get("axes")
    if axes is None:
        return list(values.tolist())
    full = list(rest)
    for axis, value in zip(axes, values.tolist(), strict=True):
        full[axis % len(full)] = value
    return full


def _target(inputs: Any, attributes: dict[str, Any], opset: int) -> _Target:
    shape = shape_of(inputs[0])
    scales = inputs[1] if opset < 11 else inputs[2]
    sizes = None if opset < 11 else inputs[3]
    if sizes is None:
        known = values_of(scales)
        if known is None:
            raise ValueError("scales that are known only when the model runs are not supported")
        return _scaled(shape, _all_axes(known, attributes, [1.0] * len(shape)))
    known = values_of(sizes)
    if known is None:
        raise ValueError("sizes that are known only when the model runs are not supported")
    wanted = [int(s) for s in _all_axes(known, attributes, list(shape))]
    policy = text_of(attributes, "keep_aspect_ratio_policy", "stretch")
    ratios = [w / s for w, s in zip(wanted, shape, strict=True)]
    if policy == "stretch":
        return _Target(wanted, ratios)
    axes = [a % len(shape) for a in attributes.get("axes", range(len(shape)))]
    one = (min if policy == "not_larger" else max)(ratios[a] for a in axes)
    return _Target(
        [int(s * one + 0.5) if a in axes else s for a, s in enumerate(shape)],
        [one if a in axes else 1.0 for a in range(len(shape))],
    )


def _scaled(shape: tuple[int, ...], factors: list[float]) -> _Target:
    return _Target([scaled_extent(s, f) for s, f in zip(shape, factors, strict=True)], factors)


def _resize(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    x = inputs[0]
    if opset < 11:
        how, nearest = "asymmetric", "simple"
    else:
        how = text_of(attributes, "coordinate_transformation_mode", "half_pixel")
        nearest = text_of(attributes, "nearest_mode", "round_prefer_floor")
    if how not in _COORDINATES:
        raise ValueError(f"coordinate_transformation_mode {how} is not supported")
    roi = values_of(inputs[1]) if opset >= 11 else None
    if how == "tf_crop_and_resize":
        if attributes.get("axes") is None and roi is not None:
            return None
        raise ValueError("this form of tf_crop_and_resize is not supported")
    return _resized(bb, x, _target(inputs, attributes, opset), attributes, how, nearest)


def _upsample(
    bb: relax.BlockBuilder, inputs: Sequence[Expr], attributes: dict[str, Any], opset: int
) -> Expr | None:
    scales = attributes.get("scales") if opset < 9 else values_of(inputs[1])
    if scales is None:
        raise ValueError("scales that are known only when the model runs are not supported")
    target = _scaled(shape_of(inputs[0]), [float(s) for s in scales])
    return _resized(bb, inputs[0], target, attributes, "asymmetric", "simple")


def _resized(
    bb: relax.BlockBuilder,
    x: Expr,
    target: _Target,
    attributes: dict[str, Any],
    how: str,
    nearest: str,
) -> Any:
    mode = text_of(attributes, "mode", "nearest")
    sampling = Sampling(
        mode=mode,
        coordinates=how,
        nearest=nearest,
        cubic_a=attributes.get("cubic_coeff_a", -0.75),
        exclude_outside=bool(attributes.get("exclude_outside", 0)),
        antialias=bool(attributes.get("antialias", 0)) and mode != "nearest",
    )
    if _is_image(shape_of(x), target, sampling):
        return _image(x, target.sizes[2:], sampling)
    return _axis_by_axis(bb, x, target, sampling)


def _is_image(shape: tuple[int, ...], target: _Target, sampling: Sampling) -> bool:
    """Return whether Relax's operator samples the same: images, by the ratio of their sizes."""
    exact = [s * f for s, f in zip(shape, target.scales, strict=True)]
    return (
        len(shape) in (3, 4, 5)
        and target.sizes[:2] == list(shape[:2])
        and all(abs(e - s) <= 1e-3 for e, s in zip(exact, target.sizes, strict=True))
        and not sampling.antialias
        and sampling.coordinates != "half_pixel_symmetric"
        and not (sampling.nearest == "simple" and min(target.scales) < 1)
        and not (sampling.coordinates == "align_corners" and _divides_by_zero(target.sizes[2:]))
        and not (len(shape) == 3 and sampling.mode == "cubic")
    )


def _divides_by_zero(spatial: list[int]) -> bool:
    """Tells whether TVM divides by a new extent less one that is 0.

    A signal is an image one pixel high.
    """
    return len(spatial) == 1 or 1 in spatial


def _image(x: Expr, spatial: list[int], sampling: Sampling) -> Any:
    common: dict[str, Any] = {
        "method": _METHODS[sampling.mode],
        "coordinate_transformation_mode": sampling.coordinates,
        "rounding_method": "floor" if sampling.nearest == "simple" else sampling.nearest,
        "cubic_alpha": sampling.cubic_a,
        "cubic_exclude": int(sampling.exclude_outside),
    }
    rank = len(spatial) + 2
    if rank == 5:
        return relax.op.image.resize3d(
            x, relax.ShapeExpr(spatial), roi=[0.0] * 6, layout="NCDHW", **common
        )
    if rank == 3:  # as an image one pixel high
        x = relax.op.expand_dims(x, [2])
        spatial = [1, *spatial]
    y = relax.op.image.resize2d(x, relax.ShapeExpr(spatial), roi=[0.0] * 4, layout="NCHW", **common)
    return relax.op.squeeze(y, [2]) if rank == 3 else y


def _axis_by_axis(bb: relax.BlockBuilder, x: Expr, target: _Target, sampling: Sampling) -> Any:
    """Returns sums of elements taken along one axis after the other, those that shrink first."""
    shape = shape_of(x)
    axes = [a for a in range(len(shape)) if target.sizes[a] != shape[a] or target.scales[a] != 1]
    for axis in sorted(axes, key=lambda a: target.sizes[a] / shape[a]):
        x = bb.normalize(_along(x, axis, shape[axis], target, sampling))
    return x


def _along(x: Expr, axis: int, extent: int, target: _Target, sampling: Sampling) -> Any:
    kind = dtype_of(x)
    found = taps(extent, target.sizes[axis], target.scales[axis], sampling)
    count = found.indices.shape[1]
    if count == 1:
        return relax.op.take(x, relax.const(found.indices[:, 0], "int64"), axis)
    rank = len(shape_of(x))
    if count > MOST_TAPS:
        order = [a for a in range(rank) if a != axis] + [axis]
        matrix = relax.const(found.matrix(extent).T.astype(kind), kind)
        product = relax.op.matmul(relax.op.permute_dims(x, order), matrix)
        return relax.op.permute_dims(product, np.argsort(order).tolist())
    wide = [-1 if a == axis else 1 for a in range(rank)]
    total = None
    for k in range(count):
        part = relax.op.take(x, relax.const(found.indices[:, k], "int64"), axis)
        weight = relax.const(found.weights[:, k].reshape(wide).astype(kind), kind)
        part = relax.op.multiply(part, weight)
        total = part if total is None else relax.op.add(total, part)
    return total


RESIZE_CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
