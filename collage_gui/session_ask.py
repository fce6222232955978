"""Selecting in one document, and the questions a selection asks."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Signal

from collage_engine.drawing.words import counted
from collage_engine.records.answers import (
    ExplainAnswer,
    InsideAnswer,
)
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Partition
from collage_engine.service import protocol
from collage_gui.commands import SetPins
from collage_gui.session_runs import RunsOfDocument, essence


class Asking(RunsOfDocument):
    """Selection, explanations, looking inside, measuring now, pins."""

    def select(self, operators: Iterable[int], primary: int | None = None) -> None:
        chosen = frozenset(operators)
        if primary is None or primary not in chosen:
            primary = min(chosen) if chosen else None
        if chosen == self.selection and primary == self.primary:
            return
        self.selection, self.primary = chosen, primary
        self.candidate = None
        self.selection_changed.emit()
        self.candidate_changed.emit()
        self._ask.start()

    def select_candidate(self, id_: str | None) -> None:
        """Pick a candidate: the graph shows its nodes, *Inside* its code."""
        if id_ != self.candidate:
            self.candidate = id_
            self.candidate_changed.emit()

    def partition_of(self, operator: int | None) -> Partition | None:
        return self.partitions.get(operator) if operator is not None else None

    def _explain(self) -> None:
        if not self.handle:
            return
        self.explanation, self.explained = None, ()
        if self.primary is None:
            self._tickets["explain"] = self._tickets.get("explain", 0) + 1
            self.explanation_changed.emit()
            return
        if not self.candidates:
            self.explanation_changed.emit()
            return
        nodes = tuple(sorted(self.selection))

        def explained(answer: ExplainAnswer) -> None:
            self.explanation = answer
            self.regrets.update(answer.regrets)
            self.explanation_changed.emit()

        def queried(answer: protocol.CandidatesAnswer) -> None:
            self.explained = answer.candidates
            self.regrets.update(answer.regrets)
            for candidate in answer.candidates:
                self.candidates.setdefault(candidate.id, candidate)
                if candidate.cost.state != "unknown":
                    self.costs[candidate.id] = candidate.cost
            self.explanation_changed.emit()

        query = protocol.CandidatesQuery(document=self.handle, nodes=nodes[:4000], limit=20_000)
        self._request("candidates.query", query, queried, ticket="query")
        ask = protocol.Explain(document=self.handle, node=self.primary)
        self._request("explain", ask, explained, ticket="explain")

    def ask_inside(self, candidate: str | None, node: int | None) -> None:
        """What is in a candidate, and the weights of a node."""
        self.inside = None

        def arrived(answer: InsideAnswer) -> None:
            self.inside = answer
            self.inside_changed.emit()

        def failed(reason: str) -> None:
            self.inside = InsideAnswer(reason=reason)
            self.inside_changed.emit()

        params = protocol.InsideQuery(document=self.handle, candidate=candidate, node=node)
        self._request("inside.get", params, arrived, failed, ticket="inside")

    def measure_now(
        self, nodes: Iterable[int], longer: bool = False, toolchains: tuple[str, ...] = ()
    ) -> None:
        """Measure these operators as one partition on every toolchain; they join the search."""

        def arrived(answer: protocol.CandidatesAnswer) -> None:
            self.progress = None
            for candidate in answer.candidates:
                self.candidates[candidate.id] = candidate
                self.costs[candidate.id] = candidate.cost
            self.mark_unsaved()
            self.candidates_changed.emit()
            good = [c for c in answer.candidates if c.cost.usable]
            count = counted(len(answer.candidates), "candidate")
            self.add_log("info", f"measured {count}, {len(good)} of them valid")
            self.progress_changed.emit()
            self._ask.start()

        params = protocol.MeasureNow(
            document=self.handle, nodes=tuple(sorted(nodes)), toolchains=toolchains, longer=longer
        )
        self.add_log("info", f"measuring {counted(len(params.nodes), 'operator')} now")
        self._request("measure.now", params, arrived)

    # -- pins --------------------------------------------------------------------------

    def edit_pins(self, pins: Iterable[Pin], text: str) -> None:
        """Replace the pins, undoably."""
        after = tuple(pins)
        if essence(after) != essence(self.pins):
            self.undo.push(SetPins(self.key, self.pins, after, text))

    def put_pins(self, pins: tuple[Pin, ...]) -> None:
        """What undo and redo call."""
        self.pins = pins
        self.verdicts = ()
        self.infeasible = None
        self.mark_unsaved()
        self.pins_changed.emit()
        self._send_pins()

    def _send_pins(self) -> None:
        if not self.handle:
            return

        def arrived(answer: protocol.PinsAnswer) -> None:
            if not self.verdicts:
                self.verdicts = answer.verdicts
                self.pins_changed.emit()
            self.pins_taken.emit()

        params = protocol.PinsSet(document=self.handle, pins=self.pins)
        self._request("pins.set", params, arrived, ticket="pins")

    pins_taken = Signal()
    """The engine has the pins: a search may follow."""

    def pinned(self) -> dict[int, list[int]]:
        """Operator → numbers of its pins."""
        found: dict[int, list[int]] = {}
        for at, pin in enumerate(self.pins):
            for node in pin.nodes:
                found.setdefault(node, []).append(at)
        return found
