"""QuantizeLinear and DequantizeLinear as TensorRT layers.

TensorRT's 8-bit layers know int8 with a zero point of 0 only. uint8 around 128 is the same values
shifted, and becomes that. Every other zero point is computed in floating point, as the operators
are defined: right, but no faster than the float model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node

if TYPE_CHECKING:
    from collage_engine.toolchains.tensorrt.convert import Converter

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}
MIDDLE = 128
"""The zero point of uint8 at which it is int8 shifted."""


def _numbers(c: Converter, node: Node) -> tuple[np.ndarray, np.ndarray, int]:
    """(scale, zero point, axis) of a call; both must be constant."""
    scale, zero = (c.array(i) for i in node.inputs[1:3])
    if scale is None or zero is None:
        raise UnsupportedError(f"{node.op}: a scale that is computed")
    rank = max(len(node.type.shape), 1)
    return scale, zero.astype(np.int64), int(node.attributes.get("axis", 1)) % rank


def _along(c: Converter, values: np.ndarray, rank: int, axis: int, dtype: str) -> Any:
    """Numbers of a channel each, or one, as a tensor that broadcasts."""
    shape = [1] * rank
    if values.size > 1:
        shape[axis] = values.size
    return c.net.const(values.reshape(shape), dtype)


def _offset(kind: str, zero: np.ndarray) -> int | None:
    """What to subtract from the values so that they are int8 around 0; None: there is no such."""
    if kind == "int8" and not zero.any():
        return 0
    if kind == "uint8" and (zero == MIDDLE).all():
        return MIDDLE
    return None


def quantize(c: Converter, node: Node, inputs: list[Any]) -> Any:
    net, kind = c.net, node.type.dtype
    if kind not in LIMITS:
        raise UnsupportedError(f"quantize to {kind}")
    scale, zero, axis = _numbers(c, node)
    x, offset = inputs[0], _offset(kind, zero)
    if offset is not None:
        made = _quantized(c, x, scale, axis)
        if offset == 0:
            return made
        c.shifted[node.index] = made
        return None
    rank = len(node.type.shape)
    name = net.name_of(x.dtype)
    steps = net.unary("ROUND", net.binary("DIV", x, _along(c, scale, rank, axis, name)))
    moved = net.binary("SUM", steps, _along(c, zero, rank, axis, name))
    low, high = LIMITS[kind]
    c.counted[node.index] = net.activation("CLIP", moved, float(low), float(high))
    return None


def _quantized(c: Converter, x: Any, scale: np.ndarray, axis: int) -> Any:
    net = c.net
    flat = scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
    factor = net.const(flat, net.name_of(x.dtype))
    if c.api.strongly_typed:
        layer = net.network.add_quantize(x, factor, net.dtype("int8"))
    else:
        layer = net.network.add_quantize(x, factor)
    if scale.size > 1:
        layer.axis = axis
    return net.out(layer)


def _dequantized(c: Converter, x: Any, scale: np.ndarray, axis: int, dtype: str) -> Any:
    net = c.net
    flat = scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
    factor = net.const(flat, dtype)
    if c.api.strongly_typed:
        layer = net.network.add_dequantize(x, factor, net.dtype(dtype))
    else:
        layer = net.network.add_dequantize(x, factor)
    if scale.size > 1:
        layer.axis = axis
    return net.out(layer)


def dequantize(c: Converter, node: Node, inputs: list[Any]) -> Any:
    net, source = c.net, node.inputs[0]
    kind, result = c.graph.nodes[source].type.dtype, node.type.dtype
    scale, zero, axis = _numbers(c, node)
    rank = len(node.type.shape)
    known = c.array(source)
    offset = _offset(kind, zero)
    if known is not None:
        return _constant(c, known, scale, zero, axis, offset, result)
    if source in c.shifted and offset == MIDDLE:
        return _dequantized(c, c.shifted[source], scale, axis, result)
    if source not in c.counted and offset == 0:
        tensor = c.tensor(source)
        if not c.api.strongly_typed and source in c.inputs:
            raise UnsupportedError(f"TensorRT {c.api.version} takes no 8-bit inputs")
        return _dequantized(c, tensor, scale, axis, result)
    steps = c.as_count(source, result)
    if zero.any():
        steps = net.binary("SUB", steps, _along(c, zero, rank, axis, result))
    return net.binary("PROD", steps, _along(c, scale, rank, axis, result))


def _constant(
    c: Converter, values: np.ndarray, scale: np.ndarray, zero: np.ndarray, axis: int,
    offset: int | None, dtype: str,
) -> Any:  # fmt: skip
    """Weights: 8-bit ones stay that, so that TensorRT computes with them; the rest is folded."""
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
    if c.api.strongly_typed:
        return _dequantized(c, c.net.const(small), scale, axis, dtype)
    real = c.net.const(small * factor, dtype)
    return _dequantized(c, _quantized(c, real, scale, axis), scale, axis, dtype)


LAYERS = {"quantize": quantize, "dequantize": dequantize}
