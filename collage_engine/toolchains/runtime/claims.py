"""Finds places where a chain of operators is one function, by pattern, and claims each once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.index_set import NO_NODES, members, node_set
from collage_engine.partition.matching import Match
from collage_engine.partition.patterns import Pattern, all_matches
from collage_engine.records.numbering import NodeIndex, NodeSet


class HasPattern(Protocol):
    """The protocol of a table's entries: each has a pattern."""

    @property
    def pattern(self) -> Pattern:
        """Return what the entry matches."""
        ...


Entry = TypeVar("Entry", bound=HasPattern)


@dataclass(frozen=True)
class Claim(Generic[Entry]):
    """An entry at a place; ``nodes`` holds its calls only."""

    entry: Entry
    match: Match
    nodes: NodeSet


class Claims(Generic[Entry]):
    """The places that a table of entries finds in graphs; they are kept as long as the graph is.

    The order of the table decides: of two entries that fit, the first claims the operators.
    """

    def __init__(self, table: Sequence[Entry]) -> None:
        self._table = table
        self._known: WeakKeyDictionary[DataflowGraph, tuple[Claim[Entry], ...]] = (
            WeakKeyDictionary()
        )

    def find(self, graph: DataflowGraph) -> tuple[Claim[Entry], ...]:
        """Return every place where an entry's operators are read by nobody else.

        They may overlap.
        """
        known = self._known.get(graph)
        if known is None:
            known = self._known.setdefault(graph, tuple(self._search(graph)))
        return known

    def within(self, graph: DataflowGraph, inside: NodeSet) -> dict[NodeIndex, Claim[Entry]]:
        """Returns the claims that lie in a set, by root.

        Of overlapping ones the first in the table wins.
        """
        chosen: dict[NodeIndex, Claim[Entry]] = {}
        taken = NO_NODES
        for claim in self.find(graph):
            if not (claim.nodes & ~inside or claim.nodes & taken):
                chosen[claim.match.root] = claim
                taken |= claim.nodes
        return chosen

    def _search(self, graph: DataflowGraph) -> Iterator[Claim[Entry]]:
        for entry in self._table:
            roots = entry.pattern.root_ops or frozenset()
            for root in graph.operators:
                if graph.nodes[root].op not in roots:
                    continue
                for match in all_matches(graph, entry.pattern, root):
                    calls = node_set(
                        i for i in members(match.nodes) if graph.nodes[i].form == "call"
                    )
                    if _closed(graph, calls, root):
                        yield Claim(entry, match, calls)
                        break


def _closed(graph: DataflowGraph, calls: NodeSet, root: NodeIndex) -> bool:
    """Tell whether only the root's value is read outside."""
    return all(
        index == root
        or not (
            graph.output_set >> index & 1 or any(not calls >> u & 1 for u in graph.users[index])
        )
        for index in members(calls)
    )
