"""Matches quantised composites: DequantizeLinear → operator → QuantizeLinear as one integer call.

The table of patterns and what a match means, for every toolchain: which constants are scales and
zero points, what the operator is, what is fused into it. The dataflow graph does not hold the
numbers of constants, so these (are these zero points zero? does the bias' scale fit?) are looked at
when a composite is compiled, by ``Numbers`` (quantized_numbers.py).

The parts of a match: ``anchor``: the operator; ``data``, ``weights``, ``residual``, ``left``,
``right``, ``part<i>``: 8-bit operands, each with ``<name>_float`` (its dequantize),
``<name>_scale`` and ``<name>_zero``; ``bias`` (with ``bias_scale`` and ``bias_zero`` when it is
int32); ``activation``; ``quantize`` with ``scale`` and ``zero``, absent when the result stays
float.

Clean-up gives every reader a DequantizeLinear of its own (model/onnx_cleanup.py), so these
composites are disjoint and each has one exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Literal

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import (
    Match,
    Pattern,
    Where,
    anything,
    closed_matches,
    constant,
    disjoint,
    op,
)
from collage_engine.records.graph import (
    OperatorNumber,
    OperatorSet,
    Value,
)

SMALL = ("int8", "uint8")
Kind = Literal["conv", "matmul", "binary", "pool", "concat", "view", "unary", "requantize"]

CONVOLUTIONS = tuple(f"nn.conv{d}d" for d in (1, 2, 3))
BINARY = ("add", "subtract", "multiply")
POOLS = tuple(f"nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)) + tuple(
    f"nn.adaptive_{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)
)
VIEWS = (
    "reshape",
    "permute_dims",
    "squeeze",
    "expand_dims",
    "flatten",
    "nn.batch_flatten",
    "strided_slice",
)
ACTIVATIONS = (
    "nn.relu",
    "clip",
    "nn.relu6",
    "nn.leakyrelu",
    "sigmoid",
    "tanh",
    "nn.silu",
    "nn.gelu",
    "nn.gelu_tanh",
)
MOST_CONCATENATED = 8
"""Operands of a concatenation that is matched, at most: each number is a pattern. Chosen."""


# Patterns ------------------------------------------------------------------------------------


def _typed(*dtypes: str) -> Where:
    return lambda graph, value: value.type.dtype in dtypes


def _not_broadcast(graph: DataflowGraph, value: Value) -> bool:
    read = graph.nodes[value.index].inputs
    return {graph.values[i].type.shape for i in read} == {value.type.shape}


def dequantized(name: str) -> Pattern:
    """Return a dequantize of an 8-bit value, with a constant scale and zero point."""
    return _dequantize(anything(name, where=_typed(*SMALL)), name)


def _dequantize(value: Pattern, name: str) -> Pattern:
    return op(
        "dequantize",
        value,
        constant(f"{name}_scale"),
        constant(f"{name}_zero"),
        name=f"{name}_float",
        commutative=False,
    )


def _weights() -> Pattern:
    """Return a pattern of constant 8-bit weights, transposed or not (Gemm's transB)."""
    plain = _dequantize(constant("weights", where=_typed(*SMALL)), "weights")
    return op("permute_dims", plain, name="weights_order") | plain


def _bias(x: Pattern) -> Pattern:
    """Return a pattern of ``x`` plus a constant, quantised to 32 bits or not, reshaped or not."""
    whole = _dequantize(constant("bias", where=_typed("int32")), "bias")
    shaped = op("reshape", whole, name="bias_shape")
    return op("add", x, shaped | whole | constant("bias"))


def _quantize(x: Pattern) -> Pattern:
    return op(
        "quantize",
        x,
        constant("scale"),
        constant("zero"),
        name="quantize",
        dtypes=SMALL,
        commutative=False,
    )


def _activated(x: Pattern) -> Pattern:
    return x.optional(lambda y: op(ACTIVATIONS, y, name="activation"))


def _anchored(ops: str | tuple[str, ...]) -> Pattern:
    """Return a pattern of products by constant weights, with what may follow."""
    anchor = op(ops, dequantized("data"), _weights(), name="anchor", commutative=False)
    return _activated(
        anchor.optional(_bias).optional(
            lambda x: op("add", x, dequantized("residual"), where=_not_broadcast)
        )
    )


def _of_two(ops: str | tuple[str, ...], left: str, right: str) -> Pattern:
    operands = dequantized(left), dequantized(right)
    return _activated(op(ops, *operands, name="anchor", commutative=False))


def _concat(parts: int) -> Pattern:
    return op("concat", *(dequantized(f"part{i}") for i in range(parts)), name="anchor")


def quantized_patterns() -> list[tuple[Kind, Pattern]]:
    """Return the table, largest matches first; the kind is what a match is.

    Fresh patterns each time: a pattern's parts are what a match binds.
    """
    table: list[tuple[Kind, Pattern]] = [
        ("conv", _quantize(_anchored(CONVOLUTIONS))),
        ("matmul", _quantize(_anchored("matmul"))),
        ("matmul", _quantize(_of_two("matmul", "data", "right"))),
        ("binary", _quantize(_of_two(BINARY, "left", "right"))),
        ("pool", _quantize(op((*POOLS, "mean"), dequantized("data"), name="anchor"))),
        ("view", _quantize(op(VIEWS, dequantized("data"), name="anchor"))),
        ("unary", _quantize(op(ACTIVATIONS, dequantized("data"), name="anchor"))),
    ]
    table += [("concat", _quantize(_concat(n))) for n in range(MOST_CONCATENATED, 1, -1)]
    table += [
        ("requantize", _quantize(dequantized("data"))),
        ("conv", _anchored(CONVOLUTIONS)),
        ("matmul", _anchored("matmul")),
        ("matmul", _of_two("matmul", "data", "right")),
    ]
    return table


Whole = Callable[[DataflowGraph, Match], str | None]


def pattern_table(prefix: str) -> list[tuple[str, Pattern, Whole]]:
    """Return (name, pattern, further check) of composites, for a toolchain's rules.

    A toolchain whose own optimiser finds them (ONNX Runtime, OpenVINO) needs no more than each
    composite as a candidate.

    Args:
        prefix: The toolchain's name, with which names begin: ``<toolchain>.quantized_conv`` and so
            on.
    """
    return [
        (f"{prefix}.quantized_{kind}", pattern, whole) for kind, pattern in quantized_patterns()
    ]


def whole(graph: DataflowGraph, match: Match) -> str | None:
    """Return the reason against a composite that is part of a larger one; None when it is not.

    The larger one would be computed in integers as well, and rounded: to hand the float result of
    its part on is a candidate that no cover needs.
    """
    for other in find(graph):
        if other.nodes >> match.root & 1 and other.root != match.root:
            name = graph.nodes[other.root].name or graph.nodes[other.root].op
            return f"is part of the composite that ends with {name}"
    return None


# Finding them --------------------------------------------------------------------------------


@lru_cache(maxsize=8)  # a process works on one model, or on a few of its shapes
def find(graph: DataflowGraph) -> tuple[Match, ...]:
    """Return every place where a composite's inner values are read by nobody else.

    They may overlap.
    """
    if not any(node.op == "dequantize" for node in graph.nodes):
        return ()
    return tuple(closed_matches(graph, quantized_patterns()))


def within(
    graph: DataflowGraph, inside: OperatorSet, leaving: OperatorSet = 0
) -> dict[OperatorNumber, Match]:
    """Return the composites that lie in a set, by root; see ``disjoint``."""
    return disjoint(find(graph), inside, leaving)


def completed(graph: DataflowGraph, pieces: Iterable[OperatorSet]) -> list[OperatorSet]:
    """Return sets of operators with each composite either whole or left out, without duplicates.

    A composite belongs to a set that holds its end. Cuts between fusion groups go through the
    dequantize of the next composite, and weights are dequantized apart from all that flows.
    """
    units = [(match.nodes, 1 << match.root) for match in within(graph, graph.everything).values()]
    result: dict[OperatorSet, None] = {}
    for piece in pieces:
        for operators, root in units:
            if piece & operators:
                piece = piece | operators if piece & root else piece & ~operators
        if piece:
            result.setdefault(piece, None)
    return list(result)
