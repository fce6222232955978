"""A partition spec: the rule tree that proposes the candidates of a toolchain instance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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

    def scope(self, graph: DataflowGraph, notes: list[str] | None = None) -> Scope:
        """Return what the rule tree works on in a graph.

        Limits that are hit are added to ``notes``.
        """
        return Scope(graph, self.name, self.external, [] if notes is None else notes)

    def candidates(
        self, graph: DataflowGraph, notes: list[str] | None = None
    ) -> list[CandidatePartition]:
        """Return all candidates of the rule tree that ``validate`` accepts, in the rules' order."""
        return self.candidates_in(self.scope(graph, notes))

    def candidates_in(self, scope: Scope) -> list[CandidatePartition]:
        """Return the same candidates where the scope is made already, as for explaining."""
        found = scope.found_by(self.rule)
        if self.validate is None:
            return found
        return [c for c in found if self.validate(c.sub_graph) is None]
