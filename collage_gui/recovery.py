"""Keeps unsaved work in session files until it is saved, in a folder of each window.

A copy is removed when its document is saved or closed properly. What is left at the next start was
lost in a crash, and the welcome page offers to restore it.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QStandardPaths, QTimer

from collage_engine.support.files import hold_lock, is_locked
from collage_gui.engine_client import EngineClient
from collage_gui.theme import FLOW_MS

if TYPE_CHECKING:
    from collage_gui.document.document import Document


LOCK = "window.lock"
"""Name of the file in a window's folder that the window keeps locked. The folder itself is locked
by the engine while it saves a session there."""


def recovery_folder() -> Path:
    """Return the folder of all windows' folders, which ``COLLAGE_EXPLORER_RECOVERY`` may name."""
    named = os.environ.get("COLLAGE_EXPLORER_RECOVERY")
    if named:
        return Path(named)
    base = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.GenericStateLocation)
    return Path(base or Path.home()) / "collage-explorer" / "recovery"


def left_behind() -> list[Path]:
    """Return the copies whose window is gone without having removed them."""
    lost: list[Path] = []
    for folder in sorted(recovery_folder().glob("*/")):
        if not is_locked(folder / LOCK):
            copies = sorted(folder.glob("*.collage"))
            lost += copies
            if not copies:
                shutil.rmtree(folder, ignore_errors=True)
    return lost


def name_of(copy: Path) -> str:
    """Return the name of the file that was open, by its copy."""
    return copy.stem.partition("-")[2]


class RecoveryCopies(QObject):
    """Saves a copy of a watched document soon after each edit, and removes it in the end."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._client = client
        self.folder = recovery_folder() / uuid.uuid4().hex
        """This window's, in which it holds a lock from the first copy on until it ends, however it
        ends. Process ids would not tell windows apart: containers give every window the same."""
        self.copies: dict[Document, Path] = {}
        self._watched: list[Document] = []
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
        copy = self.copies.pop(document, None)
        if copy is not None:
            copy.unlink(missing_ok=True)

    def copy_of(self, document: Document) -> Path | None:
        """Return a document's copy, if it has been written."""
        copy = self.copies.get(document)
        return copy if copy is not None and copy.exists() else None

    def save_all(self) -> None:
        """Make a copy of every document with unsaved work, where that is possible."""
        if self._client.connection.is_remote or self._client.state != "ready":
            return
        for document in self._watched:
            if document.unsaved and document.handle:
                self._save(document)

    def _save(self, document: Document) -> None:
        if document not in self.copies:
            try:
                if not self.folder.exists():
                    self.folder.mkdir(parents=True)
                    hold_lock(self.folder / LOCK)
            except OSError as error:
                text = f"No recovery copy could be written: {error}"
                document.requests.logged.emit("warning", text)
                return
            name = os.path.basename(document.session_path or document.path)
            self.copies[document] = self.folder / f"{uuid.uuid4().hex}-{name}.collage"
        document.save_recovery_copy(str(self.copies[document]))
