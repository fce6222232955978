"""Sub-graphs of the dataflow graph, and whether they are valid.

As Collage's ``SubGraph`` (RFC 0062; TVM v0.18 ``src/relay/collage/sub_graph.h``): a set of
operators ``inside`` with the operators on its border, closed under disjoint union. Borders are kept
as tuples of numbers and computed when first asked for, because a large graph has many candidates
and each bit set over it costs a kilobyte or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.records.graph import (
    KIND_ORDER,
    OperatorNumber,
    OperatorSet,
    OpKind,
    ValueIndex,
    first,
    members,
)
from collage_engine.records.operators import names_where

TAKE_LISTS = names_where(takes_list=True)
"""Operators that are joined with none of the producers of their values: the choices would be many,
and FuseOps' groups hold those that TVM fuses."""

Composites = tuple[tuple[str, OperatorSet], ...]
"""Names and operators of library calls."""


class SubGraph:
    """A set of operators of a dataflow graph with its border. It never changes."""

    def __init__(
        self,
        graph: DataflowGraph,
        inside: OperatorSet,
        composites: Composites = (),
        kind: OpKind | None = None,
    ) -> None:
        if not inside:
            raise ValueError("a sub-graph holds at least one operator")
        self.graph = graph
        self.inside = inside
        self.composites = composites
        """Name and operators of the parts that become one library call each, in no order."""
        if kind is not None:
            self.kind = kind

    # Border

    @property
    def first(self) -> OperatorNumber:
        """Return the smallest operator inside."""
        return first(self.inside)

    @property
    def members(self) -> tuple[OperatorNumber, ...]:
        """Return the operators inside, ascending."""
        return tuple(members(self.inside))

    @cached_property
    def _border(self) -> tuple[tuple[OperatorNumber, ...], ...]:
        """Return the operators of ``entry``, ``exit``, ``input`` and ``output``."""
        graph = self.graph
        users, leaving = graph.users, graph.leaving
        entries: list[OperatorNumber] = []
        exits: list[OperatorNumber] = []
        inputs: dict[OperatorNumber, None] = {}
        outputs: dict[OperatorNumber, None] = {}
        within = self.members
        in_set = set(within)
        for operator in within:
            outside = [source for source in graph.inputs[operator] if source not in in_set]
            if graph.nodes[operator].op not in TAKE_LISTS:
                inputs.update(dict.fromkeys(outside))
            if outside or graph.given >> operator & 1:
                entries.append(operator)
            leaves = bool(leaving >> operator & 1)
            for user in users[operator]:
                if user not in in_set:
                    leaves = True
                    outputs[user] = None
            if leaves:
                exits.append(operator)
        return tuple(entries), tuple(exits), tuple(sorted(inputs)), tuple(sorted(outputs))

    @property
    def entry(self) -> tuple[OperatorNumber, ...]:
        """Return the operators inside that read a value made outside, or a weight."""
        return self._border[0]

    @property
    def exit(self) -> tuple[OperatorNumber, ...]:
        """Return the operators inside with a value that is read outside or leaves the model."""
        return self._border[1]

    @property
    def input(self) -> tuple[OperatorNumber, ...]:
        """Return the operators outside whose values are read inside, but for those in lists."""
        return self._border[2]

    @property
    def output(self) -> tuple[OperatorNumber, ...]:
        """Return the operators outside that read a value made inside."""
        return self._border[3]

    # Shape

    @cached_property
    def kind(self) -> OpKind:
        """Return the greatest kind inside."""
        nodes = self.graph.nodes
        return _greatest(nodes[operator].kind for operator in members(self.inside))

    @cached_property
    def depth(self) -> int:
        """Return the number of operators on the longest path from an entry to an exit.

        It is 0 where nothing enters.
        """
        entries, exits = set(self.entry), set(self.exit)
        depths: dict[OperatorNumber, int] = {}
        deepest = 0
        for operator in members(self.inside):
            depth = 1 if operator in entries else 0
            for source in self.graph.inputs[operator]:
                above = depths.get(source, 0)
                if above and above >= depth:
                    depth = above + 1
            if depth:
                depths[operator] = depth
                if operator in exits and depth > deepest:
                    deepest = depth
        return deepest

    # Questions

    @property
    def feeds_itself(self) -> OperatorNumber | None:
        """Return an output from which a path returns into the sub-graph, if there is one."""
        downstream = self.graph.downstream
        for output in self.output:
            if downstream[output] & self.inside:
                return output
        return None

    def is_valid(self, most_depth: int = 0) -> bool:
        """Tell whether it is convex, has one exit at most, and reads nothing that leaves it.

        Args:
            most_depth: Operators on the longest path from an entry to an exit; 0: any number.
        """
        graph = self.graph
        if len(self.exit) > 1 or (most_depth and self.depth > most_depth):
            return False
        if any(self._is_shared(value) for exit in self.exit for value in graph.nodes[exit].outputs):
            return False
        return self.feeds_itself is None

    def _is_shared(self, value: ValueIndex) -> bool:
        """Tell whether a value of an operator inside is read inside, and leaves the sub-graph."""
        read = any(self.inside >> reader & 1 for reader in self.graph.readers[value])
        return read and self.graph.leaves(value, self.inside)

    def joins(self, below: SubGraph) -> bool:
        """Tell whether the union with a sub-graph that reads this one makes no cycle.

        Both are assumed to be convex; so is the union then.
        """
        if self.inside & below.inside:
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
        return SubGraph(self.graph, inside, composites, _greatest((self.kind, other.kind)))


def _greatest(kinds: Iterable[OpKind]) -> OpKind:
    return max(kinds, key=KIND_ORDER.__getitem__)


def _flows_into(left: SubGraph, right: SubGraph) -> bool:
    """Tell whether a path leaves ``left`` to an operator outside both and reaches ``right``."""
    downstream = left.graph.downstream
    inside = right.inside
    return any(not inside >> o & 1 and downstream[o] & inside for o in left.output)
