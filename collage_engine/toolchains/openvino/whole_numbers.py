"""Knows which operators OpenVINO computes exactly on whole numbers, up to which, and at ties.

Its CPU plugin computes int64 in int32, of which it keeps the low bits, and has kernels of int32 for
some operators only; the others are computed in float32, which holds whole numbers up to 2^24. Seen
in OpenVINO 2026.4 on each operator at the ends of each type, as ``collage toolchains check`` asks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.whole_numbers import COMPARISONS, WholeNumbers, is_whole, most
from collage_engine.records.graph import Node, members
from collage_engine.records.operators import OPERATORS, is_opaque, onnx_type

IN_INT32 = {
    *("Abs", "Add", "ArgMax", "ArgMin", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
    *("Cast", "Compress", "Concat", "CumSum", "Expand", "Flatten", "Gather", "GatherElements"),
    *("GatherND", "Identity", "Max", "Min", "Mul", "Neg", "NonZero", "OneHot", "Reshape"),
    *("ReverseSequence", "ScatterElements", "ScatterND", "Sign", "Slice", "Split", "Squeeze"),
    *("Sub", "Sum", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where"),
}
"""ONNX operators with kernels of int32; and ``Sign``, which rounding does not change."""
INT32, FLOAT32 = 2**31 - 1, 2**24
"""The largest magnitudes that are computed exactly."""


def inexact(numbers: WholeNumbers, node: Node, bounds: Sequence[float]) -> str | None:
    """Return why OpenVINO does not compute an operator exactly; None where it does.

    Args:
        numbers: The whole numbers of the graph.
        node: The operator.
        bounds: How large they can be.
    """
    values = numbers.graph.values
    kinds = [values[i].type for i in (*node.inputs, *node.outputs) if is_whole(values[i].type)]
    operands = numbers.operands(node, bounds)
    bound = numbers.result(node, bounds)
    results = [min(bound, max(map(most, kinds)))] if any(map(is_whole, node.types)) else []
    if not kinds or (is_opaque(node.op) and not operands and not results):
        return None
    largest = [*operands, *results]
    if max(largest, default=0) > INT32 and any(kind.dtype.endswith("64") for kind in kinds):
        return "OpenVINO computes whole numbers of 64 bits in 32, and these may be larger"
    if node.op in COMPARISONS:
        largest = [min(operands) + 1]  # one that float32 holds is told apart from all others
    elif _becomes_float(numbers, node):
        largest = operands
    name = node.onnx_type or onnx_type(node.op)
    if _wraps_around(node, bound):
        return f"OpenVINO saturates {name} in 8 bits, which wraps around in ONNX"
    if name in IN_INT32 or max(largest, default=0) <= FLOAT32:
        return None
    return f"OpenVINO computes {name} in float32, which holds whole numbers up to 2^24"


def rounds_otherwise(graph: DataflowGraph, node: Node) -> str | None:
    """Return why OpenVINO does not quantise as ONNX does where it matters; None where it does.

    It adds the zero point before it rounds, so that with an odd one halves go to the other side,
    and it saturates no 16 bits. What products were computed of, or go into, may be off by a step
    anyway; other values that the model gives may not.
    """
    if node.op != "quantize" and node.op != "onnx:QuantizeLinear":
        return None
    if not node.type.dtype.endswith("int8"):
        return f"OpenVINO quantises to 8 bits, and does not saturate {node.type.dtype}"
    if any(_is_product(graph.nodes[index]) for index in members(graph.upstream[node.index])):
        return None
    # A scale that is computed from the values themselves gives ties by chance alone.
    follows_floats = graph.values[node.inputs[1]].constant
    waiting, seen = [node.index], {node.index}
    while waiting:
        index = waiting.pop()
        if graph.leaving >> index & 1:
            return "OpenVINO rounds some halves to odd numbers, ONNX to even ones"
        users = {
            i
            for i in graph.users[index]
            if (follows_floats or any(map(is_whole, graph.nodes[i].types)))
            and not _is_product(graph.nodes[i])
        }
        waiting += users - seen
        seen |= users
    return None


def _is_product(node: Node) -> bool:
    return node.op in OPERATORS and bool(OPERATORS[node.op].work)


def _wraps_around(node: Node, bound: float) -> bool:
    """Tell whether an operator's results may be beyond 8 bits, which OpenVINO saturates."""
    kind = node.types[0]
    below_zero = node.op == "subtract" and kind.dtype == "uint8"
    return kind.dtype.endswith("int8") and (below_zero or most(kind) < bound < math.inf)


def _becomes_float(numbers: WholeNumbers, node: Node) -> bool:
    """Tell whether all that reads a product of whole numbers makes floats of it."""
    graph = numbers.graph
    readers = [graph.nodes[user] for user in graph.users[node.index]]
    floats = readers and all(not is_whole(kind) for reader in readers for kind in reader.types)
    return bool(floats) and not graph.leaving >> node.index & 1
