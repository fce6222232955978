"""A candidate source describes where the candidates of a toolchain instance come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from collage_engine.model.dataflow_graph import DataflowGraph
from collage_engine.model.formats import channels_last_border, host_border
from collage_engine.partition.rules import PartitionRule
from collage_engine.records.candidate import Refusal
from collage_engine.records.format import NHWC, PLAIN, Formats
from collage_engine.records.graph import NodeIndex, NodeSet, OperatorNumber
from collage_engine.records.operators import names_where
from collage_engine.records.toolchain import ToolchainInstance

Composites = tuple[tuple[str, tuple[OperatorNumber, ...]], ...]
"""(name, operator numbers) of library calls."""

HOST_ONLY = names_where(on_host=True)
"""Relax operators about shapes, which are computed on the host."""


@dataclass(frozen=True)
class CandidateSource:
    """One toolchain instance with its rules, from which candidates of a graph are enumerated."""

    instance: ToolchainInstance
    spec: PartitionRule | None
    """Its rules; None: it proposes none beside single operators, blocks and the whole model."""
    supports: Callable[[NodeIndex], str | None]
    """Returns the reason why the instance cannot run a call, by its node index; None: it can."""
    whole_model: bool = True
    """Whether the whole model may be one of its candidates."""
    lowers_to_tir: bool = False
    """Whether TVM compiles its partitions; FuseOps groups are then among its candidates."""
    device: str = "cpu"
    made_of: Callable[[NodeSet], Composites | None] | None = None
    """Composites that it makes of a set of calls; None: the set is no candidate of its."""
    formats: tuple[str, ...] = (PLAIN,)
    """What its partitions can take and give at their borders."""
    host: bool = False
    """Whether it runs on the host in a run on a device: what crosses its border is then copied."""

    def borders(
        self, graph: DataflowGraph, operators: tuple[OperatorNumber, ...]
    ) -> tuple[tuple[Formats, Formats], ...]:
        """Return the formats in which a set of operators may take and give its border's values.

        They are plain, and all channels last where that is something else; on the host of a device
        only the host's.

        Args:
            graph: The dataflow graph.
            operators: The operator numbers.

        Returns:
            Pairs of the formats of inputs and of outputs; an absent one is plain.
        """
        if self.host:
            return (host_border(graph, graph.to_indices(operators)),)
        if NHWC in self.formats:
            takes, gives = channels_last_border(graph, graph.to_indices(operators))
            if takes or gives:
                return ({}, {}), (takes, gives)
        return (({}, {}),)

    def refusal(self, graph: DataflowGraph, index: NodeIndex) -> Refusal | None:
        """Return why it cannot run a call on its device; None when it can."""
        op = graph.nodes[index].op
        if self.device != "cpu" and op in HOST_ONLY:
            return Refusal("device", op, self.device)
        reason = self.supports(index)
        return None if reason is None else Refusal("judged", op, reason)
