"""Candidates: sub-graphs that a toolchain instance could run as one partition."""

from __future__ import annotations

import msgspec

from collage_engine.records.cost import UNKNOWN, Cost
from collage_engine.records.numbering import OperatorNumber
from collage_engine.records.toolchain import ToolchainInstance


class Candidate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sub-graph that a toolchain instance could run as one partition, without its cost.

    Everything else refers to it by ``id``; what is known of its cost stands in a ``CostTable``.
    """

    id: str
    """Stable within a model: ``<instance id>:<hash of the operator set and the formats>``."""
    instance: ToolchainInstance
    nodes: tuple[OperatorNumber, ...]
    """Operator numbers, ascending."""
    label: str
    """Operators joined by ``+``, in order, cut in the middle when long."""
    rule: str = ""
    """Which rule found it (provenance), e.g. ``tvm.combine``, ``greedy``."""
    composites: tuple[tuple[str, tuple[OperatorNumber, ...]], ...] = ()
    """(composite name, operator numbers) that map to one library call each."""
    protected: bool = False
    """Never pruned: single operators, FuseOps groups, greedy partitions, the whole model."""
    key: str = ""
    """Key of its measurement; equal work has equal keys."""
    device: str = "cpu"
    takes: dict[int, str] = {}
    """Format wanted for an input value (operator number of its producer); absent: plain."""
    gives: dict[int, str] = {}
    """Format of an output value; absent: plain."""

    @property
    def calls_text(self) -> str:
        """Return its composites for people: ``openblas.conv (0, 1, 2)``, each one library call."""
        return "; ".join(f"{name} ({', '.join(map(str, of))})" for name, of in self.composites)


class CandidateRecord(Candidate, frozen=True, kw_only=True, omit_defaults=True):
    """The row of a document about a candidate: the candidate joined with what it costs.

    Sessions, the service's answers, reports and the screens show these rows. A run keeps
    candidates and costs apart and joins them with ``records.cost_table.records_of``.
    """

    cost: Cost = UNKNOWN
