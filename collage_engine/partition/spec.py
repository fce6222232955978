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

    def candidates(
        self, graph: DataflowGraph, notes: list[str] | None = None
    ) -> list[CandidatePartition]:
        """Return all candidates of the rule tree that ``validate`` accepts, in the rules' order.

        Args:
            graph: The dataflow graph.
            notes: Gets a sentence for each limit that was hit; None: nobody reads them.
        """
        scope = Scope(graph, self.name)
        found = self.rule.candidates(scope)
        if notes is not None:
            notes.extend(scope.notes)
        if self.validate is None:
            return found
        return [c for c in found if self.validate(c.sub_graph) is None]
