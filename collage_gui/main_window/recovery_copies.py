"""Keeps recovery copies of the open documents while they have unsaved work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QTimer

from collage_gui import recovery
from collage_gui.engine_client import EngineClient
from collage_gui.theme import FLOW_MS

if TYPE_CHECKING:
    from collage_gui.document.document import Document


class RecoveryCopies(QObject):
    """Saves a copy of a watched document soon after each edit, and removes it in the end."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._client = client
        self.copies: dict[Document, recovery.Copy] = {}
        self._watched: list[Document] = []
        self._stopped = False
        # Several edits in a row make one copy.
        self._soon = QTimer(self, interval=FLOW_MS, singleShot=True)
        self._soon.timeout.connect(self.save_all)

    def watch(self, document: Document) -> None:
        """Make copies of a document from now on."""
        self._watched.append(document)
        for signal in (document.edited, document.opened):  # opened by another engine, maybe
            signal.connect(self._soon.start)

    def forget(self, document: Document) -> None:
        """Remove a document's copy: it closes properly."""
        if document in self._watched:
            self._watched.remove(document)
        self.discard(document)

    def discard(self, document: Document) -> None:
        """Remove a document's copy: it has been saved."""
        recovery.discard(self.copies.pop(document, None))

    def copy_of(self, document: Document) -> recovery.Copy | None:
        """Returns a document's copy, if it has been written."""
        copy = self.copies.get(document)
        return copy if copy is not None and copy.session.exists() else None

    def stop(self) -> None:
        """Make no copies any more: the window closes."""
        self._stopped = True
        self._soon.stop()

    def save_all(self) -> None:
        """Make a copy of every document with unsaved work."""
        for document in self._watched:
            if document.unsaved:
                self.save(document)

    def save(self, document: Document) -> None:
        """Make a copy of a document, where that is possible."""
        if (
            self._stopped
            or document not in self._watched
            or not document.handle
            or self._client.connection.is_remote
            or self._client.state != "ready"
        ):
            return
        copy = self.copies.get(document)
        if copy is None:
            try:
                copy = recovery.new_copy(document.path, document.session_path)
            except OSError as error:
                document.log.add("warning", f"No recovery copy could be written: {error}")
                return
            self.copies[document] = copy
        document.save_recovery_copy(str(copy.session))
