"""Adds TensorRT's layers of elementwise and broadcast operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.toolchains.tensorrt.values import Layer, Values

UNARY = {
    "abs": "ABS",
    "acos": "ACOS",
    "acosh": "ACOSH",
    "asin": "ASIN",
    "asinh": "ASINH",
    "atan": "ATAN",
    "atanh": "ATANH",
    "ceil": "CEIL",
    "cos": "COS",
    "cosh": "COSH",
    "erf": "ERF",
    "exp": "EXP",
    "floor": "FLOOR",
    "isinf": "ISINF",
    "log": "LOG",
    "logical_not": "NOT",
    "negative": "NEG",
    "round": "ROUND",
    "sign": "SIGN",
    "sin": "SIN",
    "sinh": "SINH",
    "sqrt": "SQRT",
    "tan": "TAN",
}
"""TensorRT's unary operation for each Relax operator."""
ACTIVATIONS = {"nn.relu": "RELU", "sigmoid": "SIGMOID", "tanh": "TANH"}
"""The name of TensorRT's activation for each Relax operator."""
BINARY = {
    "add": "SUM",
    "subtract": "SUB",
    "multiply": "PROD",
    "divide": "DIV",
    "maximum": "MAX",
    "minimum": "MIN",
    "power": "POW",
    "equal": "EQUAL",
    "greater": "GREATER",
    "less": "LESS",
    "logical_and": "AND",
    "logical_or": "OR",
    "logical_xor": "XOR",
}


def _unary(name: str) -> Layer:
    return lambda c, node, inputs: c.net.unary(name, inputs[0])


def _activation(name: str) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        if c.is_integer(inputs[0]) and name == "RELU":
            return c.net.binary("MAX", inputs[0], c.net.scalar(0, inputs[0]))
        return c.net.activation(name, inputs[0])

    return layer


def _binary(name: str) -> Layer:
    return lambda c, node, inputs: c.net.binary(name, *inputs)


def _or_equal(name: str) -> Layer:
    """Adds ≥ or ≤ as "strictly, or equal": no negation of the opposite, which is true for NaN."""

    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        strictly = c.net.binary(name, *inputs)
        return c.net.binary("OR", strictly, c.net.binary("EQUAL", *inputs))

    return layer


def _isnan(c: Values, node: Node, inputs: list[Any]) -> Any:
    if hasattr(c.net.trt.UnaryOperation, "ISNAN"):
        return c.net.unary("ISNAN", inputs[0])
    return c.net.unary("NOT", c.net.binary("EQUAL", inputs[0], inputs[0]))


