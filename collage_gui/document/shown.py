"""Holds what the window shows of one document: what is selected, and the placement."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from PySide6.QtCore import QObject, Signal

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.protocol import ShownCover


class Selection(QObject):
    """The selected nodes as operators, and the candidate that is picked in a table."""

    changed = Signal()
    """Other operators are selected, or another one of them is primary."""
    candidate_changed = Signal()

    def __init__(self, graph: OperatorGraph, parent: QObject) -> None:
        super().__init__(parent)
        self.operators: frozenset[int] = frozenset()
        """Operator numbers; those of an ONNX node are selected together."""
        self._graph = graph
        self.primary: int | None = None
        """The operator that explanations are about; one of ``operators``."""
        self.candidate: str | None = None
        """Id of the picked candidate."""

    def select(self, operators: Iterable[int], primary: int | None = None) -> None:
        """Select the ONNX nodes of operators, and unpick the candidate.

        Args:
            operators: Operator numbers; none deselects everything.
            primary: The operator to explain; the lowest number by default.
        """
        chosen = self._graph.whole_nodes(operators)
        if primary is None or primary not in chosen:
            primary = min(chosen) if chosen else None
        if chosen == self.operators and primary == self.primary:
            return
        self.operators, self.primary = chosen, primary
        self.candidate = None
        self.changed.emit()
        self.candidate_changed.emit()

    def pick_candidate(self, candidate: str | None) -> None:
        """Pick a candidate by its id: the graph shows its nodes, *Inside* shows its code."""
        if candidate != self.candidate:
            self.candidate = candidate
            self.candidate_changed.emit()

    def reset(self, graph: OperatorGraph) -> None:
        """Select nothing in another graph, without a signal: what replaces it announces it."""
        self._graph = graph
        self.operators, self.primary, self.candidate = frozenset(), None, None


@dataclass(frozen=True)
class Shown:
    """A placement with the run, search or baseline from which it comes."""

    placement: Placement
    title: str
    run: str | None = None
    """Id of the run that exports it; None for any other placement."""
    pins: tuple[str, ...] = ()
    """The pins under which it was made, as written: with other pins it is out of date."""
    found_by: str | None = None
    """Id of the run whose search found it while the run exports another one."""
    provisional: bool = False
    """Whether a run that was under way had found it."""

    @property
    def estimated(self) -> bool:
        """Tell whether its latency is an estimate that no run has confirmed."""
        return self.placement.measured_us is None

    @cached_property
    def partitions(self) -> dict[int, Partition]:
        """Return the partition of each operator."""
        return {n: p for p in self.placement.partitions for n in p.nodes}


class ShownPlacement(QObject):
    """The placement that the graph and every table show."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.shown: Shown | None = None

    @property
    def partitions(self) -> dict[int, Partition]:
        """Return the partition of each operator; none without a placement."""
        return self.shown.partitions if self.shown is not None else {}

    @property
    def named(self) -> ShownCover:
        """Returns the shown placement as the engine knows it: by its run, else by candidates."""
        if self.shown is None:
            return ShownCover()
        if self.shown.run is not None:
            return ShownCover(run=self.shown.run)
        return ShownCover(candidates=tuple(p.candidate for p in self.shown.placement.partitions))

    def show(self, shown: Shown | None) -> None:
        """Show another placement, or none where another graph takes the place of its own."""
        self.shown = shown
        self.changed.emit()

    def partition_of(self, operator: int | None) -> Partition | None:
        """Return the partition that holds an operator."""
        return self.partitions.get(operator) if operator is not None else None
