"""Recognises attention written out as products, a mask and a softmax, for libraries' own kernels.

``softmax(q · kᵀ · scale, masked) · v`` with queries, keys and values of four axes that are batch,
heads, rows and elements. Exporters move the heads in front by transpositions; those are taken
along, since the kernels read and write with any steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, members, node_set, one_node
from collage_engine.model.numpy_types import numpy_type
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, all_matches, anything, constant, op
from collage_engine.records.errors import UnsupportedError
from collage_engine.records.graph import Node
from collage_engine.records.numbering import NodeIndex, NodeSet
from collage_engine.toolchains.runtime.places import Constants

Axes = tuple[int, ...]
LEAST_FILL = -1e3
"""Value below which a masked score is set: after a softmax it is the same as adding it, since the
exponential of anything less is 0 in float32; chosen."""


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values: ``axes[i]`` is the node's axis that is batch, head, row, element."""

    node: int
    axes: Axes

    def sizes(self, graph: DataflowGraph) -> tuple[int, ...]:
        """Return the extents of batch, heads, rows and elements."""
        shape = graph.nodes[self.node].type.shape
        return tuple(shape[axis] for axis in self.axes)


@dataclass(frozen=True)
class Attention:
    """A match of attention in the graph; ``nodes`` holds its calls only."""

    match: Match
    root: int
    nodes: NodeSet
    q: Operand
    k: Operand
    v: Operand
    result: Axes
    """The axes of the result that are batch, head, row and element, in this order."""

    def scale(self, constants: Constants) -> float:
        """Return what scores are multiplied by."""
        bindings = self.match.bindings
        if "scale" in bindings:
            return float(np.asarray(constants(bindings["scale"])).reshape(()))
        if "divisor" in bindings:
            divisor = float(np.asarray(constants(bindings["divisor"])).reshape(()))
            return 1.0 / divisor if divisor else 1.0  # a plan without weights has no values
        return 1.0

    @property
    def mask(self) -> int | None:
        """Return the node whose value is added to the scores."""
        return self.match.bindings.get("mask")

    @property
    def selected(self) -> bool:
        """Tells whether a constant says which scores stay (``added_mask`` has it as numbers)."""
        return "keep" in self.match.bindings

    def added_mask(self, constants: Constants, dtype: str, dry: bool = False) -> np.ndarray:
        """Returns what to add to the scores instead of setting those not kept to a constant.

        Raises:
            UnsupportedError: Adding is not the same: a softmax makes something of the constant, or
                a row keeps nothing.
        """
        bindings = self.match.bindings
        keep = np.asarray(constants(bindings["keep"])).astype(bool)
        fill = float(np.asarray(constants(bindings["fill"])).reshape(()))
        if not dry and (fill > LEAST_FILL or not keep.any(axis=-1).all()):
            raise UnsupportedError("attention: scores set to a number that a softmax still sees")
        kind = np.dtype(np.float32) if dtype == "bfloat16" else np.dtype(dtype)
        added = np.where(keep, 0.0, max(fill, float(np.finfo(kind).min)))
        return added.astype(numpy_type(dtype))


def pattern() -> Pattern:
    """Scale, mask and transpositions are there or not."""

    def moved(name: str) -> Pattern:
        swapped = op("permute_dims", anything(name), commutative=False, name=f"{name}_order")
        return swapped | anything(name)

    keys = op("permute_dims", anything("k"), commutative=False, name="k_order")
    scores = op("matmul", moved("q"), keys, commutative=False)
    scaled = (
        op("multiply", scores, constant("scale", scalar=True))
        | op("divide", scores, constant("divisor", scalar=True), commutative=False)
        | scores
    )
    masked = (
        op("add", scaled, anything("mask"))
        | op("where", constant("keep"), scaled, constant("fill", scalar=True), commutative=False)
        | scaled
    )
    weights = op("nn.softmax", masked, commutative=False, name="softmax")
    product = op("matmul", weights, moved("v"), commutative=False, name="product")
    return product.optional(lambda x: op("permute_dims", x, commutative=False, name="order"))


_PATTERN = pattern()