def _not_equal(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.unary("NOT", c.net.binary("EQUAL", *inputs))


def _rsqrt(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.unary("RECIP", c.net.unary("SQRT", inputs[0]))


def _square(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.binary("PROD", inputs[0], inputs[0])


def _trunc(c: Values, node: Node, inputs: list[Any]) -> Any:
    size = c.net.unary("FLOOR", c.net.unary("ABS", inputs[0]))
    return c.net.binary("PROD", c.net.unary("SIGN", inputs[0]), size)


def _isfinite(c: Values, node: Node, inputs: list[Any]) -> Any:
    # x − x is 0 unless x is infinite or no number; it is compared with itself, not with 0.
    apart = c.net.binary("SUB", inputs[0], inputs[0])
    return c.net.unary("NOT", _isnan(c, node, [apart]))


def _floor_divide(c: Values, node: Node, inputs: list[Any]) -> Any:
    if c.is_integer(inputs[0]):
        return c.net.binary("FLOOR_DIV", *inputs)
    return c.net.unary("FLOOR", c.net.binary("DIV", *inputs))


def _floor_mod(c: Values, node: Node, inputs: list[Any]) -> Any:
    whole = c.net.binary("PROD", _floor_divide(c, node, inputs), inputs[1])
    return c.net.binary("SUB", inputs[0], whole)


def _mod(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Return the remainder with the sign of the dividend, as C has it."""
    found = c.net.binary("DIV", *inputs)  # of integers: towards zero
    if not c.is_integer(inputs[0]):
        found = _trunc(c, node, [found])
    return c.net.binary("SUB", inputs[0], c.net.binary("PROD", found, inputs[1]))


def _log_add_exp(c: Values, node: Node, inputs: list[Any]) -> Any:
    top = c.net.binary("MAX", *inputs)
    parts = [c.net.unary("EXP", c.net.binary("SUB", x, top)) for x in inputs]
    return c.net.binary("SUM", top, c.net.unary("LOG", c.net.binary("SUM", *parts)))


def _fma(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.binary("SUM", c.net.binary("PROD", *inputs[:2]), inputs[2])


def _clip(c: Values, node: Node, inputs: list[Any]) -> Any:
    low, high = (float(node.attributes[k]) for k in ("min", "max"))
    x = inputs[0]
    if np.isfinite([low, high]).all() and not c.is_integer(x):
        return c.net.activation("CLIP", x, low, high)
    if np.isfinite(low):
        x = c.net.binary("MAX", x, c.net.scalar(low, x))
    if np.isfinite(high):
        x = c.net.binary("MIN", x, c.net.scalar(high, x))
    return x


def _leaky_relu(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.activation("LEAKY_RELU", inputs[0], float(node.attributes["alpha"]))


def _prelu(c: Values, node: Node, inputs: list[Any]) -> Any:
    x, slope = inputs
    shape = [1] * len(x.shape)
    shape[int(node.attributes["axis"]) % len(shape)] = c.graph.nodes[node.inputs[1]].type.elements
    layer = c.net.network.add_parametric_relu(x, c.net.reshape(slope, shape))
    return c.net.out(layer)


def _silu(c: Values, node: Node, inputs: list[Any]) -> Any:
    return c.net.binary("PROD", inputs[0], c.net.activation("SIGMOID", inputs[0]))


def _softplus(c: Values, node: Node, inputs: list[Any]) -> Any:
    """Adds log(1 + exp(βx))/β as max(x, 0) + log(1 + exp(−|βx|))/β, which does not overflow."""
    net, x = c.net, inputs[0]
    beta = float(node.attributes.get("beta", 1.0))
    scaled = x if beta == 1.0 else net.binary("PROD", x, net.scalar(beta, x))
    small = net.unary("EXP", net.unary("NEG", net.unary("ABS", scaled)))
    log = net.unary("LOG", net.binary("SUM", small, net.scalar(1.0, x)))
    if beta != 1.0:
        log = net.binary("PROD", log, net.scalar(1.0 / beta, x))
    return net.binary("SUM", net.activation("RELU", x), log)


def _gelu(kind: str) -> Layer:
    def layer(c: Values, node: Node, inputs: list[Any]) -> Any:
        net, x = c.net, inputs[0]
        if hasattr(net.trt.ActivationType, kind):
            return net.activation(kind, x)
        if kind == "GELU_ERF":
            inner = net.unary("ERF", net.binary("PROD", x, net.scalar(0.5**0.5, x)))
        else:
            cube = net.binary("PROD", net.binary("PROD", x, x), x)
            cube = net.binary("PROD", cube, net.scalar(0.044715, x))
            scaled = net.binary(
                "PROD", net.binary("SUM", x, cube), net.scalar((2 / np.pi) ** 0.5, x)
            )
            inner = net.activation("TANH", scaled)
        gate = net.binary("SUM", inner, net.scalar(1.0, x))
        return net.binary("PROD", net.binary("PROD", x, net.scalar(0.5, x)), gate)

    return layer


def _where(c: Values, node: Node, inputs: list[Any]) -> Any:
    condition, a, b = inputs
    return c.net.select(c.net.cast(condition, c.net.dtype("bool")), a, b)


def _astype(c: Values, node: Node, inputs: list[Any]) -> Any:
    if node.type.dtype in ("int8", "uint8"):  # there are few layers for these: held as floats
        x = c.cast_as(inputs[0], "float32")
        c.counted[node.index] = _trunc(c, node, [x])
        return None
    return c.cast_as(inputs[0], node.type.dtype)


def _same(c: Values, node: Node, inputs: list[Any]) -> Any:
    return inputs[0]


def _dropout(c: Values, node: Node, inputs: list[Any]) -> Any:
    if len(node.types) == 1:
        return inputs[0]
    raise UnsupportedError("Dropout: its mask")


LAYERS: dict[str, Layer] = {
    **{op: _unary(name) for op, name in UNARY.items()},
    **{op: _activation(name) for op, name in ACTIVATIONS.items()},
    **{op: _binary(name) for op, name in BINARY.items()},
    "astype": _astype,
    "clip": _clip,
    "ewise_fma": _fma,
    "floor_divide": _floor_divide,
    "floor_mod": _floor_mod,
    "greater_equal": _or_equal("GREATER"),
    "isfinite": _isfinite,
    "isnan": _isnan,
    "less_equal": _or_equal("LESS"),
    "log_add_exp": _log_add_exp,
    "mod": _mod,
    "nn.dropout": _dropout,
    "nn.gelu": _gelu("GELU_ERF"),
    "nn.gelu_tanh": _gelu("GELU_TANH"),
    "nn.leakyrelu": _leaky_relu,
    "nn.prelu": _prelu,
    "nn.silu": _silu,
    "nn.softplus": _softplus,
    "not_equal": _not_equal,
    "rsqrt": _rsqrt,
    "square": _square,
    "trunc": _trunc,
    "where": _where,
}
"""The function that adds the layers of each of these Relax operators."""
