"""Sub-graphs of the dataflow graph, and whether they are valid.

As Collage's ``SubGraph`` (RFC 0062; TVM v0.18 ``src/relay/collage/sub_graph.h``): an index set
``inside`` with the nodes on its border, closed under disjoint union, wrapping and substitution.
Borders are kept as tuples of indices and computed when first asked for, because a large graph
has many candidates and each bit set over it costs a kilobyte or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, first, members, node_set, to_text
from collage_engine.records.graph import KIND_ORDER, Node, OpKind
from collage_engine.records.numbering import NodeIndex, NodeSet


@dataclass(frozen=True)
class SubGraphConfig:
    """What a sub-graph must satisfy; 0 means no limit."""

    max_exits: int = 0
    """Nodes inside whose value leaves the sub-graph."""
    allow_taps: bool = False
    """Whether a node may both leave the sub-graph and feed a node inside."""
    max_depth: int = 0
    """Nodes on the longest path from an entry to an exit."""


@dataclass(frozen=True)
class NestedSubGraph:
    """A part of a sub-graph that becomes a function of its own, with attributes."""

    sub_graph: SubGraph
    attributes: tuple[tuple[str, Any], ...]

    def attribute(self, name: str) -> Any:
        """Return the value of an attribute; None when it is absent."""
        return dict(self.attributes).get(name)

    def unionable(self, other: NestedSubGraph) -> bool:
        """Tell whether both may become one function: equal attributes, and no composite."""
        return self.attributes == other.attributes and self.attribute("Composite") is None

    @property
    def order(self) -> tuple[int, NodeSet, tuple[tuple[str, Any], ...]]:
        """Return the sort key among the nested parts of a sub-graph."""
        return (self.sub_graph.first, self.sub_graph.inside, self.attributes)


def inlinable(node: Node) -> bool:
    """Tell whether a node is copied into every function that reads it instead of being an input.

    These are operators as nodes of their own (``other``) and scalar constants, as in upstream's
    ``CanInline``.
    """
    return node.form == "other" or (node.form == "constant" and node.scalar)


def node_kind(node: Node) -> OpKind:
    """Return the kind of a node on its own; constants, tuples and projections have upstream's."""
    if node.form == "call":
        return node.kind
    if node.form == "constant":
        return "elementwise"
    if node.form in ("tuple", "projection"):
        return "injective"
    return "opaque"


def node_label(node: Node) -> str:
    """Return the short name of a node.

    It is the operator of a call, and otherwise ``const``, ``scalar``, ``tuple``, ``proj``,
    ``%name`` of a parameter, the operator behind a backtick, or ``fn``.
    """
    if node.form == "call":
        return node.op
    if node.form == "constant":
        return "scalar" if node.scalar else "const"
    if node.form == "tuple":
        return "tuple"
    if node.form == "projection":
        return "proj"
    if node.form == "parameter":
        return f"%{node.name}"
    return f"`{node.op}" if node.op else "fn"


def combine_kinds(left: OpKind, right: OpKind) -> OpKind:
    """Return the kind of two parts together: the greater one."""
    return left if KIND_ORDER[left] >= KIND_ORDER[right] else right


