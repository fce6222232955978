"""Asks the engine for candidates and costs, and the questions that a selection raises."""

from __future__ import annotations

import time
from collections.abc import Iterable

from PySide6.QtCore import QObject, QTimer, Signal

from collage_engine.records import protocol
from collage_engine.records.answers import (
    Alternative,
    ExplainAnswer,
    InsideAnswer,
    Price,
    SearchAnswer,
)
from collage_engine.records.candidate import UNKNOWN, CandidateRecord, Cost
from collage_engine.records.event import Measured
from collage_gui.document.shown import Selection, ShownPlacement
from collage_gui.engine_client import EngineRequests
from collage_gui.theme import FLOW_MS, INSTANT_MS


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
        self.alternatives: dict[str | None, Alternative] = {}
        """What it says of candidates, by id."""
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

    def ask_inside(self, candidate: str | None, node: int | None) -> None:
        """Ask what is in a candidate, and what a node holds."""
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
        self.explanation, self.candidates, self.alternatives = None, (), {}
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
        self.alternatives = {told.candidate: told for told in answer.alternatives}
        self._costs.take_prices(answer, answer.candidates)
        self.explanation_changed.emit()

    def _queried(self, answer: protocol.CandidatesAnswer) -> None:
        self.candidates = answer.candidates
        self._costs.take_prices(answer, answer.candidates)
        self._costs.add(answer.candidates, replace=False)
        self.explanation_changed.emit()


class CostTable(QObject):
    """Every candidate of the model with what is known of its cost."""

    changed = Signal()
    """Costs or prices changed; gathered while a run measures."""
    candidates_changed = Signal()

    def __init__(self, requests: EngineRequests, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._requests = requests
        self.candidates: dict[str, CandidateRecord] = {}
        """Candidate id → candidate."""
        self.by_candidate: dict[str, Cost] = {}
        """Candidate id → cost, where one is known."""
        self.prices: dict[str, Price] = {}
        """By candidate id, where something is known."""
        self._asked_for = ""
        """The handle for which an answer is awaited."""
        self._ask_again = False
        self._announce = QTimer(self, interval=FLOW_MS, singleShot=True)
        self._announce.timeout.connect(self._emit_changed)

    def of(self, candidate: str) -> Cost:
        """Return the cost of a candidate, by its id; unknown where nothing is known."""
        cost = self.by_candidate.get(candidate)
        if cost is None and candidate in self.candidates:
            cost = self.candidates[candidate].cost
        return cost or UNKNOWN

    @property
    def any_usable(self) -> bool:
        """Tells whether there is any cost to search with."""
        return any(cost.usable for cost in self.by_candidate.values())

    def refresh(self) -> None:
        """Ask the engine for all candidates.

        While an answer is awaited, the next question waits for it: a stream of new costs must
        not postpone the answer for ever.
        """
        if self._asked_for == self._requests.handle:
            self._ask_again = True
            return
        self._asked_for, self._ask_again = self._requests.handle, False
        self._requests.send(
            protocol.CandidatesQuery(document=self._requests.handle),
            self._candidates_arrived,
            self._candidates_failed,
            topic="candidates",
        )

    def add(self, candidates: Iterable[CandidateRecord], replace: bool = True) -> None:
        """Take candidates and their known costs out of an answer.

        Args:
            candidates: Candidates that the engine named.
            replace: Whether a candidate that is known already is replaced.
        """
        for candidate in candidates:
            if replace or candidate.id not in self.candidates:
                self.candidates[candidate.id] = candidate
            if candidate.cost.state != "unknown":
                self.by_candidate[candidate.id] = candidate.cost

    def take_measured(self, measured: Measured) -> None:
        """Take the cost of a notification; several are announced together soon."""
        self.by_candidate[measured.candidate] = measured.cost
        if not self._announce.isActive():
            self._announce.start()
        if measured.candidate not in self.candidates:
            self.refresh()

    def clear(self) -> None:
        """Forget all candidates: another graph takes the place of theirs."""
        self._requests.drop("candidates")
        self._announce.stop()
        self._asked_for, self._ask_again = "", False
        self.candidates, self.by_candidate, self.prices = {}, {}, {}

    def take_prices(
        self,
        answer: protocol.CandidatesAnswer | ExplainAnswer | SearchAnswer,
        about: Iterable[CandidateRecord] | None = None,
    ) -> None:
        """Take the prices of an answer.

        Args:
            answer: The answer.
            about: The candidates that it is about, by default all: what was known of their prices
                no longer holds.
        """
        if about is None:
            self.prices = {}
        else:
            for candidate in about:
                self.prices.pop(candidate.id, None)
        self.prices.update(answer.prices)

    def _candidates_failed(self, reason: str) -> None:
        self._asked_for = ""
        self._requests.logged.emit("warning", reason)

    def _candidates_arrived(self, answer: protocol.CandidatesAnswer) -> None:
        self._asked_for = ""
        if self._ask_again:
            self.refresh()
        self.candidates = {}
        self.add(answer.candidates)
        self.take_prices(answer, answer.candidates)
        self.candidates_changed.emit()

    def _emit_changed(self) -> None:
        begin = time.perf_counter()
        self.changed.emit()
        spent_ms = (time.perf_counter() - begin) * 1000
        # Panels that need longer than an instant get proportionally longer to rest, so that a run
        # leaves nine tenths of the window's time to the user.
        self._announce.setInterval(max(FLOW_MS, round(spent_ms * FLOW_MS / INSTANT_MS)))
