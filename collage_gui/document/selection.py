"""Holds what is selected in one document."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Signal

from collage_engine.drawing.operators import OperatorGraph


class Selection(QObject):
    """The selected nodes as operators, and the candidate that is picked in a table."""

    changed = Signal()
    """Other operators are selected, or another one of them is primary."""
    candidate_changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.operators: frozenset[int] = frozenset()
        """Operator numbers; those of an ONNX node are selected together."""
        self._graph: OperatorGraph | None = None
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
        chosen = frozenset(operators)
        if self._graph is not None:
            chosen = self._graph.whole_nodes(chosen)
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
        """Select nothing in another graph, without a signal: whoever replaces it announces it."""
        self._graph = graph
        self.operators, self.primary, self.candidate = frozenset(), None, None
