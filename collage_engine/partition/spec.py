"""A partition spec: the rule tree that proposes the candidates of a toolchain instance."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.partition.candidate import CandidatePartition
from collage_engine.partition.rules import PartitionRule


@dataclass(frozen=True)
class PartitionSpec:
    """The candidates that one toolchain instance proposes (RFC 0062's ``PartitionSpec``)."""

    name: str
    rule: PartitionRule

    def candidates(self, graph: DataflowGraph) -> list[CandidatePartition]:
        """Return all candidates of the rule tree, in the rules' order."""
        return self.rule.candidates(graph)
