"""Lowers elementwise functions and broadcasting arithmetic."""

from __future__ import annotations

from collage_engine.records.graph import Node
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.onednn.steps import OneDnnProgram

FUNCTIONS: dict[str, tuple[str, float, float]] = {
    "nn.relu": ("relu", 0.0, 0.0),
    "sigmoid": ("logistic", 0.0, 0.0),
    "tanh": ("tanh", 0.0, 0.0),
    "exp": ("exp", 0.0, 0.0),
    "log": ("log", 0.0, 0.0),
    "sqrt": ("sqrt", 0.0, 0.0),
    "rsqrt": ("pow", 1.0, -0.5),
    "square": ("square", 0.0, 0.0),
    "abs": ("abs", 0.0, 0.0),
    "negative": ("linear", -1.0, 0.0),
    "round": ("round", 0.0, 0.0),
    "nn.gelu": ("gelu_erf", 0.0, 0.0),
    "nn.gelu_tanh": ("gelu_tanh", 0.0, 0.0),
    "nn.silu": ("swish", 1.0, 0.0),
    "nn.relu6": ("clip", 0.0, 6.0),
}
"""oneDNN's function, alpha and beta for each Relax operator."""

BINARY = {
    "add": "add",
    "subtract": "sub",
    "multiply": "mul",
    "divide": "div",
    "maximum": "max",
    "minimum": "min",
}
"""oneDNN's algorithm for each Relax operator of two operands."""


def function(plan: OneDnnProgram, node: Node) -> int:
    """Lowers an operator of the table ``FUNCTIONS``."""
    alg, alpha, beta = FUNCTIONS[node.op]
    return plan.eltwise(plan.tensor(node.inputs[0]), alg, alpha, beta)


def leaky_relu(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a ReLU with a slope for negative values."""
    return plan.eltwise(plan.tensor(node.inputs[0]), "relu", float(node.attributes["alpha"]))


def erf(plan: OneDnnProgram, node: Node) -> int:
    """Lowers the error function by GELU, which oneDNN has: ``erf(z/√2) = 2·gelu(z)/z − 1``.

    This is only used for an erf that is not part of a GELU. Adding 1e-30 avoids 0/0 and is lost in
    any other sum; the limits avoid ∞/∞, and float32 has no other value than ±1 from there on.
    """
    limited = plan.eltwise(plan.tensor(node.inputs[0]), "clip", -6.0, 6.0)
    z = plan.eltwise(limited, "linear", 2.0**0.5, 1e-30)
    gate = plan.binary("div", plan.eltwise(z, "gelu_erf"), z)
    return plan.eltwise(gate, "linear", 2.0, -1.0)


def softplus(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a softplus."""
    beta = float(node.attributes.get("beta", 1.0))
    return plan.eltwise(plan.tensor(node.inputs[0]), "soft_relu", beta)


def clip(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a clip between two constants."""
    low, high = float(node.attributes["min"]), float(node.attributes["max"])
    return plan.eltwise(plan.tensor(node.inputs[0]), "clip", low, high)


def power(plan: OneDnnProgram, node: Node) -> int:
    """Lowers a power with a constant exponent.

    Raises:
        UnsupportedError: The exponent is not constant.
    """
    exponent = plan.scalar(node.inputs[1])
    if exponent is None:
        raise UnsupportedError("Pow: oneDNN needs a constant exponent")
    base = plan.tensor(node.inputs[0])
    if exponent == 2.0:
        return plan.eltwise(base, "square")
    if exponent == 0.5:
        return plan.eltwise(base, "sqrt")
    return plan.eltwise(base, "pow", 1.0, exponent)


def arithmetic(plan: OneDnnProgram, node: Node) -> int:
    """Lowers arithmetic of two operands.

    Where one is a constant scalar, it becomes a linear function or a power of the other.
    """
    left, right = node.inputs
    shape = node.type.shape or (1,)
    for other, at in ((left, right), (right, left)):
        scalar = plan.scalar(at)
        if scalar is None or (plan.graph.values[other].type.shape or (1,)) != shape:
            continue
        scaled = _with_scalar(node.op, scalar, is_first=at == left)
        if scaled is not None:
            return plan.eltwise(plan.tensor(other), *scaled)
    return plan.binary(BINARY[node.op], plan.tensor(left), plan.tensor(right))


def _with_scalar(op: str, scalar: float, *, is_first: bool) -> tuple[str, float, float] | None:
    """Return the function of a tensor that arithmetic with a scalar is; None where it is none."""
    match op:
        case "add":
            return "linear", 1.0, scalar
        case "subtract":
            return ("linear", -1.0, scalar) if is_first else ("linear", 1.0, -scalar)
        case "multiply":
            return "linear", scalar, 0.0
        case "divide" if is_first:
            return "pow", scalar, -1.0
        case "divide" if scalar != 0.0:
            return "linear", 1.0 / scalar, 0.0
        case "maximum" if scalar == 0.0:
            return "relu", 0.0, 0.0
    return None


POINTWISE = {
    **dict.fromkeys(FUNCTIONS, function),
    **dict.fromkeys(BINARY, arithmetic),
    "nn.leakyrelu": leaky_relu,
    "nn.softplus": softplus,
    "clip": clip,
    "erf": erf,
    "power": power,
}
"""The function that lowers each of these Relax operators."""
