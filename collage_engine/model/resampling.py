"""Computes ONNX's Resize along one axis: the elements of which each result is a weighted sum.

For what TVM's ``image.resize`` cannot say: scales that are not the ratio of the sizes, axes that
are not of an image, antialiasing. Sources: the operator's text (opset 19), and for what that leaves
open ONNX Runtime: coordinates in float32, an axis of scale 1 as it is, indices clamped at the edge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

F = np.float32


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """The attributes of a Resize that decide how one axis is sampled."""

    mode: str
    """The interpolation, as ONNX names it: ``nearest``, ``linear`` or ``cubic``."""
    coordinates: str
    nearest: str = "round_prefer_floor"
    """How ``nearest`` rounds, as ONNX names it; ``simple`` before opset 11: floor, or ceil where
    the axis shrinks."""
    cubic_a: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False


@dataclass(frozen=True)
class Taps:
    """The sums result[i] = Σₖ weights[i, k] · x[indices[i, k]].

    Both arrays have the shape [result's extent, taps].
    """

    indices: np.ndarray
    weights: np.ndarray

    def matrix(self, extent: int) -> np.ndarray:
        """Returns the same sums as a dense matrix [result's extent, extent]."""
        found = np.zeros((len(self.indices), extent), F)
        rows = np.repeat(np.arange(len(self.indices)), self.indices.shape[1])
        np.add.at(found, (rows, self.indices.ravel()), self.weights.ravel())
        return found


def scaled_extent(extent: int, scale: float) -> int:
    """Returns the result's extent as ONNX Runtime computes it: floor, in float32."""
    return int(np.floor(F(extent) * F(scale)))


def taps(extent: int, result: int, scale: float, how: Sampling) -> Taps:
    """Returns the sums that resample one axis.

    Args:
        extent: Elements of the axis.
        result: Elements of the result.
        scale: The scale that is given, or the ratio of the sizes where these were given.
        how: The attributes of the Resize.
    """
    x = original(extent, result, scale, how.coordinates)
    if how.mode == "nearest":
        near = np.clip(_nearest(x, how.nearest, scale), 0, extent - 1).astype(np.int64)
        return Taps(near[:, None], np.ones((result, 1), F))
    wide = max(1.0, 1.0 / scale) if how.antialias else 1.0
    if how.mode == "linear" and wide == 1.0:
        x = np.clip(x, 0, extent - 1)
    kernel: Callable[[np.ndarray], np.ndarray] = _linear
    reach = 1.0
    if how.mode == "cubic":
        kernel, reach = (lambda at: _cubic(at, how.cubic_a)), 2.0
    support = reach * wide
    first = np.floor(x - support).astype(np.int64) + 1
    count = int(np.ceil(2 * support)) + (wide != 1.0)
    indices = first[:, None] + np.arange(count)
    weights = kernel((indices - x[:, None]) / F(wide)).astype(np.float64)
    if how.exclude_outside:
        weights[(indices < 0) | (indices >= extent)] = 0.0
    if how.exclude_outside or how.antialias:
        weights /= weights.sum(axis=1, keepdims=True)
    return Taps(np.clip(indices, 0, extent - 1), weights.astype(F))


def original(extent: int, result: int, scale: float, how: str) -> np.ndarray:
    """Returns where each result lies among the axis's elements.

    Args:
        extent: Elements of the axis.
        result: Elements of the result.
        scale: The result's extent as a multiple of the axis's.
        how: ONNX's ``coordinate_transformation_mode``.

    Raises:
        KeyError: The mode is unknown here.
    """
    x = np.arange(result, dtype=F)
    s, half = F(scale), F(0.5)
    if s == 1 and extent == result:
        return x
    if how == "asymmetric":
        return x / s
    if how == "half_pixel" or (how == "pytorch_half_pixel" and result > 1):
        return (x + half) / s - half
    if how == "pytorch_half_pixel":
        return np.zeros_like(x)
    if how == "tf_half_pixel_for_nn":
        return (x + half) / s
    if how == "align_corners":
        return x * F(extent - 1) / F(result - 1) if result > 1 else np.zeros_like(x)
    if how == "half_pixel_symmetric":
        adjusted = F(result) / (s * F(extent))
        offset = F(extent) / F(2) * (F(1) - adjusted)
        return offset + (x + half) / s - half
    raise KeyError(how)


def _nearest(x: np.ndarray, how: str, scale: float) -> np.ndarray:
    if how == "simple":
        how = "ceil" if scale < 1 else "floor"
    if how == "floor":
        return np.asarray(np.floor(x))
    if how == "ceil":
        return np.asarray(np.ceil(x))
    away = np.trunc(x + np.copysign(F(0.5), x))  # halves away from zero
    if how == "round_prefer_ceil":
        return np.asarray(away)
    return np.asarray(np.where(x == np.trunc(x) + F(0.5), np.floor(x), away))


def _linear(at: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(0.0, 1.0 - np.abs(at)))


def _cubic(at: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(at).astype(np.float64)
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, inner, np.where(x < 2, outer, 0.0))
