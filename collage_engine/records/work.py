"""Counts the work of operators: arithmetic operations, and bytes that are read and written.

Operations are those of convolutions and matrix products, computed directly: two for each
multiply-add, those on padding counted. That is how achieved GFLOP/s are usually stated; a toolchain
that convolves by Winograd's method performs fewer, and so may seem to exceed the processor's peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from collage_engine.records.graph import GraphRecord, Node
from collage_engine.records.numbering import NodeIndex
from collage_engine.records.operators import OPERATORS


class Work(NamedTuple):
    """What one operator computes and moves."""

    operations: float
    """Floating-point (or integer) operations."""
    moved_bytes: int
    """Bytes of its inputs, weights included, and of its outputs."""


def work_of_operators(graph: GraphRecord) -> list[Work]:
    """Return the work of each operator, by operator number."""
    nodes = {node.index: node for node in graph.nodes}

    def size(index: NodeIndex) -> int:
        return sum(kind.bytes for kind in nodes[index].types)

    found = []
    for call in (node for node in graph.nodes if node.form == "call"):
        sources = [nodes[index] for index in call.inputs]
        moved = size(call.index) + sum(size(index) for index in dict.fromkeys(call.inputs))
        found.append(Work(_operations(call, sources), moved))
    return found


def _operations(call: Node, sources: Sequence[Node]) -> float:
    """Return the operations of a convolution or matrix product; 0 for any other operator."""
    if call.is_tuple or len(sources) < 2 or any(len(source.types) != 1 for source in sources[:2]):
        return 0.0
    data, weight = sources[0].type, sources[1].type
    how = OPERATORS[call.op].work if call.op in OPERATORS else ""
    if how == "product":
        return 2.0 * call.type.elements * data.shape[-1] if data.shape else 0.0
    layout = str(call.attributes.get("kernel_layout", ""))
    if len(layout) != len(weight.shape):
        return 0.0
    if how == "convolution":
        # Each output element sums over the taps of the input channels of its group.
        return 2.0 * call.type.elements * weight.elements / weight.shape[layout.index("O")]
    if how == "transposed":
        return 2.0 * data.elements * weight.elements / weight.shape[layout.index("I")]
    return 0.0
