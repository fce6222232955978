"""Lets one run after the other have the machine, since two at once would disturb their times."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal

if TYPE_CHECKING:
    from collage_gui.document.document import Document


class RunQueue(QObject):
    """Knows the open documents, of which one runs and others may wait, in order."""

    changed = Signal()
    """A signal that a document began or ceased to wait."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._documents: list[Document] = []
        self._waiting: dict[Document, Callable[[], None]] = {}

    def add(self, document: Document) -> None:
        """Take care of a document from now on."""
        self._documents.append(document)
        document.execution.running_changed.connect(self._start_next)
        document.shapes.changed.connect(self._start_next)

    def remove(self, document: Document) -> None:
        """Forget a document that is closed."""
        self._documents.remove(document)
        self.withdraw(document)
        self._start_next()

    def ask(self, document: Document, start: Callable[[], None]) -> Document | None:
        """Start at once, or as soon as nothing else runs.

        Args:
            document: The document that is to run.
            start: Starts its run.

        Returns:
            The document whose run is waited for; None where the run has begun.
        """
        busy = self._running()
        if busy is None:
            start()
        elif document not in self._waiting:
            self._waiting[document] = start
            self.changed.emit()
        return busy

    def waits(self, document: Document) -> bool:
        """Tells whether a document waits for its turn."""
        return document in self._waiting

    def withdraw(self, document: Document) -> None:
        """Take back a run that waits."""
        if self._waiting.pop(document, None) is not None:
            self.changed.emit()

    def _running(self) -> Document | None:
        return next((each for each in self._documents if each.running), None)

    def _start_next(self) -> None:
        if self._waiting and self._running() is None:
            document = next(iter(self._waiting))
            start = self._waiting.pop(document)
            self.changed.emit()
            start()
