"""Draws random inputs that a model can digest: floats, integers in range, texts.

Floats are drawn from one of several ranges, since many models are defined on some numbers only: a
logarithm of negative ones is not finite, and what is not finite checks nothing. What has the shape
of an image gets a smooth picture, since white noise drives networks for pictures into chaos: their
outputs then depend on the last bit.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Iterator, Sequence

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.values import numpy_type
from collage_engine.model.whole_numbers import (
    DIVISIONS,
    HAND_ON,
    POWERS,
    WholeNumbers,
    is_whole,
    most,
)
from collage_engine.records.graph import Node, TensorType, ValueIndex

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
EXACT = HAND_ON | {
    *(
        "abs",
        "ceil",
        "clip",
        "floor",
        "max",
        "maximum",
        "min",
        "minimum",
        "negative",
        "nn.max_pool1d",
    ),
    *("nn.max_pool2d", "nn.max_pool3d", "nn.relu", "reverse_sequence", "round"),
}
"""Relax operators whose results every library gives to the last bit, and which keep halves."""
TIED = {"argmax", "argmin", "topk", "round", "quantize", "onnx:MaxPool", "onnx:QuantizeLinear"}
"""Operators whose results depend on what becomes of equal values, or of halves."""
LARGE = {"int32": 2.0**28, "int64": 2.0**50}
"""What normally distributed floats are multiplied with before they become whole numbers of a type:
as much as leaves all of them in its range, and 1e15 in that of int64."""
EDGES = ("halves", "large")
"""Further ranges of floats, for graphs that decide something by them: whole numbers and halves, and
what is turned into whole numbers."""
EVALUATED = 2**53
"""The largest powers and products: true values come from ONNX Runtime, which computes these in
float64 where they are of int64."""
LARGEST_EXPONENT = 3
"""The largest whole number that something is raised to, or shifted by; chosen: powers differ, and
their bases may be large."""
LARGEST_DIVISOR = 2**LARGEST_EXPONENT
"""Whole numbers that something is divided by have at most this magnitude, and are not 0: a shift
divides by no more either, and quotients by small numbers differ."""


def edges(graph: DataflowGraph) -> tuple[str, ...]:
    """Return the ranges of ``EDGES`` that a graph is to be tried with, besides those of all."""
    floats = [
        value.index for value in graph.record.parameters if value.type.dtype.startswith("float")
    ]
    tied = any(node.op in TIED for i in floats for node, _ in _read_exactly(graph, i))
    large = any(_factor(graph, i) > 1 for i in floats)
    return tuple(edge for edge, is_tried in zip(EDGES, (tied, large), strict=True) if is_tried)


def _read_exactly(graph: DataflowGraph, start: ValueIndex) -> Iterator[tuple[Node, ValueIndex]]:
    """Yield the operators that read a parameter as it is, or what is exactly known of it."""
    seen, waiting = {start}, [start]
    while waiting:
        current = waiting.pop()
        for reader in graph.readers[current]:
            node = graph.nodes[reader]
            yield node, current
            if node.op in EXACT and reader not in seen:
                seen.add(reader)
                waiting += node.outputs


def _factor(graph: DataflowGraph, start: ValueIndex) -> float:
    """Return how large a float is made before it becomes a whole number; 1 where it does not."""
    casts = [
        LARGE.get(node.type.dtype, 1.0)
        for node, source in _read_exactly(graph, start)
        if node.op == "astype" and is_whole(node.type) and not is_whole(graph.values[source].type)
    ]
    return min(casts, default=1.0)


def _compared(graph: DataflowGraph, start: ValueIndex) -> list[int]:
    """Return the constants that a single whole number is compared with, such as a sampling rate.

    They are known by their magnitude.
    """
    if graph.values[start].type.elements != 1:
        return []
    constants = {
        graph.values[i].largest
        for node, _ in _read_exactly(graph, start)
        if node.op == "equal"
        for i in node.inputs
    }
    return sorted(value for value in constants if value is not None)


def _reads_as(graph: DataflowGraph, start: ValueIndex, operators: Container[str]) -> bool:
    """Tell whether a parameter, or what is exactly known of it, is a second operand."""
    return any(
        node.op in operators and node.inputs[1] == current
        for node, current in _read_exactly(graph, start)
    )


class _WholeNumbersDrawn:
    """Draws the whole numbers that a graph's parameters are given.

    Indices stay within what they index; divisors are small and not 0, exponents small and not
    negative. Of the others, those of which nothing but whole numbers is computed are as large as
    nothing overflows, with both signs; what decides floats is a mask or a length in most models,
    which other numbers than 0 and 1 make meaningless, and takes all values where it has 8 bits.
    A single number that is compared with constants is one of these or none, turn by turn.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        """Find out how large each parameter may be."""
        self.graph = graph
        self.numbers = WholeNumbers(graph)
        whole = [value.index for value in graph.record.parameters if is_whole(value.type)]
        self.divisors = {i for i in whole if _reads_as(graph, i, DIVISIONS)}
        self.exponents = {i for i in whole if _reads_as(graph, i, POWERS)}
        self.compared = {i: _compared(graph, i) for i in whole}
        small = dict.fromkeys(self.divisors, LARGEST_DIVISOR)
        small |= dict.fromkeys(self.exponents, LARGEST_EXPONENT)
        free = {
            i: most(graph.values[i].type)
            for i in whole
            if i not in small and self.numbers.index_limit[i] == math.inf
        }
        self.bounds = self.numbers.fitted(free, self._fits, least=1, fixed=small)

    def _fits(self, node: Node, bounds: Sequence[float]) -> bool:
        """Tell whether a node's results wrap around at no value, and are evaluated exactly."""
        largest = max(map(most, node.types))
        if node.op in ("mean", "power", "prod"):
            largest = min(largest, EVALUATED)
        return self.numbers.result(node, bounds) <= largest

    def draw(
        self, index: ValueIndex, random: np.random.Generator, numbers: str, turn: int
    ) -> np.ndarray:
        """Return values of a parameter, for a range of floats; others in the next turn."""
        kind = self.graph.values[index].type
        choices = [*self.compared[index], None]
        choice = choices[turn % len(choices)]
        if choice is not None:
            return np.full(kind.shape, choice)
        shape, signed = kind.shape, kind.dtype.startswith("int")
        limit, bound = self.numbers.index_limit[index], int(self.bounds[index])
        if limit < math.inf:
            return random.integers(0, max(int(limit), 1), shape)
        if index in self.exponents:
            return random.integers(0, LARGEST_EXPONENT + 1, shape)
        if index in self.divisors:
            values = random.integers(1, LARGEST_DIVISOR + 1, shape)
        elif kind.dtype in ("int8", "uint8"):
            if self.numbers.decides_more[index]:
                return random.integers(-128 if signed else 0, most(kind) + 1, shape)
            return random.integers(-bound if signed else 0, bound + 1, shape)
        elif self.numbers.decides_more[index] or not self.graph.readers[index]:
            return random.integers(0 if numbers in ("normal", *EDGES) else 1, 2, shape)
        else:
            bits = random.integers(0, bound.bit_length() + 1, shape).astype(np.uint64)
            drawn = random.integers(0, 2**64, shape, dtype=np.uint64)
            values = np.minimum(drawn >> (np.uint64(64) - np.maximum(bits, 1)), np.uint64(bound))
            values = np.where(bits == 0, np.uint64(0), values)
            values.flat[:1] = bound
        if not signed:
            return values
        return np.where(random.random(shape) < 0.5, -1, 1) * values.astype(np.int64)


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

    Whole numbers are drawn as ``_WholeNumbersDrawn`` says.

    Args:
        graph: The model.
        inputs: Name and type of each of its inputs.
        seed: Of all of them.
        numbers: The range of floats, one of ``RANGES`` or ``EDGES``.
    """
    made = {}
    turn = seed + (*RANGES, *EDGES).index(numbers)
    whole = _WholeNumbersDrawn(graph)
    for (name, kind), index in zip(inputs, graph.record.inputs, strict=True):
        word = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
        random = np.random.default_rng([seed, word])
        values: np.ndarray
        if kind.dtype == "string":
            values = random.choice(WORDS, kind.shape)
        elif kind.dtype == "bool":
            values = random.random(kind.shape) < 0.5
        elif is_whole(kind):
            values = whole.draw(index, random, numbers, turn)
        elif numbers == "halves":
            values = np.round(2 * _normal(random, kind.shape)) / 2
        elif numbers == "large":
            values = _factor(graph, index) * _normal(random, kind.shape)
        else:
            values = RANGES[numbers](_normal(random, kind.shape))
        made[name] = np.asarray(values).astype(numpy_type(kind.dtype))
    return made
