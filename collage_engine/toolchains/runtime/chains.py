"""Lists patterns that CPU libraries share: functions written out, and anchors with what follows.

Each takes the pattern of the value it is applied to. Scalar constants are bound by name, their
values are not in the graph: compiling a match checks them.

What a toolchain says of a match and of a sub-graph is derived from what it says of one call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match, Pattern, anything, constant, op
from collage_engine.partition.rules import PartitionRule, PatternEntry, byoc_rules
from collage_engine.records.graph import OperatorNumber, OperatorSet, members

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
    """Match ``0.5 · x · gate`` in the orders that exporters use."""
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
    """Match ``x · clip(x + 3, 0, 6) / 6``."""
    shifted = op("add", x, scalar("three"))
    clipped = op("clip", shifted, min=lambda v: v == 0, max=lambda v: v == 6)
    six = scalar("six")
    return op("multiply", x, op("divide", clipped, six)) | op(
        "divide", op("multiply", x, clipped), six
    )


def hardsigmoid(x: Pattern) -> Pattern:
    """Match ``clip(α · x + β, 0, 1)``."""
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
    pattern = op(ACTIVATION_OPS, x, commutative=False)
    for chain in ACTIVATIONS.values():
        pattern = pattern | chain(x)
    return pattern


CONVOLUTIONS = tuple(f"nn.conv{d}d" for d in (1, 2, 3))


def anchor_patterns(prefix: str) -> list[tuple[str, Pattern]]:
    """Return patterns of anchors with bias, residual sum and activation.

    Each matches as much as it can.

    Args:
        prefix: What the patterns' names begin with.
    """
    tables = (
        ("conv", CONVOLUTIONS, True),
        ("dense", ("matmul",), True),
        ("matmul", ("matmul",), False),
    )
    patterns = []
    for name, ops, is_constant in tables:
        weights = constant("weights") if is_constant else anything("weights")
        anchor = op(ops, anything("data"), weights, commutative=False)
        biased = anchor.optional(lambda x: op("add", x, constant("bias")))
        added = biased.optional(lambda x: op("add", x, anything("residual")))
        patterns.append((f"{prefix}.{name}", added.optional(activation)))
    return patterns


Reason = Callable[[DataflowGraph, OperatorNumber], "str | None"]
"""A function that says why a toolchain cannot take an operator; None when it can."""


def against_nodes(reason: Reason, graph: DataflowGraph, nodes: OperatorSet) -> str | None:
    """Return the reason against the first call of a set that cannot be taken."""
    reasons = (reason(graph, index) for index in members(nodes))
    return next((refusal for refusal in reasons if refusal is not None), None)


def against_match(reason: Reason) -> Callable[[DataflowGraph, Match], str | None]:
    """Return the predicate of a pattern table's entry: every matched call can be taken."""
    return lambda graph, match: against_nodes(reason, graph, match.nodes)


def fusing_rules(
    name: str, reason: Reason, further: Sequence[PatternEntry] = (), *, joins: bool = False
) -> PartitionRule:
    """Return the rules of a library that fuses what follows an operator, written out or not.

    Args:
        name: The toolchain's name.
        reason: Says why the library cannot take a call.
        further: More composites, which come first.
        joins: Whether composites are joined as TVM's fusion would join them.
    """
    takes = against_match(reason)
    written_out = [(f"{name}.{key}", make(anything("x"))) for key, make in ACTIVATIONS.items()]
    patterns = (*anchor_patterns(name), *written_out)
    table = [*further, *((label, pattern, takes) for label, pattern in patterns)]
    return byoc_rules(table, joins, name=name, supports=reason)
