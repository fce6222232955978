"""Quantised composites: DequantizeLinear → operator → QuantizeLinear as one integer call.

The table of patterns and what a match means, for every toolchain: which nodes hold scales and
zero points, what the operator is, what is fused into it. A node of the dataflow graph has no
values, so numbers (are these zero points zero? does the bias' scale fit?) are looked at when a
composite is compiled, by ``Numbers``.

Clean-up gives every reader a DequantizeLinear of its own (model/onnx_quantized.py), so these
composites are disjoint and each has one exit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import IndexSet, members
from collage_engine.partition.patterns import (
    Match,
    Pattern,
    TupleOf,
    Where,
    all_matches,
    anything,
    constant,
    op,
)
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node

SMALL = ("int8", "uint8")
Constants = Callable[[int], np.ndarray]
"""Values of a constant node."""

Kind = Literal["conv", "matmul", "binary", "pool", "concat", "view", "unary", "requantize"]

KINDS: tuple[Kind, ...] = (
    "conv", "matmul", "binary", "pool", "concat", "view", "unary", "requantize",
)  # fmt: skip

CONVOLUTIONS = tuple(f"nn.conv{d}d" for d in (1, 2, 3))
BINARY = ("add", "subtract", "multiply")
POOLS = tuple(f"nn.{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)) + tuple(
    f"nn.adaptive_{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)
)
VIEWS = ("reshape", "permute_dims", "squeeze", "expand_dims", "flatten", "nn.batch_flatten",
         "strided_slice")  # fmt: skip
ACTIVATIONS = ("nn.relu", "clip", "nn.relu6", "nn.leakyrelu", "sigmoid", "tanh", "nn.silu",
               "nn.gelu", "nn.gelu_tanh")  # fmt: skip
MOST_CONCATENATED = 8


@dataclass(frozen=True)
class Quantized:
    """A composite at a place. ``match.bindings`` names its parts:

    ``anchor``: the operator; ``data``, ``weights``, ``residual``, ``left``, ``right``,
    ``part<i>``: 8-bit operands, each with ``<name>_float`` (its dequantize), ``<name>_scale`` and
    ``<name>_zero``; ``bias`` (with ``bias_scale`` and ``bias_zero`` when it is int32);
    ``activation``; ``quantize`` with ``scale`` and ``zero``, absent when the result stays float.
    """

    kind: Kind
    match: Match
    nodes: IndexSet
    """Its calls."""

    def get(self, name: str) -> int | None:
        return self.match.bindings.get(name)

    def __getitem__(self, name: str) -> int:
        return self.match.bindings[name]

    def __contains__(self, name: str) -> bool:
        return name in self.match.bindings

    @property
    def root(self) -> int:
        return self.match.root


# Patterns ------------------------------------------------------------------------------------


def _typed(*dtypes: str) -> Where:
    def where(graph: DataflowGraph, node: Node) -> str | None:
        found = node.type.dtype if not node.is_tuple else "a tuple"
        return None if found in dtypes else f"is {found}, not {' or '.join(dtypes)}"

    return where


def dequantized(name: str) -> Pattern:
    """A dequantize of an 8-bit value, with a constant scale and zero point."""
    return op(
        "dequantize", anything(name, where=_typed(*SMALL)), constant(f"{name}_scale"),
        constant(f"{name}_zero"), name=f"{name}_float", commutative=False,
    )  # fmt: skip


def _weights() -> Pattern:
    """Constant 8-bit weights, transposed or not (Gemm's transB)."""
    small = constant("weights", where=_typed(*SMALL))
    plain = op(
        "dequantize", small, constant("weights_scale"), constant("weights_zero"),
        name="weights_float", commutative=False,
    )  # fmt: skip
    return op("permute_dims", plain, name="weights_order") | plain


def _bias(x: Pattern) -> Pattern:
    """``x`` plus a constant, quantised to 32 bits or not, reshaped or not."""
    whole = op(
        "dequantize", constant("bias", where=_typed("int32")), constant("bias_scale"),
        constant("bias_zero"), name="bias_float", commutative=False,
    )  # fmt: skip
    shaped = op("reshape", whole, name="bias_shape")
    return op("add", x, shaped | whole | constant("bias"))


def _quantize(x: Pattern) -> Pattern:
    return op(
        "quantize", x, constant("scale"), constant("zero"), name="quantize", dtypes=SMALL,
        commutative=False,
    )  # fmt: skip


def _activated(x: Pattern) -> Pattern:
    return x.optional(lambda y: op(ACTIVATIONS, y, name="activation"))


def _anchored(anchor: Pattern) -> Pattern:
    biased = anchor.optional(_bias)
    return _activated(biased.optional(lambda x: op("add", x, dequantized("residual"))))


def _conv() -> Pattern:
    return _anchored(
        op(CONVOLUTIONS, dequantized("data"), _weights(), name="anchor", commutative=False)
    )


def _dense() -> Pattern:
    return _anchored(
        op("matmul", dequantized("data"), _weights(), name="anchor", commutative=False)
    )


def _matmul() -> Pattern:
    return _activated(
        op("matmul", dequantized("data"), dequantized("right"), name="anchor", commutative=False)
    )


def _binary() -> Pattern:
    return _activated(
        op(BINARY, dequantized("left"), dequantized("right"), name="anchor", commutative=False)
    )


def _concat(parts: int) -> Pattern:
    fields = TupleOf(tuple(dequantized(f"part{i}") for i in range(parts)))
    return op("concat", fields, name="anchor")


def quantized_patterns() -> list[tuple[Kind, Pattern]]:
    """The table, largest matches first; the kind is what a match is.

    Fresh patterns each time: a pattern's parts are what a match binds.
    """
    table: list[tuple[Kind, Pattern]] = [
        ("conv", _quantize(_conv())),
        ("matmul", _quantize(_dense())),
        ("matmul", _quantize(_matmul())),
        ("binary", _quantize(_binary())),
        ("pool", _quantize(op(POOLS, dequantized("data"), name="anchor"))),
        ("pool", _quantize(op("mean", dequantized("data"), name="anchor"))),
        ("view", _quantize(op(VIEWS, dequantized("data"), name="anchor"))),
        ("unary", _quantize(op(ACTIVATIONS, dequantized("data"), name="anchor"))),
    ]
    table += [("concat", _quantize(_concat(n))) for n in range(MOST_CONCATENATED, 1, -1)]
    table += [
        ("requantize", _quantize(dequantized("data"))),
        ("conv", _conv()),
        ("matmul", _dense()),
        ("matmul", _matmul()),
    ]
    return table


def pattern_table(prefix: str, kinds: tuple[Kind, ...] = KINDS) -> list[tuple[str, Pattern]]:
    """(composite name, pattern) of these kinds, for a toolchain's rules.

    ``<toolchain>.quantized_conv`` and so on. A toolchain whose own optimiser finds them (ONNX
    Runtime, OpenVINO) needs no more than to be offered each composite whole.
    """
    return [
        (f"{prefix}.quantized_{kind}", pattern)
        for kind, pattern in quantized_patterns()
        if kind in kinds
    ]


# Finding them --------------------------------------------------------------------------------

_cache: WeakKeyDictionary[DataflowGraph, tuple[Quantized, ...]] = WeakKeyDictionary()


def find(graph: DataflowGraph) -> tuple[Quantized, ...]:
    """Every place where a composite's inner values are read by nobody else; they may overlap."""
    known = _cache.get(graph)
    if known is None:
        known = _cache.setdefault(graph, tuple(_search(graph)))
    return known


def _search(graph: DataflowGraph) -> Iterator[Quantized]:
    if not any(node.op == "dequantize" for node in graph.nodes):
        return
    for kind, pattern in quantized_patterns():
        roots = pattern.root_ops or frozenset()
        for root in graph.operators:
            if graph.nodes[root].op not in roots:
                continue
            for match in all_matches(graph, pattern, root):
                calls = sum(1 << i for i in members(match.nodes) if graph.nodes[i].form == "call")
                if _closed(graph, calls, root):
                    yield Quantized(kind, match, calls)
                    break


def _closed(graph: DataflowGraph, calls: IndexSet, root: int) -> bool:
    for index in members(calls):
        if index == root:
            continue
        if graph.output_set >> index & 1:
            return False
        for user in graph.users[index]:
            # A tuple is read through: by a concatenation inside only.
            readers = graph.users[user] if graph.nodes[user].form == "tuple" else (user,)
            if any(not calls >> reader & 1 for reader in readers):
                return False
    return True


def within(graph: DataflowGraph, inside: IndexSet, leaving: IndexSet = 0) -> dict[int, Quantized]:
    """Composites that lie in a set, by root; of overlapping ones the first in the table wins.

    ``leaving``: nodes whose value is read outside the set; only a root may be among them.
    """
    chosen: dict[int, Quantized] = {}
    taken = 0
    for found in find(graph):
        if (
            found.nodes & ~inside
            or found.nodes & taken
            or found.nodes & leaving & ~(1 << found.root)
        ):
            continue
        chosen[found.root] = found
        taken |= found.nodes
    return chosen


# Numbers -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scaling:
    """How an 8-bit value stands for real ones: ``scale · (q − zero)``, per element of an axis."""

    scale: np.ndarray
    zero: np.ndarray
    axis: int | None
    dtype: str

    @property
    def per_tensor(self) -> bool:
        return self.axis is None

    @property
    def lowest(self) -> int:
        return -128 if self.dtype == "int8" else 0

    @property
    def highest(self) -> int:
        return 127 if self.dtype == "int8" else 255

    def single(self, what: str) -> tuple[float, int]:
        """Scale and zero point of a whole tensor; ``UnsupportedError`` when it has several."""
        if self.axis is not None:
            raise UnsupportedError(f"{what} has a scale for each element of axis {self.axis}")
        return float(self.scale.reshape(-1)[0]), int(self.zero.reshape(-1)[0])

    def equals(self, other: Scaling) -> bool:
        """Whether equal integers stand for equal numbers."""
        return (
            self.dtype == other.dtype
            and self.axis == other.axis
            and np.array_equal(self.scale.reshape(-1), other.scale.reshape(-1))
            and np.array_equal(self.zero.reshape(-1), other.zero.reshape(-1))
        )

    def spread(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Scale and zero point of every element of a tensor, as views."""
        along = [1] * len(shape)
        if self.axis is not None:
            along[self.axis] = shape[self.axis]
        scale = self.scale.astype(np.float32).reshape(along if self.axis is not None else ())
        zero = self.zero.astype(np.int32).reshape(along if self.axis is not None else ())
        return np.broadcast_to(scale, shape), np.broadcast_to(zero, shape)


def scaling(graph: DataflowGraph, index: int, constants: Constants) -> Scaling:
    """Of a quantize's result or a dequantize's operand; one element along the axis is none."""
    node = graph.nodes[index]
    scale, zero = (np.asarray(constants(i)) for i in node.inputs[1:3])
    small = node.type if node.op == "quantize" else graph.nodes[node.inputs[0]].type
    rank = max(len(small.shape), 1)
    axis = None if scale.size == 1 and zero.size == 1 else int(node.attributes["axis"]) % rank
    if axis is not None:
        size = small.shape[axis]
        scale = np.broadcast_to(scale.reshape(-1), (size,))
        zero = np.broadcast_to(zero.reshape(-1), (size,))
    return Scaling(scale, zero, axis, small.dtype)


@dataclass(frozen=True)
class Numbers:
    """The constants of a composite."""

    graph: DataflowGraph
    found: Quantized
    constants: Constants

    def of(self, name: str) -> Scaling:
        """Of an 8-bit operand by its name."""
        return scaling(self.graph, self.found[f"{name}_float"], self.constants)

    @property
    def result(self) -> Scaling | None:
        """Of what the composite gives; None when that is float."""
        index = self.found.get("quantize")
        return None if index is None else scaling(self.graph, index, self.constants)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Constant weights as symmetric int8 in the anchor's order, and their scales.

        Scales: one per element of the output axis (the kernel layout's O, a matrix' last axis).
        Zero points are subtracted where int8 can hold the result, and refused otherwise.
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
        """The bias in real numbers, flat; None without one.

        ``UnsupportedError`` when it is no vector over the output channels.
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

    def _bias_shape(self, index: int) -> tuple[int, ...]:
        for name in ("bias_shape", "bias_float"):
            if name in self.found:
                return self.graph.nodes[self.found[name]].type.shape
        return self.graph.nodes[index].type.shape

    def bias_fits(self) -> bool:
        """Whether an int32 bias has the scale that integer accumulation implies, s_x·s_w."""
        if "bias_float" not in self.found:
            return False
        given = scaling(self.graph, self.found["bias_float"], self.constants)
        data, _ = self.of("data").single("the data")
        _, weights = self.weights()
        return not given.zero.any() and bool(
            np.allclose(given.scale.reshape(-1), data * weights, rtol=1e-4)
        )

    def clamp(self) -> tuple[float, float] | None:
        """The range of an activation that only limits values (ReLU, Clip); None for others."""
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
