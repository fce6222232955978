"""Folds the numbers of 8-bit products into one factor and one offset a channel.

A composite DequantizeLinear → product → QuantizeLinear is ``clamp(acc · factor + offset + ratio ·
residual, low, high)`` of the integer sum ``acc``: scales, zero points, bias and ReLU or Clip all go
into these numbers (Jacob 2018, section 2.2, with factors in floating point).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collage_engine.partition.quantized_numbers import Numbers
from collage_engine.records.errors import UnsupportedError

LARGEST_FLOAT = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Requantized:
    """``weights``: int8, symmetric, in the anchor's order; one factor and offset per channel."""

    weights: np.ndarray
    factor: np.ndarray
    offset: np.ndarray
    ratio: float
    low: float
    high: float


def requantized(numbers: Numbers, *, padded: bool) -> Requantized:
    """Folds the numbers of a convolution or a product by constant weights.

    Args:
        numbers: The composite's numbers.
        padded: Whether zeros are convolved around the image; they must be the data's zero then.

    Raises:
        UnsupportedError: A number does not fold; the text names it.
    """
    found = numbers.found
    what = numbers.graph.nodes[found["anchor"]].op
    weights, scales = numbers.weights()
    step, zero = numbers.of("data").single("the data")
    if zero and padded:
        raise UnsupportedError(f"{what}: padding of data whose zero point is {zero}")
    limits = numbers.clamp()
    if limits is None:
        raise UnsupportedError(f"{what}: an activation that does more than limit values")
    factor = step * scales.astype(np.float64)
    summed = _sums(numbers, weights)
    offset = -zero * summed * factor
    bias = numbers.bias()
    if bias is not None:
        offset = offset + bias
    ratio = 0.0
    if "residual" in found:
        ratio, residual_zero = numbers.of("residual").single("the residual")
        offset = offset - ratio * residual_zero
    low, high = limits
    result = numbers.result
    if result is not None:
        scale, result_zero = result.single("the result")
        factor, offset, ratio = factor / scale, offset / scale + result_zero, ratio / scale
        low, high = (
            float(
                np.clip(
                    np.round(np.clip(v / scale, -1e9, 1e9)) + result_zero,
                    result.lowest,
                    result.highest,
                )
            )
            for v in (low, high)
        )
    low, high = max(low, -LARGEST_FLOAT), min(high, LARGEST_FLOAT)
    return Requantized(
        weights, factor.astype(np.float32), offset.astype(np.float32), ratio, low, high
    )


def _sums(numbers: Numbers, weights: np.ndarray) -> np.ndarray:
    """Add up the weights of each output channel."""
    axis = weights.ndim - 1
    if numbers.found.kind == "conv":
        anchor = numbers.graph.nodes[numbers.found["anchor"]]
        axis = str(anchor.attributes["kernel_layout"]).index("O")
    others = tuple(d for d in range(weights.ndim) if d != axis)
    return weights.astype(np.int64).sum(axis=others).astype(np.float64)
