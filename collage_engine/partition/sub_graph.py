"""Sub-graphs of the dataflow graph, and whether they are valid.

As Collage's ``SubGraph`` (RFC 0062; TVM v0.18 ``src/relay/collage/sub_graph.h``): an index set
``inside`` with the nodes on its border, closed under disjoint union. Borders are kept as tuples of
indices and computed when first asked for, because a large graph has many candidates and each bit
set over it costs a kilobyte or more.
"""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    Node,
    NodeIndex,
    NodeSet,
    OpKind,
    first,
    members,
)

Composites = tuple[tuple[str, NodeSet], ...]
"""Names and nodes of library calls."""


@dataclass(frozen=True)
class SubGraphConfig:
    """What a sub-graph must satisfy; 0 means no limit."""

    max_exits: int = 0
    """Nodes inside whose value leaves the sub-graph."""
    max_depth: int = 0
    """Nodes on the longest path from an entry to an exit."""


def inlinable(node: Node) -> bool:
    """Tell whether a node is copied into every function that reads it instead of being an input.

    These are scalar constants, as in upstream's ``CanInline``.
    """
    return node.form == "constant" and node.scalar


def node_kind(node: Node) -> OpKind:
    """Return the kind of a node on its own; constants, tuples and projections have upstream's."""
    if node.form == "call":
        return node.kind
    if node.form == "constant":
        return "elementwise"
    if node.form in ("tuple", "projection"):
        return "injective"
    return "opaque"


def combine_kinds(left: OpKind, right: OpKind) -> OpKind:
    """Return the kind of two parts together: the greater one."""
    return left if KIND_ORDER[left] >= KIND_ORDER[right] else right


class SubGraph:
    """A set of nodes of a dataflow graph with its border. It never changes."""

    __slots__ = ("__weakref__", "_border", "_depth", "_kind", "composites", "graph", "inside")

    def __init__(
        self,
        graph: DataflowGraph,
        inside: NodeSet,
        composites: Composites = (),
        kind: OpKind | None = None,
    ) -> None:
        if not inside:
            raise ValueError("a sub-graph holds at least one node")
        self.graph = graph
        self.inside = inside
        self.composites = composites
        """Name and nodes of the parts that become one library call each, in no order."""
        self._border: tuple[tuple[NodeIndex, ...], ...] | None = None
        self._depth = -1
        self._kind = kind

    # Border

    @property
    def first(self) -> NodeIndex:
        """Return the smallest node inside."""
        return first(self.inside)

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

    def is_valid(self, config: SubGraphConfig) -> bool:
        """Tell whether it is convex, within limits, and nothing inside reads what leaves it.

        Args:
            config: The limits.
        """
        if config.max_exits and len(self.exit) > config.max_exits:
            return False
        if config.max_depth and self.depth > config.max_depth:
            return False
        if any(self.inside >> user & 1 for index in self.exit for user in self.graph.users[index]):
            return False
        return self.feeds_itself is None

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

        Raises:
            ValueError: The two overlap.
        """
        if self.inside & other.inside:
            raise ValueError("sub-graphs overlap")
        inside, composites = self.inside | other.inside, self.composites + other.composites
        return SubGraph(self.graph, inside, composites, combine_kinds(self.kind, other.kind))

    def as_composite(self, name: str) -> SubGraph:
        """Return the same nodes as one library call of this name."""
        return SubGraph(self.graph, self.inside, ((name, self.inside),), self._kind)


def _flows_into(left: SubGraph, right: SubGraph) -> bool:
    """Tell whether a path leaves ``left`` to a node outside both and then reaches ``right``."""
    downstream = left.graph.downstream
    inside = right.inside
    return any(not inside >> o & 1 and downstream[o] & inside for o in left.output)
