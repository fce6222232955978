"""How far 8-bit results may be from the true ones.

A value that is rounded once must be within one step of the truth. Where several roundings follow
each other, sums in another order flip a rounding here and there (a few elements in a million for
each convolution), and what is one step apart goes into the next sum. Seen on a chain of nine: three
steps at most, in ONNX Runtime as in our own kernels, and 4 elements in 100 000 more than one step
apart. Hence the largest difference may grow as a random walk does, and be larger than one step in
one of a thousand elements only.
"""

from __future__ import annotations

import re

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import NodeSet, members

ROUNDS = re.compile(r"quantize|onnx:(com\.microsoft\.)?(QuantizeLinear|QLinear\w+|QGemm)")
"""Operators that round to 8 bits: those of the dataflow graph, and opaque ones."""
SHARE = 1e-3
"""Share of the elements that may be more than one step apart, where roundings follow each other.
Chosen."""


def roundings(graph: DataflowGraph, nodes: NodeSet) -> dict[int, int]:
    """Return how many roundings to 8 bits lie before each node of a set.

    Args:
        graph: The dataflow graph.
        nodes: The set.

    Returns:
        By node index, the most of them on a path inside the set that ends at the node.
    """
    depth: dict[int, int] = {}
    for index in members(nodes):
        node = graph.nodes[index]
        before = max((depth.get(i, 0) for i in node.inputs), default=0)
        depth[index] = before + (ROUNDS.fullmatch(node.op) is not None)
    return depth


def is_quantised(graph: DataflowGraph, index: int) -> bool:
    """Tell whether an 8-bit value stands for a float, and may be off by a step.

    It does where an operator that rounds made it, and others handed it on in its type. A class or a
    count that is turned into 8 bits stands for itself.

    Args:
        graph: The dataflow graph.
        index: The node index of the value.
    """
    dtype = graph.nodes[index].type.dtype if not graph.nodes[index].is_tuple else ""
    if dtype not in ("int8", "uint8"):
        return False
    waiting, seen = [index], {index}
    while waiting:
        node = graph.nodes[waiting.pop()]
        if ROUNDS.fullmatch(node.op):
            return True
        for source in node.inputs:
            if source not in seen and any(
                kind.dtype == dtype for kind in graph.nodes[source].types
            ):
                seen.add(source)
                waiting.append(source)
    return False


def most_steps(depth: int) -> int:
    """Return the largest difference from the truth, in steps, that so many roundings explain."""
    return 0 if depth == 0 else 1 if depth == 1 else int(1 + depth**0.5)


def relative_bound(depth: int) -> float:
    """Return the relative error that so many roundings explain.

    The range of the numbers is taken to be 255 steps, and the next operator to round once more.
    """
    return float((1 + max(depth, 1) ** 0.5) / 255)


def steps_apart(computed: np.ndarray, truth: np.ndarray, step: float, depth: int) -> str | None:
    """Return what is wrong with values that were rounded to 8 bits; None: roundings explain it.

    Args:
        computed: The computed values.
        truth: The true ones.
        step: The step of the quantisation.
        depth: How many roundings follow each other before the value.
    """
    apart = np.abs(computed.astype(np.float64) - truth.astype(np.float64)) / step
    worst = float(apart.max(initial=0.0))
    # A tenth of a step is far beyond what float32 adds to a dequantised value.
    if worst > most_steps(depth) + 0.1:
        return f"off by {worst:g} steps, {most_steps(depth)} are allowed"
    share = float((apart > 1.1).mean()) if apart.size else 0.0
    if share > SHARE:
        return f"{share:.2%} of the elements are off by more than one step"
    return None
