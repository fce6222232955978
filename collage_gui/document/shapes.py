"""Holds the shapes that a model is open for together, and runs all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
from PySide6.QtCore import QObject, Signal

from collage_engine.records import protocol
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.shapes import STOPPED_BUDGET_S, ShapeRow
from collage_gui.document.execution import Execution
from collage_gui.document.runs import Runs
from collage_gui.engine_client import EngineRequests

Switch = Callable[[protocol.ShapeEntry, Callable[[], None]], None]
"""Shows the document of a shape, and calls back when its graph has arrived."""


class Shapes(QObject):
    """Each shape is a document of the engine; the window shows one of them at a time.

    A run of all shapes is one run after the other, on the same store. The window shows the shape
    whose run is under way.
    """

    changed = Signal()
    """The shapes, their table, or the one that is shown changed."""
    finished = Signal(str, str)
    """A run of all shapes ended: its state (finished, failed or cancelled) and the reason."""

    def __init__(
        self,
        requests: EngineRequests,
        execution: Execution,
        runs: Runs,
        switch: Switch,
        parent: QObject | None = None,
    ) -> None:
        """Receives what it works with.

        Args:
            requests: Asks the engine; its handle says which shape is shown.
            execution: Does the run of the shape that is shown.
            runs: The runs of the shape that is shown.
            switch: Shows another shape.
            parent: The object that owns this one.
        """
        super().__init__(parent)
        self._requests, self._execution, self._runs = requests, execution, runs
        self._switch = switch
        self.entries: tuple[protocol.ShapeEntry, ...] = ()
        """In the user's order; empty where the document was opened for one shape."""
        self.others = False
        """Whether an artifact of all shapes takes any other one, too."""
        self._left: list[protocol.ShapeEntry] = []
        """The shapes whose runs have not begun."""
        self._settings: RunSettings | None = None
        """Of the run of all shapes that is under way."""
        self._began_s = 0.0
        self._stopped = False
        self._shown_before = ""
        execution.finished.connect(self._run_finished)
        execution.running_changed.connect(self.changed)

    # -- what is known -----------------------------------------------------------------

    @property
    def several(self) -> bool:
        """Tells whether the model is open for more than one shape."""
        return len(self.entries) > 1

    @property
    def running(self) -> bool:
        """Tells whether a run of all shapes is under way."""
        return self._settings is not None

    @property
    def shown(self) -> protocol.ShapeEntry | None:
        """Returns the shape that the window shows; None where the document is for one shape."""
        handle = self._requests.handle
        return next((entry for entry in self.entries if entry.document == handle), None)

    @property
    def place(self) -> tuple[int, int]:
        """Returns the number of the shape that is shown, from 1, and how many there are."""
        shown = self.shown
        return (self.entries.index(shown) + 1 if shown is not None else 0, len(self.entries))

    def rows(self, run: Run | None) -> list[ShapeRow]:
        """Return the rows of the table of shapes.

        Args:
            run: Stands in where the shapes are not open: a run knows those placed with it.
        """
        if self.several:
            return [entry.row for entry in self.entries if entry.row is not None]
        return list(run.shapes) if run is not None else []

    # -- opening -----------------------------------------------------------------------

    def take(self, entries: Sequence[protocol.ShapeEntry]) -> None:
        """Take what the engine says of the shapes that are open."""
        self.entries = tuple(entries)
        self.changed.emit()

    def refresh(self, then: Callable[[], None] | None = None) -> None:
        """Ask for the table of shapes.

        Args:
            then: Called when it has arrived.
        """

        def arrived(answer: protocol.ShapesAnswer) -> None:
            self.take(answer.entries)
            if then is not None:
                then()

        params = protocol.ShapesList(document=self._requests.handle)
        self._requests.send(params, arrived, topic="shapes")

    def show(self, entry: protocol.ShapeEntry) -> None:
        """Show another shape, unless something runs: the window follows the run then."""
        if entry != self.shown and not self.running and not self._execution.running:
            self._switch(entry, lambda: None)

    # -- runs of all shapes ------------------------------------------------------------

    def start(self, settings: RunSettings) -> None:
        """Run all shapes one after the other.

        The pins of the shape that is shown hold for all. What is left of the budget is shared out
        evenly among the shapes that are left.

        Args:
            settings: Settings of all runs; the budget is that of all of them together.
        """
        if self.running or self._execution.running or not self._requests.handle:
            return
        self._settings, self._began_s, self._stopped = settings, time.monotonic(), False
        self._shown_before = self._requests.handle

        def arrived(answer: protocol.ShapesAnswer) -> None:
            self.take(answer.entries)
            self._left = list(self.entries)
            if self._settings is settings:  # it was not cancelled meanwhile
                self._next()

        def failed(reason: str) -> None:
            self._end()
            self._requests.failed.emit(reason)
            self.finished.emit("failed", reason)

        params = protocol.ShapesOpen(
            document=self._requests.handle,
            choices=tuple(entry.choice for entry in self.entries),
        )
        self._requests.send(params, arrived, failed, topic="shapes")

    def cancel(self) -> None:
        """Begin no further run; that of the shape that is shown is cancelled by itself."""
        self._left = []
        if not self._execution.running:
            self._end()

    def stop(self) -> None:
        """Give the shapes that are left no more time than a first answer takes."""
        self._stopped = True

    def end(self) -> None:
        """Forget a run that cannot go on: the engine is gone."""
        self._left = []
        self._end()

    def _next(self) -> None:
        settings = self._settings
        if settings is None:
            return
        if not self._left:
            self._finish()
            return
        entry, left = self._left[0], len(self._left)
        self._left = self._left[1:]
        spent_s = time.monotonic() - self._began_s
        share_s = STOPPED_BUDGET_S if self._stopped else (settings.budget_s - spent_s) / left
        text = entry.choice.text
        mine = msgspec.structs.replace(
            settings,
            shapes=entry.model.shapes,
            budget_s=max(STOPPED_BUDGET_S, share_s),
            name=f"{settings.name}, {text}" if settings.name else text,
        )

        def start() -> None:
            if self.running:
                self._execution.start(mine)

        self._switch(entry, start)

    def _run_finished(self, state: str, reason: str) -> None:
        if not self.running:
            if self.entries:
                self.refresh()
            return
        if state != "finished":
            self._left = []
            self._end()
            self.refresh()
            self.finished.emit(state, reason)
            return
        last = self._runs.all[-1:]
        self._stopped = self._stopped or any(run.ended == "stopped" for run in last)
        self.refresh(self._next)

    def _finish(self) -> None:
        """End the run of all shapes, and show the shape that was shown at its beginning."""
        before = next((e for e in self.entries if e.document == self._shown_before), None)
        self._end()
        if before is not None:
            self.show(before)
        self.finished.emit("finished", "")

    def _end(self) -> None:
        settings, self._settings = self._settings, None
        if settings is not None:
            # The next run has the whole budget again, and a name of its own.
            shapes = self._execution.settings.shapes
            self._execution.settings = msgspec.structs.replace(settings, shapes=shapes)
        self.changed.emit()
