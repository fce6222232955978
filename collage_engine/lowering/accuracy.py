"""How far computed values are from the true ones, and how far they may be.

Floats may be as far off as their type, the precision and the roundings before them explain. Whole
numbers, booleans and texts must be equal; a whole number that is a float rounded to 8 bits may be
off as far as roundings explain. In a large map of whole numbers, such as the classes of all pixels
of an image, some may hang on the last bit of floats, for the reference itself; what counts then is
the share of values that differ (``unsettled_share``).

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
from collage_engine.records.graph import OperatorSet, members
from collage_engine.records.precision import TOLERANCES

ROUNDS = re.compile(r"quantize|onnx:(com\.microsoft\.)?(QuantizeLinear|QLinear\w+|QGemm)")
"""Operators that round to 8 bits: those of the dataflow graph, and opaque ones."""
SHARE = 1e-3
"""Share of the elements that may be more than one step apart, where roundings follow each other.
Chosen."""


def roundings(graph: DataflowGraph, nodes: OperatorSet) -> dict[int, int]:
    """Return how many roundings to 8 bits lie before each value that a set of operators makes.

    Args:
        graph: The dataflow graph.
        nodes: The operators.

    Returns:
        By value index, the most of them on a path inside the set that ends at the value.
    """
    depth: dict[int, int] = {}
    for index in members(nodes):
        node = graph.nodes[index]
        before = max((depth.get(i, 0) for i in node.inputs), default=0)
        depth |= dict.fromkeys(node.outputs, before + (ROUNDS.fullmatch(node.op) is not None))
    return depth


def is_quantised(graph: DataflowGraph, index: int) -> bool:
    """Tell whether an 8-bit value stands for a float, and may be off by a step.

    It does where an operator that rounds made it, and others handed it on in its type. A class or a
    count that is turned into 8 bits stands for itself.

    Args:
        graph: The dataflow graph.
        index: The value.
    """
    dtype = graph.values[index].type.dtype
    if dtype not in ("int8", "uint8"):
        return False
    waiting, seen = [index], {index}
    while waiting:
        node = graph.operator_of(waiting.pop())
        if node is None:
            continue
        if ROUNDS.fullmatch(node.op):
            return True
        for source in node.inputs:
            if source not in seen and graph.values[source].type.dtype == dtype:
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


NOISE_FACTOR = 3.0
"""The tolerance is this multiple of the rounding noise: the first whole number above what errors of
ONNX Runtime's optimised levels were of it, 0.4 to 2.2 times on eight models of ``tests.zoo``,
quantised ones among them."""
MOST_UNSETTLED = 0.01
"""Share of an output's whole numbers that may hang on the last bit of floats; chosen above the one
of 262,144 pixels that did in a random segmentation network."""


def tolerance(precision: str) -> float:
    """Return the bound on ``max_rel_error`` at a precision; for integers a step in 255."""
    return TOLERANCES.get(precision, 1 / 255)


def is_exact(dtype: str) -> bool:
    """Tell whether values of an element type are right or wrong, and never near enough."""
    return not dtype.startswith(("float", "bfloat"))


def wrong_by(error: tuple[float, float], bound: float, dtype: str) -> str | None:
    """Judge one output; every comparison with true values decides by this.

    Args:
        error: Its largest absolute and relative error, from the loader's ``error_of``.
        bound: What its relative error may be; 0: it must be equal.
        dtype: Its element type.

    Returns:
        What is wrong with it, in words; None: it is right.
    """
    absolute, relative = error
    if relative <= bound:  # NaN is within no bound
        return None
    if dtype == "string":
        return "another text"
    if np.isinf(absolute):
        return "not finite in the same places, or of another shape"
    if is_exact(dtype) and bound:
        return f"{relative:.3%} of the values differ, {bound:.3%} may"
    if is_exact(dtype):
        return f"off by {absolute:g} in {dtype}"
    return f"relative error {relative:.3g}, {bound:.3g} is allowed"


def counts_values(dtype: np.dtype) -> bool:
    """Tell whether the relative error of values of a type is the share of those that differ."""
    return dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize > 1)


def unsettled_share(moved: float, count: int) -> float:
    """Return the share of whole numbers of an output that may differ from the true ones.

    Args:
        moved: The share that differs where floats change in the last bit (``rounding_noise``).
        count: The number of values.

    Returns:
        A multiple of it, and never more than ``MOST_UNSETTLED``; 0 of fewer than a hundred values,
        each of which must be right.
    """
    share = min(MOST_UNSETTLED, NOISE_FACTOR * moved)
    return share if share * count >= 1 else 0.0


def share_not_finite(truth: np.ndarray) -> float:
    """Return the share of true values that are NaN or infinite; 0 of what is no float."""
    if not truth.size or truth.dtype.kind in "biuSU":
        return 0.0
    return 1.0 - float(np.isfinite(truth.astype(np.float64)).mean())


def compares(truth: np.ndarray) -> bool:
    """Tell whether a comparison with these true values says anything: one of them is finite."""
    return share_not_finite(truth) < 1.0
