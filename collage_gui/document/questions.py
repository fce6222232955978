"""Asks the engine the questions that a selection raises."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

from collage_engine.records import protocol
from collage_engine.records.answers import ExplainAnswer, InsideAnswer
from collage_engine.records.candidate import CandidateRecord
from collage_gui.document.cost_table import CostTable
from collage_gui.document.shown import Selection, ShownPlacement
from collage_gui.engine_client import EngineRequests
from collage_gui.theme import INSTANT_MS


class Questions(QObject):
    """Why the selected operators run where they do, by which candidates, and what is in them."""

    explanation_changed = Signal()
    inside_changed = Signal()

    def __init__(
        self,
        requests: EngineRequests,
        selection: Selection,
        costs: CostTable,
        placement: ShownPlacement,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._placement = placement
        self._requests, self._selection, self._costs = requests, selection, costs
        self.explanation: ExplainAnswer | None = None
        """About the primary operator."""
        self.candidates: tuple[CandidateRecord, ...] = ()
        """The candidates that contain a selected operator."""
        self.inside: InsideAnswer | None = None
        # Walking along edges with the arrow keys does not ask at every node.
        self._timer = QTimer(self, interval=INSTANT_MS, singleShot=True)
        self._timer.timeout.connect(self._explain)
        selection.changed.connect(self._timer.start)
        costs.candidates_changed.connect(self.ask_again)

    def ask_again(self) -> None:
        """Ask about the selection again, if there is one: what the engine knows has changed."""
        if self._selection.operators:
            self._timer.start()

    def stop(self) -> None:
        """Ask nothing any more: the document closes."""
        self._timer.stop()

    def ask_inside(self, candidate: str | None, node: int | None) -> None:
        """Ask what is in a candidate, and about the weights of a node."""
        self.inside = None

        def arrived(answer: InsideAnswer) -> None:
            self.inside = answer
            self.inside_changed.emit()

        def failed(reason: str) -> None:
            self.inside = InsideAnswer(reason=reason)
            self.inside_changed.emit()

        params = protocol.InsideQuery(
            document=self._requests.handle, candidate=candidate, node=node
        )
        self._requests.send(params, arrived, failed, topic="inside")

    def _explain(self) -> None:
        if not self._requests.handle:
            return
        self.explanation, self.candidates = None, ()
        primary = self._selection.primary
        if primary is None:
            self._requests.drop("explain")
            self.explanation_changed.emit()
            return
        if not self._costs.candidates:
            self.explanation_changed.emit()
            return
        nodes = tuple(sorted(self._selection.operators))
        query = protocol.CandidatesQuery(document=self._requests.handle, nodes=nodes)
        self._requests.send(query, self._queried, topic="query")
        shown = self._placement.named
        ask = protocol.Explain(document=self._requests.handle, node=primary, shown=shown)
        self._requests.send(ask, self._explained, topic="explain")

    def _explained(self, answer: ExplainAnswer) -> None:
        self.explanation = answer
        self._costs.take_prices(answer, answer.candidates)
        self.explanation_changed.emit()

    def _queried(self, answer: protocol.CandidatesAnswer) -> None:
        self.candidates = answer.candidates
        self._costs.take_prices(answer, answer.candidates)
        self._costs.add(answer.candidates, replace=False)
        self.explanation_changed.emit()
