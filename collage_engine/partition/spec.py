"""A partition spec: the rule tree that proposes the candidates of a toolchain instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import CandidatePartition
from collage_engine.partition.rules import PartitionRule, Scope
from collage_engine.partition.sub_graph import SubGraph


@dataclass(frozen=True)
class PartitionSpec:
    """The candidates that one toolchain instance proposes (RFC 0062's ``PartitionSpec``)."""

    name: str
    rule: PartitionRule
    validate: Callable[[SubGraph], str | None] | None = None
    """None when the sub-graph is acceptable, else the reason it is not."""
    external: bool = True
    """Whether candidates become functions of an external compiler (``Compiler`` attribute)."""

    _scopes: dict[int, Scope] = field(default_factory=dict, init=False, compare=False, repr=False)
    """What the rule tree works on, by the identity of the graph, which the scope keeps alive."""

    def scope(self, graph: DataflowGraph) -> Scope:
        """Return what the rule tree works on in a graph.

        It is the same scope each time, so that candidates are found once, though they are asked
        for again to explain why a node has none.

        Args:
            graph: The dataflow graph.
        """
        known = self._scopes.get(id(graph))
        if known is None:
            known = self._scopes[id(graph)] = Scope(graph, self.name, self.external)
        return known

    def candidates(
        self, graph: DataflowGraph, notes: list[str] | None = None
    ) -> list[CandidatePartition]:
        """Return all candidates of the rule tree that ``validate`` accepts, in the rules' order.

        Args:
            graph: The dataflow graph.
            notes: Gets a sentence for each limit that was hit; None: nobody reads them.
        """
        scope = self.scope(graph)
        found = scope.found_by(self.rule)
        if notes is not None:
            notes.extend(scope.notes)
        if self.validate is None:
            return found
        return [c for c in found if self.validate(c.sub_graph) is None]
