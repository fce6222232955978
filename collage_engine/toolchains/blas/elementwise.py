"""Lists functions and arithmetic that can follow a product, as post-ops of the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.operator_titles import onnx_type
from collage_engine.toolchains.blas.program import Post, View

UNARY: dict[str, str] = {
    "nn.relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "exp": "exp",
    "sqrt": "sqrt",
    "square": "square",
    "abs": "abs",
    "erf": "erf",
    "nn.gelu": "gelu_erf",
    "nn.gelu_tanh": "gelu_tanh",
    "nn.silu": "silu",
}
"""The runtime's function for each Relax operator of one operand."""
BINARY: dict[str, tuple[str, str]] = {
    "add": ("add", "add"),
    "subtract": ("subtract", "subtract_from"),
    "multiply": ("multiply", "multiply"),
    "divide": ("divide", "divide_into"),
    "maximum": ("maximum", "maximum"),
    "minimum": ("minimum", "minimum"),
}
"""The runtime's functions for each Relax operator of two operands: where the post-op is applied
to the left operand, and where it is applied to the right one."""

INFINITY = float("inf")
_SCALAR: dict[str, tuple[Callable[[float], Post], Callable[[float], Post]]] = {
    "add": (lambda c: Post("affine", 1.0, c), lambda c: Post("affine", 1.0, c)),
    "subtract": (lambda c: Post("affine", 1.0, -c), lambda c: Post("affine", -1.0, c)),
    "multiply": (lambda c: Post("affine", c, 0.0), lambda c: Post("affine", c, 0.0)),
    "divide": (lambda c: Post("affine", 1.0 / c, 0.0), lambda c: Post("reciprocal", c)),
}
"""Post-ops with a scalar constant as the right operand, and as the left one."""
_TWICE = {"add": Post("affine", 2.0, 0.0), "multiply": Post("square")}
"""The post-op for each operator whose two operands are the same value."""
_POWERS = {2.0: "square", 3.0: "cube", 0.5: "sqrt", 1.0: "affine"}
"""The runtime's functions for powers, by exponent."""

ELEMENTWISE = frozenset((*UNARY, *BINARY, "clip", "nn.leakyrelu", "negative", "power"))
"""All Relax operators that can be post-ops."""


class Values(Protocol):
    """The lowering of an operator needs this of the program."""

    def view(self, index: int) -> View:
        """Return the value of a node."""

    def scalar(self, index: int) -> float | None:
        """Return the value of a one-element constant, else None."""


def choices(values: Values, node: Node) -> list[tuple[NodeIndex, list[Post]]]:
    """Returns the operands that can host an operator as post-ops, the preferred one first.

    Returns:
        Pairs of an operand's node and the post-ops that are applied to it.
    """
    op, inputs = node.op, node.inputs
    if op in UNARY:
        return [(inputs[0], [Post(UNARY[op])])]
    if op == "negative":
        return [(inputs[0], [Post("affine", -1.0, 0.0)])]
    if op == "nn.leakyrelu":
        return [(inputs[0], [Post("leaky_relu", float(node.attributes["alpha"]))])]
    if op == "clip":
        low, high = float(node.attributes["min"]), float(node.attributes["max"])
        return [(inputs[0], [Post("clip", low, high)])]
    left, right = inputs
    if op == "power":
        exponent = values.scalar(right)
        if exponent not in _POWERS:
            raise UnsupportedError(f"Pow: only squares, cubes and roots, not {exponent}")
        return [(left, [Post(_POWERS[exponent], 1.0, 0.0)])]
    if op not in BINARY:
        raise UnsupportedError(f"a BLAS computes no {onnx_type(op)}")
    for place, (host, other) in enumerate(((left, right), (right, left))):
        number = values.scalar(other)
        if number is not None and op in _SCALAR and not (op == "divide" and number == 0.0):
            return [(host, [_SCALAR[op][place](number)])]
    if left == right and op in _TWICE:
        return [(left, [_TWICE[op]])]
    return [
        (left, [Post(BINARY[op][0], view=values.view(right))]),
        (right, [Post(BINARY[op][1], view=values.view(left))]),
    ]