def _order(node: Node) -> Axes:
    axes = node.attributes.get("axes")
    rank = len(node.type.shape)
    return tuple(int(a) % rank for a in axes) if axes else tuple(reversed(range(rank)))


def _operand(graph: DataflowGraph, match: Match, name: str) -> Operand:
    """Return the operand read through its transposition."""
    found = match.bindings[name]
    order = match.bindings.get(f"{name}_order")
    return Operand(found, (0, 1, 2, 3) if order is None else _order(graph.nodes[order]))


def read(graph: DataflowGraph, match: Match) -> Attention | str:
    """Return a match as an attention, or why it is none."""
    bindings = match.bindings
    if any(len(graph.nodes[bindings[name]].type.shape) != 4 for name in "qkv"):
        return "attention: not batch, heads, sequence, size"
    q, v = _operand(graph, match, "q"), _operand(graph, match, "v")
    turned = _operand(graph, match, "k").axes  # as the product reads it: elements before rows
    k = Operand(bindings["k"], (*turned[:2], turned[3], turned[2]))
    softmax = graph.nodes[bindings["softmax"]]
    if int(softmax.attributes.get("axis", -1)) % 4 != 3:
        return "attention: softmax over another axis"
    (qs, ks, vs) = (operand.sizes(graph) for operand in (q, k, v))
    if qs[:2] != ks[:2] or ks[:3] != vs[:3] or qs[3] != ks[3]:
        return "attention: queries, keys and values of different heads"
    if any(operand.axes[3] != 3 for operand in (q, k, v)):
        return "attention: elements of a head that do not touch"
    if len({graph.nodes[bindings[name]].type.dtype for name in "qkv"}) != 1:
        return "attention: operands of different types"
    full = (*qs[:3], ks[2])
    for name in ("mask", "keep"):
        if name in bindings:
            shape = graph.nodes[bindings[name]].type.shape
            wide = (1,) * (4 - len(shape)) + tuple(shape)
            if len(wide) > 4 or any(w not in (1, f) for w, f in zip(wide, full, strict=True)):
                return "attention: a mask of another shape"
            if wide[3] != full[3]:
                return "attention: a mask that is the same for all keys"
    result: Axes = (0, 1, 2, 3)
    if "order" in bindings:
        order = _order(graph.nodes[bindings["order"]])
        result = tuple(order.index(axis) for axis in range(4))
        if result[3] != 3:
            return "attention: a result whose elements do not touch"
    calls = node_set(i for i in members(match.nodes) if graph.nodes[i].form == "call")
    return Attention(match, match.root, calls, q, k, v, result)


Refused = Callable[[DataflowGraph, Attention], str | None]
"""A function that says why a library has no kernel for an attention; None where it has one."""


def reason_against(graph: DataflowGraph, match: Match, refused: Refused) -> str | None:
    """Return why a match of the pattern is no attention that a library runs."""
    found = read(graph, match)
    return found if isinstance(found, str) else refused(graph, found)


def within(
    graph: DataflowGraph,
    nodes: NodeSet,
    leaving: NodeSet,
    refused: Refused,
) -> list[Attention]:
    """Returns the attentions in a set of nodes that are closed but for their result.

    Of two that overlap, the larger one is taken.
    """
    found: list[Attention] = []
    taken = NO_NODES
    # The search goes from the end on, so that a transposition behind the product is taken along.
    for root in reversed(list(members(nodes))):
        if taken >> root & 1 or graph.nodes[root].op not in (_PATTERN.root_ops or ()):
            continue
        for one in _at(graph, root):
            hidden = one.nodes & ~one_node(root)
            if one.nodes & ~nodes or one.nodes & taken or hidden & leaving:
                continue
            closed = all(all(one.nodes >> u & 1 for u in graph.users[i]) for i in members(hidden))
            if closed and refused(graph, one) is None:
                found.append(one)
                taken |= one.nodes
                break
    return found


def _at(graph: DataflowGraph, root: NodeIndex) -> Iterator[Attention]:
    for match in all_matches(graph, _PATTERN, root):
        one = read(graph, match)
        if isinstance(one, Attention):
            yield one
