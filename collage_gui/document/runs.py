"""Holds the runs of one document, which of them is shown, and what it is compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec
from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from collage_engine.records import protocol
from collage_engine.records.answers import Comparison
from collage_engine.records.graph import GraphRecord
from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.wording.figures import Difference, best_baseline, difference, latency_us
from collage_engine.wording.layers import compare_runs
from collage_engine.wording.titles import baseline_title, register_toolchains
from collage_gui.document.pin_set import PinSet
from collage_gui.document.questions import CostTable
from collage_gui.document.shown import Shown, ShownPlacement
from collage_gui.engine_client import EngineRequests


class SetValue(QUndoCommand):
    """Replaces one value of a document, and puts the earlier one back when it is undone."""

    def __init__(self, text: str, apply: Callable[[Any], None], before: Any, after: Any) -> None:
        """Receives what it changes.

        Args:
            text: What the menu calls this edit.
            apply: Puts a value into the document, as a method of the part that holds it.
            before: The value that undoing puts back.
            after: The value that doing and redoing put in.
        """
        super().__init__(text)
        self._apply, self._before, self._after = apply, before, after

    def redo(self) -> None:
        """Put the new value in."""
        self._apply(self._after)

    def undo(self) -> None:
        """Put the earlier value back."""
        self._apply(self._before)


class Runs(QObject):
    """Every run of the document, oldest first; a deleted one is hidden until it is saved."""

    changed = Signal()
    edited = Signal()
    """The user named, annotated or deleted a run: the document has something to save."""

    def __init__(
        self,
        requests: EngineRequests,
        undo: QUndoStack,
        costs: CostTable,
        pins: PinSet,
        placement: ShownPlacement,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._requests, self._undo = requests, undo
        self._costs, self._pins, self._placement = costs, pins, placement
        self.all: list[Run] = []
        self.hidden: set[str] = set()
        """Ids of deleted runs."""
        self.provisional: Run | None = None
        """What a run under way, or one that was cancelled, has found."""

    @property
    def visible(self) -> list[Run]:
        """Returns the runs that are not deleted."""
        return [run for run in self.all if run.id not in self.hidden]

    def find(self, run: str | None) -> Run | None:
        """Return the run with this id; a finished one rather than what it found on the way."""
        runs = [*self.all, *filter(None, [self.provisional])]
        return next((each for each in runs if each.id == run), None)

    def title_of(self, run: Run) -> str:
        """Return a run's name, or its number among the runs."""
        if run not in self.all:
            return "Best so far" if run.provisional else "Cancelled run"
        return run.name or f"Run {self.all.index(run) + 1}"

    def shown_or_last(self) -> Run | None:
        """Return the run whose placement is shown, else the last one."""
        shown = self._placement.shown
        run = self.find(shown.run or shown.found_by) if shown is not None else None
        visible = self.visible
        return run or (visible[-1] if visible else None)

    def end_provisional(self) -> None:
        """Keep what a run has found that was cancelled: it does not go on."""
        run = self.provisional
        if run is None:
            return
        self.provisional = msgspec.structs.replace(run, provisional=False)
        self.changed.emit()
        shown = self._placement.shown
        if shown is not None and shown.run == run.id:
            self.show(run.id, shown.pins)

    def refresh(self, then: Callable[[], None] = lambda: None) -> None:
        """Ask the engine for the runs.

        Args:
            then: Called when they have arrived and were announced.
        """

        def arrived(runs: tuple[Run, ...]) -> None:
            self._take(runs)
            then()

        params = protocol.RunsList(document=self._requests.handle)
        self._requests.send(params, arrived, topic="runs")

    def show(self, run_id: str, under: tuple[str, ...] | None = None, found: bool = False) -> None:
        """Show a run's placement in the graph and in every table, with the costs it measured.

        Args:
            run_id: Id of the run.
            under: Pins, as written, that the placement is known to satisfy; by default those of
                the run.
            found: Whether to show the best placement that the run's search found, also when it
                exports another one.
        """
        run = self.find(run_id)
        found = found and run is not None and run.winner != "collage"
        placement = None if run is None else run.best_found() if found else run.placement
        if run is None or placement is None:
            return
        self._costs.by_candidate.update(run.costs)
        pins = tuple(verdict.pin for verdict in run.pins) if under is None else under
        title = self.title_of(run)
        if found:
            title = f"{title}, best of the search"
            self._placement.show(Shown(placement, title, None, pins, run.id))
            return
        self._placement.show(Shown(placement, title, run.id, pins, provisional=run.provisional))
        if run.pins and under is None and pins == self._pins.written:
            self._pins.set_verdicts(run.pins, run.pins_us)

    def show_known(self, placement: Placement, under: tuple[str, ...]) -> bool:
        """Show the visible run that measured this very placement.

        Args:
            placement: What a search found.
            under: The pins of that search.

        Returns:
            Whether there is such a run.
        """
        for run in reversed(self.visible):
            if run.placement is not None and _confirmed(run.placement, placement):
                self.show(run.id, under)
                return True
            best = run.best_found()
            if best is not None and _confirmed(best, placement):
                self.show(run.id, under, found=True)
                return True
            same = next((b for b in run.baselines if b.measured_us and b.is_of(placement)), None)
            if same is not None and placement.measured_us is not None:
                title = f"{baseline_title(same)} ({self.title_of(run)})"
                self._placement.show(Shown(placement, title, None, under))
                return True
        return False

    def edit(self, run: Run, field: Literal["name", "note"], value: str) -> None:
        """Give a run another name or note, undoably."""
        before = getattr(run, field)
        if value != before:
            title = "Rename run" if field == "name" else "Edit note"
            self._undo.push(SetValue(title, partial(self._edit, run.id, field), before, value))

    def delete(self, run_id: str) -> None:
        """Hide a run, undoably; saving the document deletes it for good."""
        self._undo.push(SetValue("Delete run", partial(self._hide, run_id), False, True))

    def delete_hidden(self) -> None:
        """Delete the hidden runs in the engine: the document is about to be saved."""
        for run in sorted(self.hidden):
            params = protocol.RunEdit(document=self._requests.handle, run=run, delete=True)
            self._requests.send(params)

    def clear(self) -> None:
        """Forget the runs: those of another graph take their place. Deleted ones are deleted."""
        self.delete_hidden()
        self._requests.drop("runs")
        self.all, self.hidden, self.provisional = [], set(), None

    def _edit(self, run_id: str, field: str, value: str) -> None:
        def arrived(runs: tuple[Run, ...]) -> None:
            self.edited.emit()
            self._take(runs)

        params = protocol.RunEdit(document=self._requests.handle, run=run_id)
        params = msgspec.structs.replace(params, **{field: value})
        self._requests.send(params, arrived)

    def _hide(self, run_id: str, hidden: bool) -> None:
        (self.hidden.add if hidden else self.hidden.discard)(run_id)
        self.edited.emit()
        self.changed.emit()

    def _take(self, runs: tuple[Run, ...]) -> None:
        self.all = list(runs)
        for run in self.all:
            register_toolchains(run.toolchains)
        self.changed.emit()


