"""Reads the numbers of a quantised composite: scales, zero points, weights, biases, limits.

Looked at when a composite is compiled; the table of composites is ``quantized``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.patterns import Match
from collage_engine.records.graph import ValueIndex
from collage_engine.support.errors import UnsupportedError

Constants = Callable[[int], np.ndarray]
"""A function that returns the numbers of a constant."""


@dataclass(frozen=True)
class Scaling:
    """The way in which an 8-bit value q stands for a real one: ``scale · (q − zero)``.

    There is one scale and zero point for the whole tensor, or for each element along an axis.
    """

    scale: np.ndarray
    zero: np.ndarray
    axis: int | None
    dtype: str

    @property
    def per_tensor(self) -> bool:
        """Tell whether one scale and zero point hold for the whole tensor."""
        return self.axis is None

    @property
    def lowest(self) -> int:
        """Return the smallest value of the 8-bit type."""
        return -128 if self.dtype == "int8" else 0

    @property
    def highest(self) -> int:
        """Return the largest value of the 8-bit type."""
        return 127 if self.dtype == "int8" else 255

    def single(self, what: str) -> tuple[float, int]:
        """Return the scale and zero point of a whole tensor.

        Raises:
            UnsupportedError: The tensor has several.
        """
        if self.axis is not None:
            raise UnsupportedError(f"{what} has a scale for each element of axis {self.axis}")
        return float(self.scale.reshape(-1)[0]), int(self.zero.reshape(-1)[0])

    def equals(self, other: Scaling) -> bool:
        """Tell whether equal integers stand for equal numbers."""
        return (
            self.dtype == other.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
            and np.array_equal(self.zero.reshape(-1), other.zero.reshape(-1))
        )

    def spread(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Return the scale and zero point of every element of a tensor, as views."""
        along = [1] * len(shape)
        if self.axis is not None:
            along[self.axis] = shape[self.axis]
        scale = self.scale.astype(np.float32).reshape(along if self.axis is not None else ())
        zero = self.zero.astype(np.int32).reshape(along if self.axis is not None else ())
        return np.broadcast_to(scale, shape), np.broadcast_to(zero, shape)


def scaling(graph: DataflowGraph, index: ValueIndex, constants: Constants) -> Scaling:
    """Return the scaling of a quantize's result or of a dequantize's operand, by the operator.

    One that has a single element along its axis holds for the whole tensor.
    """
    node = graph.nodes[index]
    scale, zero = (np.asarray(constants(i)) for i in node.inputs[1:3])
    small = node.type if node.op == "quantize" else graph.values[node.inputs[0]].type
    rank = max(len(small.shape), 1)
    axis = None if scale.size == 1 and zero.size == 1 else int(node.attributes["axis"]) % rank
    if axis is not None:
        size = small.shape[axis]
        scale = np.broadcast_to(scale.reshape(-1), (size,))
        zero = np.broadcast_to(zero.reshape(-1), (size,))
    return Scaling(scale, zero, axis, small.dtype)


@dataclass(frozen=True)
class Numbers:
    """The constants of a composite, read when they are asked for."""

    graph: DataflowGraph
    found: Match
    constants: Constants

    def of(self, name: str) -> Scaling:
        """Return the scaling of an 8-bit operand by the operand's name."""
        return scaling(self.graph, self.found[f"{name}_float"], self.constants)

    @property
    def result(self) -> Scaling | None:
        """Returns the scaling of what the composite gives; None when that is float."""
        index = self.found.get("quantize")
        return None if index is None else scaling(self.graph, index, self.constants)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return constant weights as symmetric int8 in the anchor's order, and their scales.

        There is one scale for each element of the output axis (the kernel layout's O, a matrix'
        last axis).

        Raises:
            UnsupportedError: int8 cannot hold the weights once their zero points are subtracted.
        """
        given = self.of("weights")
        values = np.asarray(self.constants(self.found["weights"]))
        scale, zero = given.spread(values.shape)
        wide = values.astype(np.int32) - zero
        if wide.min(initial=0) < -128 or wide.max(initial=0) > 127:
            raise UnsupportedError(
                f"{self._name()}: weights with zero points that int8 cannot absorb"
            )
        small = wide.astype(np.int8)
        order = self.found.get("weights_order")
        if order is not None:
            axes = self.graph.nodes[order].attributes.get("axes")
            small, scale = (
                np.transpose(a, None if axes is None else [int(x) for x in axes])
                for a in (small, scale)
            )
        anchor = self.graph.nodes[self.found["anchor"]]
        out = small.ndim - 1
        if self.found.kind == "conv":
            out = str(anchor.attributes["kernel_layout"]).index("O")
        one = np.moveaxis(scale, out, 0).reshape(scale.shape[out], -1)
        if not (one == one[:, :1]).all():
            raise UnsupportedError(
                f"{self._name()}: weights scaled along another axis than outputs"
            )
        return np.ascontiguousarray(small), np.ascontiguousarray(one[:, 0])

    def bias(self) -> np.ndarray | None:
        """Return the bias in real numbers, flat; None without one.

        Raises:
            UnsupportedError: The bias is no vector over the output channels.
        """
        index = self.found.get("bias")
        if index is None:
            return None
        values = np.asarray(self.constants(index))
        if "bias_float" in self.found:
            given = scaling(self.graph, self.found["bias_float"], self.constants)
            scale, zero = given.spread(values.shape)
            values = ((values - zero) * scale.astype(np.float64)).astype(np.float32)
        anchor = self.graph.nodes[self.found["anchor"]]
        axis = len(anchor.type.shape) - 1
        if self.found.kind == "conv":
            axis = str(anchor.attributes["data_layout"]).index("C")
        shape = self._bias_shape(index)
        shape = (1,) * (len(anchor.type.shape) - len(shape)) + shape
        channels = anchor.type.shape[axis]
        allowed = tuple(channels if d == axis else 1 for d in range(len(shape)))
        if values.size == 1:
            return np.full(channels, values.reshape(-1)[0], np.float32)
        if shape != allowed:
            raise UnsupportedError(f"{self._name()}: a bias that is not one per output channel")
        return values.astype(np.float32).reshape(-1)

    def _bias_shape(self, index: ValueIndex) -> tuple[int, ...]:
        for name in ("bias_shape", "bias_float"):
            if name in self.found:
                return self.graph.values[self.found[name]].type.shape
        return self.graph.values[index].type.shape

    def bias_fits(self) -> bool:
        """Tell whether an int32 bias has the scale that integer accumulation implies, s_x·s_w."""
        if "bias_float" not in self.found:
            return False
        given = scaling(self.graph, self.found["bias_float"], self.constants)
        data, _ = self.of("data").single("the data")
        _, weights = self.weights()
        return not given.zero.any() and bool(
            np.allclose(given.scale.reshape(-1), data * weights, rtol=1e-4)
        )

    def clamp(self) -> tuple[float, float] | None:
        """Return the range of an activation that only limits values (ReLU, Clip).

        None for others.
        """
        index = self.found.get("activation")
        if index is None:
            return -np.inf, np.inf
        node = self.graph.nodes[index]
        if node.op == "nn.relu":
            return 0.0, np.inf
        if node.op == "nn.relu6":
            return 0.0, 6.0
        if node.op == "clip":
            return float(node.attributes["min"]), float(node.attributes["max"])
        return None

    def _name(self) -> str:
        node = self.graph.nodes[self.found["anchor"]]
        return node.name or node.op
