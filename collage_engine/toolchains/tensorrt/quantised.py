"""Adds TensorRT's layers of QuantizeLinear and DequantizeLinear.

TensorRT's 8-bit layers compute int8 with a zero point of 0 only. Values of uint8 around 128 are the
same values shifted, and are converted to them. Every other zero point is computed in floating point
as the operators are defined, which is correct but no faster than the float model.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.tensorrt.network import MIDDLE
from collage_engine.toolchains.tensorrt.values import Layer, Values

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
"""The smallest and the largest value of each 8-bit type."""


def _numbers(c: Values, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the scale and the zero point of a call; None where they are computed."""
    scale, zero = (c.array(i) for i in node.inputs[1:3])
    if scale is None or zero is None:
        return None
    return scale, zero.astype(np.int64)


def _axis(node: Node) -> int:
    return int(node.attributes.get("axis", 1)) % max(len(node.type.shape), 1)


def _along(c: Values, node: Node, place: int, dtype: str) -> Any:
    """Returns an operand with one number, or one for each channel, as a tensor that broadcasts."""
    shape = [1] * len(node.type.shape)
    index = node.inputs[place]
    size = c.graph.nodes[index].type.elements
    if size > 1:
        shape[_axis(node)] = size
    known = c.array(index)
    if known is not None:
        return c.net.const(known.reshape(shape), dtype)
    return c.net.reshape(c.as_count(index, dtype), shape)


def _offset(kind: str, zero: np.ndarray) -> int | None:
    """Returns what to subtract from values so that they are int8 around 0.

    The result is None where nothing does.
    """
    if kind == "int8" and not zero.any():
        return 0
    if kind == "uint8" and (zero == MIDDLE).all():
        return MIDDLE
    return None


def quantize(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Adds the layers of a quantisation.

    Where TensorRT has no such layer, results are whole numbers in floating point.

    Raises:
        UnsupportedError: The type of the result is no 8-bit type.
    """
    net, kind = c.net, node.type.dtype
    if kind not in LIMITS:
        raise UnsupportedError(f"quantize to {kind}")
    x, numbers = inputs[0], _numbers(c, node)
    offset = _offset(kind, numbers[1]) if numbers else None
    if numbers is not None and offset is not None:
        made = net.quantized(x, numbers[0], _axis(node))
        if offset == 0:
            return made
        c.shifted[node.index] = made
        return None
    name = net.name_of(x.dtype)
    steps = net.unary("ROUND", net.binary("DIV", x, _along(c, node, 1, name)))
    moved = net.binary("SUM", steps, _along(c, node, 2, name))
    low, high = LIMITS[kind]
    c.counted[node.index] = net.activation("CLIP", moved, float(low), float(high))
    return None


def dequantize(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Adds the layers of a dequantisation; constants are dequantised when the network is built.

    Raises:
        UnsupportedError: This release takes no 8-bit inputs.
    """
    net, source = c.net, node.inputs[0]
    kind, result = c.graph.nodes[source].type.dtype, node.type.dtype
    numbers = _numbers(c, node)
    if numbers is not None:
        (scale, zero), known = numbers, c.array(source)
        offset = _offset(kind, zero)
        if known is not None:
            return _constant(c, known, scale, zero, _axis(node), offset, result)
        if source in c.shifted and offset == MIDDLE:
            return net.dequantized(c.shifted[source], scale, _axis(node), result)
        if source not in c.counted and offset == 0:
            tensor = c.tensor(source)
            if not c.api.strongly_typed and source in c.inputs:
                raise UnsupportedError(f"TensorRT {c.api.version} takes no 8-bit inputs")
            return net.dequantized(tensor, scale, _axis(node), result)
    steps = net.binary("SUB", c.as_count(source, result), _along(c, node, 2, result))
    return net.binary("PROD", steps, _along(c, node, 1, result))


def _constant(
    c: Values,
    values: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray,
    axis: int,
    offset: int | None,
    dtype: str,
) -> Any:
    """Return the weights: 8-bit ones stay that, so that TensorRT computes with them.

    The rest is folded.
    """
    shape = [1] * max(values.ndim, 1)
    if scale.size > 1:
        shape[axis] = scale.size
    if values.ndim == 0:
        shape = []
    factor = scale.astype(np.float32).reshape(shape if scale.size > 1 or shape else ())
    if offset is None or values.dtype.itemsize > 1:
        zeros = zero.reshape(shape) if zero.size > 1 else zero.reshape(-1)[0]
        return c.net.const((values.astype(np.int64) - zeros) * factor.astype(np.float64), dtype)
    small = (values.astype(np.int64) - offset).astype(np.int8)
    net = c.net
    if c.api.strongly_typed:
        return net.dequantized(net.const(small), scale, axis, dtype)
    real = net.const(small * factor, dtype)
    return net.dequantized(net.quantized(real, scale, axis), scale, axis, dtype)


LAYERS: dict[str, Layer] = {"quantize": quantize, "dequantize": dequantize}
"""The function that adds the layers of each of these operators."""
