"""Bounds the whole numbers of a graph: how large they can become, and what they are used for.

Inputs are drawn as large as nothing overflows, and a toolchain that computes whole numbers in
fewer bits than their type has, or in floats, is given those only that stay small enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import Node, TensorType, ValueIndex, members, operator_set
from collage_engine.records.operators import is_opaque

HAND_ON = {
    *("astype", "broadcast_to", "concat", "expand_dims", "permute_dims", "reshape"),
    *("split", "squeeze", "strided_slice", "tile", "where"),
}
"""Relax operators whose results are values that they are given."""
_INDICES = ("take", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")
"""Relax operators whose second operand says where values lie in the first."""
DIVISIONS = ("divide", "floor_divide", "floor_mod", "mod")
"""Relax operators whose second operand must not be 0."""
POWERS = ("power", "left_shift", "right_shift")
"""Relax operators whose second operand must not be negative, nor larger than some bits."""
COMPARISONS = ("equal", "greater", "greater_equal", "less", "less_equal", "not_equal")
"""Relax operators that compare two values."""
_POSITIONS = ("argmax", "argmin", "onnx:MaxPool", "onnx:NonMaxSuppression", "onnx:NonZero")
"""Operators whose whole numbers say where something lies in their first operand."""
_OPAQUE_MOVES = ("onnx:Compress", "onnx:ScatterElements", "onnx:ScatterND", "onnx:Unique")
"""Opaque operators whose whole numbers are those that they are given, or positions of these."""


def is_whole(kind: TensorType) -> bool:
    """Tell whether values of a type are whole numbers."""
    return kind.dtype.startswith(("int", "uint"))


def most(kind: TensorType) -> int:
    """Return the largest magnitude that a type holds with either sign; 1 of what is no number."""
    if not is_whole(kind):
        return 1
    return int(2 ** (int(kind.dtype.lstrip("uint")) - kind.dtype.startswith("int")) - 1)


Result = Callable[[Sequence[float], Node, TensorType], float]
"""Bounds an operator's results, from the bounds of its operands without indices, the node, and the
type of its first operand."""


def _largest(operands: Sequence[float], node: Node, first: TensorType) -> float:
    return max(operands, default=0.0)


def _clip(operands: Sequence[float], node: Node, first: TensorType) -> float:
    limits = (abs(float(node.attributes[key])) for key in ("min", "max"))
    return min(operands[0], max(limits))


def _sum(operands: Sequence[float], node: Node, first: TensorType) -> float:
    return operands[0] * first.elements / (node.type.elements if node.op == "sum" else 1)


def _power(operands: Sequence[float], node: Node, first: TensorType) -> float:
    base, exponent = operands[0], first.elements if node.op == "prod" else operands[1]
    return base**exponent if exponent * math.log2(max(base, 1)) <= 64 else math.inf


_RESULTS: dict[str, Result] = {
    **dict.fromkeys(
        (
            *HAND_ON,
            *_INDICES,
            *("abs", "divide", "flip", "floor_divide", "max", "maximum", "mean", "min"),
            *("minimum", "negative", "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d", "nn.pad"),
            *("nn.relu", "reverse_sequence", "right_shift", "sign", "topk", "tril", "triu"),
        ),
        _largest,
    ),
    **dict.fromkeys(("add", "subtract"), lambda operands, node, first: sum(operands)),
    **dict.fromkeys(("floor_mod", "mod"), lambda operands, node, first: operands[1]),
    **dict.fromkeys(("sum", "cumsum"), _sum),
    **dict.fromkeys(("power", "prod"), _power),
    **dict.fromkeys(
        ("bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor"),
        lambda operands, node, first: min(2 * max(operands) + 1, most(first)),
    ),
    **dict.fromkeys(_POSITIONS, lambda operands, node, first: first.elements),
    **dict.fromkeys(_OPAQUE_MOVES, lambda operands, node, first: max(*operands, first.elements, 0)),
    "clip": _clip,
    "multiply": lambda operands, node, first: math.prod(operands),
    "matmul": lambda operands, node, first: math.prod(operands) * first.shape[-1],
    "left_shift": lambda operands, node, first: operands[0] * 2.0 ** min(operands[1], 64),
    "one_hot": lambda operands, node, first: max(
        abs(float(node.attributes[key])) for key in ("on_value", "off_value")
    ),
}
"""The operators whose results have a bound; those of others may be as large as their type holds."""
_KNOWN = {
    *(op for op in _RESULTS if not is_opaque(op)),  # operands of these may be indices, or counts
    *COMPARISONS,
    *("logical_and", "logical_not", "logical_or", "logical_xor"),
}
"""Operators of whose operands it is known what they are."""


def _extent(graph: DataflowGraph, node: Node, position: int) -> int | None:
    """Return the extent that an operand indexes into; None where it is no index."""
    if node.op == "one_hot" and position == 0:
        return int(node.attributes["depth"])
    if node.op not in _INDICES or position != 1:
        return None
    table = graph.values[node.inputs[0]].type
    if node.op in ("gather_nd", "scatter_nd", "scatter_elements"):
        return min(table.shape, default=1)
    axis = node.attributes.get("axis")
    return table.elements if axis is None else table.shape[axis]


class WholeNumbers:
    """What the whole numbers of a graph are used for, and how large they can be.

    Attributes:
        index_limit: By value index, the smallest extent that a value indexes into; infinite where
            it is no index.
        decides_more: By value index, whether a value decides more than whole numbers, other than as
            an index itself: floats, an index that is computed, or what operators give of which
            nothing is known here.
    """

    def __init__(self, graph: DataflowGraph) -> None:
        """Follow the values of a graph from their readers back."""
        self.graph = graph
        self.index_limit = [math.inf] * len(graph.values)
        self.decides_more = [False] * len(graph.values)
        for node in reversed(graph.nodes):
            exact = all(is_whole(kind) or kind.dtype == "bool" for kind in node.types)
            handed_on = node.op in HAND_ON
            own_limit = min(self.index_limit[i] for i in node.outputs)
            decides = (
                any(self.decides_more[i] for i in node.outputs)
                or not exact
                or node.op not in _KNOWN
                or (own_limit < math.inf and not handed_on)  # an index is computed from it
            )
            for position, source in enumerate(node.inputs):
                limit: float | None = _extent(graph, node, position)
                if limit is None:
                    limit = own_limit if handed_on else math.inf
                    self.decides_more[source] |= decides
                self.index_limit[source] = min(self.index_limit[source], limit)

    def bounds(self, given: Mapping[ValueIndex, float]) -> list[float]:
        """Return how large the whole numbers of each value can be, before they wrap around.

        Args:
            given: The bound of each parameter; without one it is what its type holds.

        Returns:
            The largest magnitude by value index; of floats nothing that means anything.
        """
        values = self.graph.values
        bounds: list[float] = [most(value.type) for value in values]
        for constant in self.graph.record.constants:
            if constant.largest is not None:
                bounds[constant.index] = constant.largest
        for index, bound in given.items():
            bounds[index] = bound
        bounds = [min(pair) for pair in zip(bounds, self.index_limit, strict=True)]
        for node in self.graph.nodes:
            if not any(map(is_whole, node.types)):
                continue
            computed = self._computed(node, bounds)
            for place, value in enumerate(node.results):
                if is_whole(value.type):
                    bound = computed
                    if node.op == "topk" and place == 1:
                        bound = values[node.inputs[0]].type.elements
                    bounds[value.index] = min(bound, self.index_limit[value.index])
        return bounds

    def operands(self, node: Node, bounds: Sequence[float]) -> list[float]:
        """Return the bounds of an operator's operands that are whole numbers and no indices."""
        values = self.graph.values
        return [
            min(bounds[source], most(values[source].type))
            for position, source in enumerate(node.inputs)
            if is_whole(values[source].type) and _extent(self.graph, node, position) is None
        ]

    def result(self, node: Node, bounds: Sequence[float]) -> float:
        """Return the bound of an operator's results."""
        return max(bounds[index] for index in node.outputs)

    def _computed(self, node: Node, bounds: Sequence[float]) -> float:
        """Return the bound on an operator's results that follows from those of its operands."""
        operands = self.operands(node, bounds)
        first = self.graph.values[node.inputs[0]].type if node.inputs else node.type
        if node.op == "astype" and not operands:
            return 1 if first.dtype == "bool" else math.inf
        rule = _RESULTS.get(node.op)
        return rule(operands, node, first) if rule is not None else math.inf

    def fitted(
        self,
        given: Mapping[ValueIndex, float],
        fits: Callable[[Node, Sequence[float]], bool],
        least: int,
        fixed: Mapping[ValueIndex, float] = MappingProxyType({}),
    ) -> list[float]:
        """Return bounds with parameters so small that the nodes fit that can.

        Args:
            given: The largest bounds of the parameters that may be lowered.
            fits: Tells, of a call and the bounds so far, whether its numbers are small enough.
            least: The bound below which none is lowered.
            fixed: The bounds of other parameters.
        """
        lowest = self.bounds({**fixed, **dict.fromkeys(given, least)})
        nodes, upstream = self.graph.nodes, self.graph.upstream
        hopeful = [i for i in self.graph.operators if fits(nodes[i], lowest)]
        now = dict(given)
        while True:
            bounds = self.bounds({**fixed, **now})
            hopeful = [i for i in hopeful if not fits(nodes[i], bounds)]
            above = operator_set(hopeful)
            for i in hopeful:
                above |= upstream[i]
            before = {index for operator in members(above) for index in nodes[operator].inputs}
            lowered = {p: b // 2 for p, b in now.items() if p in before and b // 2 >= least}
            if not lowered:
                return bounds
            now |= lowered
