"""Resize and Upsample. TVM's converter looks at spatial sizes only: what that would get wrong
is refused here, older forms are brought to the newest one."""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from collage_engine.model.converter_tools import Converter, shape_of, text_of, values_of

_METHODS = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic"}
_COORDINATES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel",
                "tf_half_pixel_for_nn", "tf_crop_and_resize")  # fmt: skip


def _all_axes(values: np.ndarray, attributes: dict[str, Any], rest: list[Any]) -> list[Any]:
    """Scales or sizes for every dimension (since opset 18 they may be for some ``axes``)."""
    axes = attributes.get("axes")
    if axes is None:
        return values.tolist()
    full = list(rest)
    for axis, value in zip(axes, values.tolist(), strict=True):
        full[axis % len(full)] = value
    return full


def _sizes(inputs: Any, attributes: dict[str, Any], opset: int) -> list[int]:
    """The output's shape."""
    shape = shape_of(inputs[0])
    scales = inputs[1] if opset < 11 else inputs[2]
    sizes = None if opset < 11 else inputs[3]
    if sizes is not None:
        if text_of(attributes, "keep_aspect_ratio_policy", "stretch") != "stretch":
            raise ValueError("keep_aspect_ratio_policy is not supported")
        known = values_of(sizes)
        if known is None:
            raise ValueError("sizes that are known only when the model runs are not supported")
        return [int(s) for s in _all_axes(known, attributes, list(shape))]
    known = values_of(scales)
    if known is None:
        raise ValueError("scales that are known only when the model runs are not supported")
    factors = _all_axes(known, attributes, [1.0] * len(shape))
    return _scaled(shape, factors)


def _scaled(shape: tuple[int, ...], factors: list[float]) -> list[int]:
    exact = [extent * factor for extent, factor in zip(shape, factors, strict=True)]
    sizes = [int(np.floor(e + 1e-6)) for e in exact]
    if any(abs(s - e) > 1e-3 for s, e in zip(sizes, exact, strict=True)):
        # ONNX samples by the scale given; Relax by the ratio of the sizes, which differs here.
        raise ValueError(f"scales {factors} do not divide the sizes {list(shape)} evenly")
    return sizes


def _resize(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    x = inputs[0]
    shape = shape_of(x)
    if attributes.get("antialias", 0):
        raise ValueError("antialias is not supported")
    if opset < 11:
        how, nearest = "asymmetric", "floor"
    else:
        how = text_of(attributes, "coordinate_transformation_mode", "half_pixel")
        nearest = text_of(attributes, "nearest_mode", "round_prefer_floor")
    if how not in _COORDINATES:
        raise ValueError(f"coordinate_transformation_mode {how} is not supported")
    roi = values_of(inputs[1]) if opset >= 11 else None
    if how == "tf_crop_and_resize":
        return None if attributes.get("axes") is None and roi is not None else _refuse_roi()
    sizes = _sizes(inputs, attributes, opset)
    return _resized(x, shape, sizes, attributes, how, nearest)


def _refuse_roi() -> Any:
    raise ValueError("this form of tf_crop_and_resize is not supported")


def _resized(
    x: Any, shape: tuple[int, ...], sizes: list[int], attributes: dict[str, Any], how: str,
    nearest: str,
) -> Any:  # fmt: skip
    if sizes[:2] != list(shape[:2]):
        raise ValueError("only spatial dimensions can be resized")
    if len(shape) not in (3, 4, 5):
        raise ValueError(f"a tensor of {len(shape)} dimensions cannot be resized")
    common: dict[str, Any] = {
        "method": _METHODS[text_of(attributes, "mode", "nearest")],
        "coordinate_transformation_mode": how,
        "rounding_method": nearest,
        "cubic_alpha": attributes.get("cubic_coeff_a", -0.75),
        "cubic_exclude": attributes.get("exclude_outside", 0),
        "extrapolation_value": attributes.get("extrapolation_value", 0.0),
    }
    spatial = sizes[2:]
    if len(shape) == 5:
        return relax.op.image.resize3d(
            x, relax.ShapeExpr(spatial), roi=[0.0] * 6, layout="NCDHW", **common
        )
    flat = len(shape) == 3  # as an image one pixel high
    if flat:
        if common["method"] == "cubic":
            return None
        x = relax.op.expand_dims(x, [2])
        spatial = [1, *spatial]
    y = relax.op.image.resize2d(x, relax.ShapeExpr(spatial), roi=[0.0] * 4, layout="NCHW", **common)
    return relax.op.squeeze(y, [2]) if flat else y


def _upsample(bb: Any, inputs: Any, attributes: dict[str, Any], opset: int) -> Any:
    scales = attributes.get("scales") if opset < 9 else values_of(inputs[1])
    if scales is None:
        raise ValueError("scales that are known only when the model runs are not supported")
    shape = shape_of(inputs[0])
    sizes = _scaled(shape, [float(s) for s in scales])
    return _resized(inputs[0], shape, sizes, attributes, "asymmetric", "floor")


RESIZE_CONVERTERS: dict[str, Converter] = {"Resize": _resize, "Upsample": _upsample}
