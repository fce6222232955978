"""Holds the shapes that a model is open for together, of which one is shown and runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, Signal

from collage_engine.records import protocol
from collage_engine.records.placement import Run
from collage_engine.records.shapes import ShapeRow
from collage_gui.document.execution import Execution
from collage_gui.engine_client import EngineRequests

Switch = Callable[[protocol.ShapeEntry, Callable[[], None]], None]
"""Shows the document of a shape, and calls back when its graph has arrived."""


class Shapes(QObject):
    """Each shape is a document of the engine; the window shows one of them at a time."""

    changed = Signal()
    """The shapes, their table, or the one that is shown changed."""

    def __init__(
        self,
        requests: EngineRequests,
        execution: Execution,
        switch: Switch,
        parent: QObject | None = None,
    ) -> None:
        """Receives what it works with.

        Args:
            requests: Asks the engine; its handle says which shape is shown.
            execution: Does the run of the shape that is shown.
            switch: Shows another shape.
            parent: The object that owns this one.
        """
        super().__init__(parent)
        self._requests, self._execution, self._switch = requests, execution, switch
        self.entries: tuple[protocol.ShapeEntry, ...] = ()
        """In the user's order; empty where the document was opened for one shape."""
        self.others = False
        """Whether an artifact of all shapes takes any other one, too."""
        execution.finished.connect(self._refresh)
        execution.running_changed.connect(self.changed)

    @property
    def several(self) -> bool:
        """Tells whether the model is open for more than one shape."""
        return len(self.entries) > 1

    @property
    def shown(self) -> protocol.ShapeEntry | None:
        """Returns the shape that the window shows; None where the document is for one shape."""
        handle = self._requests.handle
        return next((entry for entry in self.entries if entry.document == handle), None)

    def rows(self, run: Run | None) -> list[ShapeRow]:
        """Return the rows of the table of shapes.

        Args:
            run: Stands in where the shapes are not open: a run knows those placed with it.
        """
        if self.several:
            return [entry.row for entry in self.entries if entry.row is not None]
        return list(run.shapes) if run is not None else []

    def take(self, entries: Sequence[protocol.ShapeEntry]) -> None:
        """Take what the engine says of the shapes that are open."""
        self.entries = tuple(entries)
        self.changed.emit()

    def show(self, entry: protocol.ShapeEntry) -> None:
        """Show another shape, unless something runs."""
        if entry != self.shown and not self._execution.running:
            self._switch(entry, lambda: None)

    def _refresh(self) -> None:
        """Ask for the table of shapes, where there is one: a run has ended."""
        if self.entries and self._requests.handle:
            params = protocol.ShapesList(document=self._requests.handle)
            self._requests.send(params, lambda answer: self.take(answer.entries), topic="shapes")