class SubGraph:
    """A set of nodes of a dataflow graph with its border. It never changes.

    Two are equal when their sets of nodes and their nested sub-graphs, attributes included, are.
    """

    __slots__ = ("__weakref__", "_border", "_depth", "_kind", "graph", "inside", "nested")

    def __init__(
        self,
        graph: DataflowGraph,
        inside: NodeSet,
        nested: Iterable[NestedSubGraph] = (),
        kind: OpKind | None = None,
    ) -> None:
        if not inside:
            raise ValueError("a sub-graph holds at least one node")
        self.graph = graph
        self.inside = inside
        self.nested = tuple(sorted(nested, key=lambda n: n.order[:2]))
        self._border: tuple[tuple[NodeIndex, ...], ...] | None = None
        self._depth = -1
        self._kind = kind

    # Identity

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SubGraph):
            return NotImplemented
        return self.inside == other.inside and self.nested == other.nested

    def __hash__(self) -> int:
        return hash((self.inside, self.nested))

    def __repr__(self) -> str:
        return f"SubGraph({to_text(self.inside)}, {self.label})"

    # Border

    @property
    def first(self) -> NodeIndex:
        """Return the smallest node inside."""
        return first(self.inside)

    @property
    def last(self) -> NodeIndex:
        """Return the largest node inside."""
        return NodeIndex(self.inside.bit_length() - 1)

    @property
    def members(self) -> tuple[NodeIndex, ...]:
        """Return the nodes inside, ascending."""
        return tuple(members(self.inside))

    def _find_border(self) -> tuple[tuple[NodeIndex, ...], ...]:
        """Return the nodes of ``entry``, ``exit``, ``input`` and ``output``."""
        if self._border is None:
            graph = self.graph
            nodes, users, leaving = graph.nodes, graph.users, graph.output_set
            entries: list[NodeIndex] = []
            exits: list[NodeIndex] = []
            inputs: dict[NodeIndex, None] = {}
            outputs: dict[NodeIndex, None] = {}
            within = self.members
            in_set = set(within)
            for index in within:
                enters = False
                for source in nodes[index].inputs:
                    if source not in in_set and not inlinable(nodes[source]):
                        enters = True
                        inputs[source] = None
                if enters:
                    entries.append(index)
                leaves = bool(leaving >> index & 1)
                for user in users[index]:
                    if user not in in_set:
                        leaves = True
                        outputs[user] = None
                if leaves:
                    exits.append(index)
            self._border = (
                tuple(entries),
                tuple(exits),
                tuple(sorted(inputs)),
                tuple(sorted(outputs)),
            )
        return self._border

    @property
    def entry(self) -> tuple[NodeIndex, ...]:
        """Return the nodes inside that read a (not inlinable) node outside."""
        return self._find_border()[0]

    @property
    def exit(self) -> tuple[NodeIndex, ...]:
        """Return the nodes inside that are read outside, or whose value leaves the function."""
        return self._find_border()[1]

    @property
    def input(self) -> tuple[NodeIndex, ...]:
        """Return the nodes outside, not inlinable, that are read inside."""
        return self._find_border()[2]

    @property
    def output(self) -> tuple[NodeIndex, ...]:
        """Return the nodes outside that read a node inside."""
        return self._find_border()[3]

    # Shape

    @property
    def kind(self) -> OpKind:
        """Return the greatest kind inside."""
        if self._kind is None:
            nodes = self.graph.nodes
            kind: OpKind = "elementwise"
            for index in members(self.inside):
                kind = combine_kinds(kind, node_kind(nodes[index]))
            self._kind = kind
        return self._kind

    @property
    def label(self) -> str:
        """Return the labels of the nodes inside, in index order, joined by ``+``."""
        return "+".join(node_label(self.graph.nodes[i]) for i in members(self.inside))

    @property
    def depth(self) -> int:
        """Return the number of nodes on the longest path from an entry to an exit.

        It is 0 where nothing enters.
        """
        if self._depth < 0:
            nodes = self.graph.nodes
            entries, exits = set(self.entry), set(self.exit)
            depths: dict[NodeIndex, int] = {}
            deepest = 0
            for index in members(self.inside):
                depth = 1 if index in entries else 0
                for source in nodes[index].inputs:
                    above = depths.get(source, 0)
                    if above and above >= depth:
                        depth = above + 1
                if depth:
                    depths[index] = depth
                    if index in exits and depth > deepest:
                        deepest = depth
            self._depth = deepest
        return self._depth

    # Questions

    @property
    def feeds_itself(self) -> NodeIndex | None:
        """Return an output node from which a path returns into the sub-graph, if there is one."""
        downstream = self.graph.downstream
        for output in self.output:
            if downstream[output] & self.inside:
                return output
        return None

    def is_valid(self, config: SubGraphConfig) -> str | None:
        """Return the first thing that is wrong, in upstream's order; None when it is valid.

        Args:
            config: What a valid sub-graph satisfies.
        """
        if config.max_exits and len(self.exit) > config.max_exits:
            return f"{len(self.exit)} exits, at most {config.max_exits} allowed"
        if config.max_depth and self.depth > config.max_depth:
            return f"depth {self.depth}, at most {config.max_depth} allowed"
        seen = NO_NODES
        for nested in self.nested:
            inside = nested.sub_graph.inside
            if inside & seen:
                return f"nested sub-graphs overlap on {to_text(inside & seen)}"
            if inside & ~self.inside:
                return f"a nested sub-graph reaches outside, to {to_text(inside & ~self.inside)}"
            seen |= inside
        if not config.allow_taps:
            for index in self.exit:
                for user in self.graph.users[index]:
                    if self.inside >> user & 1:
                        return f"node {index} is tapped: it leaves and feeds node {user} inside"
        output = self.feeds_itself
        if output is not None:
            return f"not convex: node {output} outside reads it and feeds back into it"
        return None

    def touches(self, below: SubGraph) -> bool:
        """Tell whether ``below`` reads this one directly and their union makes no cycle.

        Both are assumed to be convex; so is the union then.
        """
        if self.inside & below.inside:
            return False
        entries = set(below.entry)
        if not any(output in entries for output in self.output):
            return False
        return not (_flows_into(self, below) or _flows_into(below, self))

    # Making new ones

    def union(self, other: SubGraph) -> SubGraph:
        """Return this sub-graph and another one as one.

        Nested parts with equal attributes become one part, except composites.

        Raises:
            ValueError: The two overlap.
        """
        if self.inside & other.inside:
            raise ValueError(f"sub-graphs overlap on {to_text(self.inside & other.inside)}")
        nested = list(self.nested)
        for theirs in other.nested:
            for position, ours in enumerate(nested):
                if ours.unionable(theirs):
                    merged = ours.sub_graph.union(theirs.sub_graph)
                    nested[position] = NestedSubGraph(merged, ours.attributes)
                    break
            else:
                nested.append(theirs)
        kind = combine_kinds(self.kind, other.kind)
        return SubGraph(self.graph, self.inside | other.inside, nested, kind)

    def with_attributes(self, attributes: Mapping[str, Any]) -> SubGraph:
        """Return the same nodes, all of them inside one nested function with these attributes."""
        nested = NestedSubGraph(self, tuple(sorted(attributes.items())))
        return SubGraph(self.graph, self.inside, (nested,), self._kind)

    def substitute(self, graph: DataflowGraph, indices: Mapping[NodeIndex, NodeIndex]) -> SubGraph:
        """Return the same sub-graph in a graph whose node ``indices[i]`` is node ``i`` here."""
        inside = node_set(indices[i] for i in members(self.inside))
        nested = [
            NestedSubGraph(n.sub_graph.substitute(graph, indices), n.attributes)
            for n in self.nested
        ]
        return SubGraph(graph, inside, nested)

    @property
    def composites(self) -> tuple[tuple[str, NodeSet], ...]:
        """Return the name and the nodes of every composite inside, at any level of nesting."""
        found: list[tuple[str, NodeSet]] = []
        for nested in self.nested:
            name = nested.attribute("Composite")
            if name is not None:
                found.append((str(name), nested.sub_graph.inside))
            found.extend(nested.sub_graph.composites)
        return tuple(found)


def _flows_into(left: SubGraph, right: SubGraph) -> bool:
    """Tell whether a path leaves ``left`` to a node outside both and then reaches ``right``."""
    downstream = left.graph.downstream
    inside = right.inside
    return any(not inside >> o & 1 and downstream[o] & inside for o in left.output)
