"""Draws random inputs that a model can digest: floats, integers in range, texts.

Floats are drawn from one of several ranges, since many models are defined on some numbers only: a
logarithm of negative ones is not finite, and what is not finite checks nothing. What has the shape
of an image gets a smooth picture, since white noise drives networks for pictures into chaos: their
outputs then depend on the last bit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.numpy_types import numpy_type
from collage_engine.records.graph import Node, TensorType
from collage_engine.records.numbering import NodeIndex

WORDS = np.array([b"a", b"collage", b"monday", "naïve".encode(), b"x@example.org", b"two words"])
"""Texts that inputs are drawn from; chosen: short ones of several kinds."""
RANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "normal": lambda x: x,
    "positive": np.abs,
    "0 to 1": lambda x: 1 / (1 + np.exp(-x)),
    "above 1": lambda x: 1 + np.abs(x),
    "near 0": lambda x: 0.01 * x,
}
"""By name, how floats of a range follow from normally distributed ones, in the order of trying:
domains of logarithm and root, of inverse sine, of probabilities, of inverse hyperbolic
cosine, and of powers that overflow."""
SMALLEST_PICTURE = 32
"""Height and width from which on one or three channels are taken for a picture: the pictures of
CIFAR-10, and MNIST's with their usual border."""
BLOBS, GRAIN = 7, 0.5
"""Independent values along each side of a picture, and the share of white noise on top; the values
of the study behind the choice of reduced precision (issue 26)."""
_HAND_ON = {
    "astype",
    "broadcast_to",
    "concat",
    "expand_dims",
    "maximum",
    "minimum",
    "permute_dims",
    "reshape",
    "split",
    "squeeze",
    "strided_slice",
    "tile",
    "where",
}

_DIVISIONS = {"divide", "floor_divide", "floor_mod", "mod"}
LARGEST_DIVISOR = 8
"""Integers that something is divided by are drawn from 1 to this; chosen: quotients of integers by
small ones differ."""
_ARITHMETIC = {
    "abs",
    "add",
    "equal",
    "greater",
    "greater_equal",
    "less",
    "less_equal",
    "multiply",
    "negative",
    "not_equal",
    "subtract",
}
FREE_BITS = 2
"""Bits that inputs of mere arithmetic leave unused: the sign, and one so that the sum of two does
not overflow."""


def _readers(graph: DataflowGraph, start: NodeIndex) -> Iterator[tuple[Node, NodeIndex]]:
    """Yield the nodes that read a parameter as it is, or handed on; each with what it reads."""
    seen = {start}
    stack = [start]
    while stack:
        current = stack.pop()
        for user in graph.users[current]:
            node = graph.nodes[user]
            yield node, current
            hands_on = node.op in _HAND_ON or node.form in ("tuple", "projection")
            if hands_on and user not in seen:
                seen.add(user)
                stack.append(user)


def _index_limit(graph: DataflowGraph, start: NodeIndex) -> int | None:
    """Return the smallest extent that a parameter's value indexes into; None if there is none."""
    limits = []
    for node, current in _readers(graph, start):
        if node.op == "take" and node.inputs[1] == current:
            axis = node.attributes.get("axis")
            table = graph.nodes[node.inputs[0]].type
            limits.append(table.elements if axis is None else table.shape[axis])
        elif node.op == "gather_elements" and node.inputs[1] == current:
            table = graph.nodes[node.inputs[0]].type
            limits.append(table.shape[node.attributes["axis"]])
        elif node.op in ("gather_nd", "scatter_nd", "scatter_elements"):
            if node.inputs[1] == current:
                limits.append(min(graph.nodes[node.inputs[0]].type.shape, default=1))
        elif node.op == "one_hot":
            limits.append(node.attributes["depth"])
    return min(limits, default=None)


