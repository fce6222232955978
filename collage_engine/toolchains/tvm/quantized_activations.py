"""Applies activations to elements of a quantised kernel, in float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tvm import tirx
from tvm.ir import Expr

from collage_engine.kernels.cpu.operators.quantization import f32
from collage_engine.records.graph import Node


class NoForm(Exception):
    """A composite stays as the model has it."""


def limited(value: Expr, low: float, high: float) -> Expr:
    """Return a value between two limits; an infinite one is none."""
    if low > -np.inf:
        value = tirx.max(value, f32(low))
    return tirx.min(value, f32(high)) if high < np.inf else value


def activation(node: Node) -> Callable[[Expr], Expr]:
    """Return what an activation does to an element."""
    match node.op:
        case "nn.relu":
            return lambda x: limited(x, 0.0, np.inf)
        case "nn.relu6":
            return lambda x: limited(x, 0.0, 6.0)
        case "clip":
            low, high = float(node.attributes["min"]), float(node.attributes["max"])
            return lambda x: limited(x, low, high)
        case "nn.leakyrelu":
            slope = f32(float(node.attributes["alpha"]))
            return lambda x: tirx.Select(x > f32(0.0), x, x * slope)
        case "sigmoid":
            return tirx.sigmoid
        case "tanh":
            return tirx.tanh
        case "nn.silu":
            return lambda x: x * tirx.sigmoid(x)
    raise NoForm