def _confirmed(earlier: Placement, placement: Placement) -> bool:
    """Tells whether a run's placement was measured and is the same as another one."""
    return earlier.measured_us is not None and earlier.identity == placement.identity


@dataclass(frozen=True)
class Reference:
    """A run, or a baseline of the run that is shown, with which numbers are compared."""

    kind: str = "best"
    """``best`` baseline, ``baseline`` by name, or ``run`` by id."""
    name: str = ""


class ReferenceComparison(QObject):
    """The reference of all numbers, and the differences of the shown run from it."""

    reference_changed = Signal()

    def __init__(
        self,
        graph: Callable[[], GraphRecord | None],
        runs: Runs,
        placement: ShownPlacement,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._graph, self._runs, self._placement = graph, runs, placement
        self.reference = Reference()
        self.result: Comparison | None = None
        """The nodes that differ between the reference run and the shown run."""
        placement.changed.connect(self._compare)

    @property
    def run(self) -> Run | None:
        """Return the run that numbers are compared with, where it is one."""
        return self._runs.find(self.reference.name) if self.reference.kind == "run" else None

    def set_reference(self, reference: Reference) -> None:
        """Compare everything with another run or baseline."""
        self.reference = reference
        self._compare()
        self.reference_changed.emit()

    def _compare(self) -> None:
        shown, graph = self._placement.shown, self._graph()
        run = self._runs.find(shown.run) if shown is not None else None
        other = self.run
        self.result = None
        if run is not None and other is not None and run is not other and graph is not None:
            self.result = compare_runs(other, run, graph)

    def reference_time(self) -> tuple[str, float | None]:
        """Return the name of the reference and its latency in µs; None where it is not known."""
        if self.reference.kind == "run":
            if self.run is None:
                return self.reference.name, None
            return self._runs.title_of(self.run), latency_us(self.run.placement)
        baseline = self.reference_baseline()
        if baseline is None:
            return self.reference.name or "best baseline", None
        return baseline_title(baseline), baseline.measured_us

    def is_itself(self) -> bool:
        """Tell whether the reference is the shown placement, so that there is no difference."""
        shown, baseline = self._placement.shown, self.reference_baseline()
        if shown is None:
            return False
        if self.run is not None:
            return self.run.placement is shown.placement
        return baseline is not None and baseline.is_of(shown.placement)

    def reference_baseline(self) -> Baseline | None:
        """Return the baseline that numbers are compared with; None when they are not."""
        run, shown = self._runs.shown_or_last(), self._placement.shown
        if run is None or self.reference.kind == "run":
            return None
        if self.reference.kind == "best":
            return best_baseline(run, shown.placement if shown is not None else None)
        name = self.reference.name
        return next((b for b in run.baselines if b.name == name and b.measured_us), None)

    def difference(self, placement: Placement | Baseline | None = None) -> Difference | None:
        """Compare a placement of the shown run with the reference.

        Args:
            placement: The placement; None: the shown one.

        Returns:
            How their latencies differ; None where one of them is not known.
        """
        shown, run = self._placement.shown, self._runs.shown_or_last()
        if placement is None:
            placement = shown.placement if shown is not None else None
        if self.reference.kind != "run":
            return difference(placement, run, self.reference_baseline())
        other = self.run
        return difference(placement, run, other.placement if other is not None else None, other)

    def is_decided(self) -> bool:
        """Tell whether measurements tell the shown placement from the reference, if it has any."""
        delta = self.difference()
        return delta is None or delta.is_decided
