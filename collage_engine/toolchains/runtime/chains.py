"""Defines patterns of functions that exporters and importers write out as chains of operators.

Each takes the pattern of the value it is applied to. Scalar constants are bound by name, their
values are not in the graph: whoever compiles a match checks them.
"""

from __future__ import annotations

from collage_engine.partition.patterns import Pattern, constant, op


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


def _keeps(value: object) -> bool:
    return bool(value)


def norm(x: Pattern) -> Pattern:
    """Matches ``(x − mean) / √(variance + ε)``; binds ``mean``, ``variance``, ``epsilon``."""
    mean = op("mean", x, name="mean", keepdims=_keeps)
    centred = op("subtract", x, mean)
    squared = op("power", centred, scalar("square")) | op("multiply", centred, centred)
    variance = op("mean", squared, name="variance", keepdims=_keeps)
    variance = variance | op("variance", x, name="variance", keepdims=_keeps)
    shifted = op("add", variance, scalar("epsilon"))
    return op("divide", centred, op("sqrt", shifted))


def layer_norm(x: Pattern) -> Pattern:
    """Matches ``norm(x) · scale + shift`` with vectors for scale and shift."""

    def vector(name: str) -> Pattern:
        return constant(name, where=lambda graph, node: len(node.type.shape) == 1)

    return op("add", op("multiply", norm(x), vector("scale")), vector("shift"))


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
    chains = (gelu_erf, gelu_tanh, hardswish, silu, hardsigmoid)
    found = op(ACTIVATION_OPS, x, commutative=False)
    for chain in chains:
        found = found | chain(x)
    return found