def _is_divisor(graph: DataflowGraph, start: NodeIndex) -> bool:
    """Tell whether something is divided by a parameter, so that it must not be 0."""
    return any(
        node.op in _DIVISIONS and node.inputs[1] == current
        for node, current in _readers(graph, start)
    )


def _largest(graph: DataflowGraph, start: NodeIndex) -> int:
    """Return the largest integer that a parameter is given which neither indexes nor divides.

    It is 1, since most such inputs are masks or lengths, which other numbers make meaningless. Only
    what nothing but arithmetic on integers is done with takes large ones: a library that computes
    it in float32 is right about small numbers.
    """
    width = bits = np.iinfo(graph.nodes[start].type.dtype).bits
    known = _HAND_ON | _DIVISIONS | _ARITHMETIC
    seen, waiting = {start}, [start]
    while waiting:
        for user in graph.users[waiting.pop()]:
            node = graph.nodes[user]
            whole = all(each.dtype.startswith(("int", "uint", "bool")) for each in node.types)
            if not whole or (node.op not in known and node.form not in ("tuple", "projection")):
                return 1
            if node.op == "multiply":
                bits = width // 2  # so that the product of two does not overflow
            if user not in seen:
                seen.add(user)
                waiting.append(user)
    return int(2 ** (bits - FREE_BITS) - 1) if len(seen) > 1 else 1


def _normal(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return normally distributed floats; a smooth picture where the shape is that of one."""
    is_picture = len(shape) == 4 and shape[1] in (1, 3) and min(shape[2:]) >= SMALLEST_PICTURE
    if not is_picture:
        return random.standard_normal(shape, dtype=np.float32)
    from scipy.ndimage import zoom  # takes 0.2 s to import

    coarse = random.standard_normal((*shape[:2], BLOBS, BLOBS), dtype=np.float32)
    sides = (shape[2] / BLOBS, shape[3] / BLOBS)
    smooth = zoom(coarse, (1, 1, *sides), order=3, mode="nearest", grid_mode=True)
    return np.asarray(smooth + GRAIN * random.standard_normal(shape, dtype=np.float32))


def random_inputs(
    graph: DataflowGraph,
    inputs: tuple[tuple[str, TensorType], ...],
    seed: int,
    numbers: str = "normal",
) -> dict[str, np.ndarray]:
    """Return one array per input, the same for the same seed, range and name.

    Integers that index something stay within it; divisors are not 0; other 8-bit ones take all
    their values. Other wide integers are 0 or 1 (masks, lengths), and 1 for another range than the
    normal one; where nothing but arithmetic on integers is done with them, every other one is as
    large as its type allows.

    Args:
        graph: The model.
        inputs: Name and type of each of its inputs.
        seed: Of all of them.
        numbers: The range of floats, one of ``RANGES``.
    """
    made = {}
    for (name, kind), index in zip(inputs, graph.record.inputs, strict=True):
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        random = np.random.default_rng([seed, word])
        values: np.ndarray
        if kind.dtype == "string":
            values = random.choice(WORDS, kind.shape)
        elif kind.dtype == "bool":
            values = random.random(kind.shape) < 0.5
        elif kind.dtype.startswith(("int", "uint")):
            limit = _index_limit(graph, index)
            if limit is not None:
                values = random.integers(0, max(limit, 1), kind.shape)
            elif _is_divisor(graph, index):
                values = random.integers(1, LARGEST_DIVISOR + 1, kind.shape)
            elif kind.dtype in ("int8", "uint8"):
                bounds = np.iinfo(kind.dtype)
                values = random.integers(bounds.min, bounds.max + 1, kind.shape)
            else:
                values = random.integers(0 if numbers == "normal" else 1, 2, kind.shape)
                largest = _largest(graph, index)
                if largest > 1:
                    values = np.asarray(values)
                    values.flat[::2] = random.integers(1, largest + 1, values.size)[::2]
        else:
            values = RANGES[numbers](_normal(random, kind.shape))
        made[name] = np.asarray(values).astype(numpy_type(kind.dtype))
    return made
