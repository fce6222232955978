"""Places the values of a plan among its arguments, weights and temporaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.values import numpy_type
from collage_engine.support.errors import UnsupportedError

ALIGN = 256
"""Bytes to which values in device memory are aligned, as cudaMalloc aligns its own (CUDA C++
Programming Guide, device memory accesses)."""
NEAR = 2.0**-9
"""Relative difference up to which a scalar counts as an expected one: what rounding to bfloat16,
the shortest type of scalars, changes at most (8 bits of significand)."""

Constants = Callable[[int], np.ndarray]


class Places:
    """Gives each value of a function its place, and keeps the weights."""

    def __init__(
        self,
        graph: DataflowGraph,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        constants: Constants,
        dry: bool = False,
    ) -> None:
        """Create the places of a function's values, among which inputs and outputs are arguments.

        Args:
            graph: The model's dataflow graph.
            inputs: The function's inputs, in argument order.
            outputs: The function's outputs, in argument order.
            constants: Gives the numbers of a constant.
            dry: Whether weights have their places, all the same one, but are not kept.
        """
        self.graph = graph
        self.constants = constants
        self.dry = dry
        self.weights = bytearray()
        self.scratch = 0
        self.known: dict[int, dict[str, Any]] = {
            index: {"where": "argument", "at": at} for at, index in enumerate((*inputs, *outputs))
        }
        self.turned: dict[int, dict[str, Any]] = {}
        """Values that also lie in the library's own order of axes, in temporaries."""

    def read(self, index: int) -> dict[str, Any]:
        """Return a value that is given, made or constant."""
        if index not in self.known:
            if not self.graph.values[index].constant:
                raise UnsupportedError("a product reads what is not made yet")
            self.known[index] = self.constant(self.constants(index))
        return self.known[index]

    def constant(self, array: np.ndarray) -> dict[str, Any]:
        """Keep an array among the weights; its place."""
        if self.dry:
            return {"where": "weight", "at": 0}
        self.weights.extend(b"\0" * (-len(self.weights) % ALIGN))
        location = {"where": "weight", "at": len(self.weights)}
        self.weights.extend(np.ascontiguousarray(array).tobytes())
        return location

    def temporary(self, size: int) -> dict[str, Any]:
        """Return a place for so many bytes of scratch memory."""
        location = {"where": "scratch", "at": self.scratch}
        self.scratch += -(-size // ALIGN) * ALIGN
        return location

    def check_scalars(self, scalars: Mapping[int, float], what: str) -> None:
        """Check that the constants of what looks like ``what`` have the values that it needs.

        Raises:
            UnsupportedError: A constant is another number.
        """
        for index, wanted in () if self.dry else scalars.items():
            value = float(np.asarray(self.constants(index), np.float64).reshape(()))
            if abs(value - wanted) > NEAR * wanted:
                raise UnsupportedError(f"{what}: {value:g} stands where {wanted:g} must")

    def write(self, index: int) -> dict[str, Any]:
        """Return where to put a value."""
        if index not in self.known:
            self.known[index] = self.temporary(self.graph.values[index].type.bytes)
        return self.known[index]


def blank(graph: DataflowGraph) -> Constants:
    """Return constants of the right types that hold nothing, for plans without numbers."""

    def make(index: int) -> np.ndarray:
        kind = graph.values[index].type
        return np.broadcast_to(np.zeros((), numpy_type(kind.dtype)), tuple(kind.shape))

    return make
