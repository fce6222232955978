"""Defines patterns of functions that exporters and importers write out as chains of operators.

Each takes the pattern of the value it is applied to. Scalar constants are bound by name, their
values are not in the graph: whoever compiles a match checks them.
"""

from __future__ import annotations

import math

from collage_engine.partition.patterns import Pattern, constant, op

VALUES: dict[str, float] = {
    "root": 2**0.5,
    "inverse_root": 0.5**0.5,
    "one": 1.0,
    "half": 0.5,
    "two": 2.0,
    "three": 3.0,
    "six": 6.0,
    "square": 2.0,
    "cube": 3.0,
    "k": 0.044715,
    "s": (2 / math.pi) ** 0.5,
}
"""Values that scalar constants must have, by the names that they are bound to."""


def scalar(name: str) -> Pattern:
    """Return a constant of one element, bound to a name."""
    return constant(name, scalar=True)


def _half_times(x: Pattern, gate: Pattern) -> Pattern:
    """Matches ``0.5 · x · gate`` in the orders that exporters use."""
    half = scalar("half")
    return (
        op("multiply", op("multiply", x, gate), half)
        | op("multiply", x, op("multiply", gate, half))
        | op("multiply", op("multiply", x, half), gate)
        | op("divide", op("multiply", x, gate), scalar("two"))
    )


def gelu_erf(x: Pattern) -> Pattern:
    """Return the pattern of ``0.5 · x · (1 + erf(x / √2))``."""
    scaled = op("divide", x, scalar("root")) | op("multiply", x, scalar("inverse_root"))
    return _half_times(x, op("add", op("erf", scaled), scalar("one")))


def gelu_tanh(x: Pattern) -> Pattern:
    """Return the pattern of ``0.5 · x · (1 + tanh(√(2/π) · (x + 0.044715 x³)))``."""
    square = op("multiply", x, x) | op("power", x, scalar("square"))
    cube = op("power", x, scalar("cube")) | op("multiply", square, x)
    inner = op("multiply", op("add", x, op("multiply", cube, scalar("k"))), scalar("s"))
    return _half_times(x, op("add", op("tanh", inner), scalar("one")))


def silu(x: Pattern) -> Pattern:
    """Return the pattern of ``x · sigmoid(x)``."""
    return op("multiply", x, op("sigmoid", x))


def hardswish(x: Pattern) -> Pattern:
    """Matches ``x · clip(x + 3, 0, 6) / 6``."""
    shifted = op("add", x, scalar("three"))
    clipped = op("clip", shifted, min=lambda v: v == 0, max=lambda v: v == 6)
    six = scalar("six")
    return op("multiply", x, op("divide", clipped, six)) | op(
        "divide", op("multiply", x, clipped), six
    )


def hardsigmoid(x: Pattern) -> Pattern:
    """Matches ``clip(α · x + β, 0, 1)``."""
    linear = op("add", op("multiply", x, scalar("alpha")), scalar("beta"))
    return op("clip", linear, min=lambda v: v == 0, max=lambda v: v == 1)


ACTIVATIONS = {
    "gelu_erf": gelu_erf,
    "gelu_tanh": gelu_tanh,
    "hardswish": hardswish,
    "silu": silu,
    "hardsigmoid": hardsigmoid,
}
"""All of them: the first that fits claims its operators."""

ACTIVATION_OPS = (
    "nn.relu",
    "clip",
    "sigmoid",
    "tanh",
    "nn.leakyrelu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "nn.softplus",
)


def activation(x: Pattern) -> Pattern:
    """Return an activation function of a value, as one operator or a chain of them."""
    found = op(ACTIVATION_OPS, x, commutative=False)
    for chain in ACTIVATIONS.values():
        found = found | chain(x)
    return found
