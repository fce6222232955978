"""Keeps unsaved work in files until it is saved: a session file a document, and a note.

A copy is removed when its document is saved or closed properly. What is left at the next start was
lost in a crash, and the welcome page offers to restore it.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, QStandardPaths, QTimer

from collage_engine.support.files import hold_lock, is_locked, write_atomically
from collage_gui import recovery
from collage_gui.engine_client import EngineClient
from collage_gui.theme import FLOW_MS

if TYPE_CHECKING:
    from collage_gui.document.document import Document


def recovery_folder() -> Path:
    """Return the folder of the recovery copies, which ``COLLAGE_EXPLORER_RECOVERY`` may name."""
    named = os.environ.get("COLLAGE_EXPLORER_RECOVERY")
    if named:
        return Path(named)
    base = QStandardPaths.writableLocation(QStandardPaths.StandardLocation.GenericStateLocation)
    return Path(base or Path.home()) / "collage-explorer" / "recovery"


@dataclass(frozen=True)
class Copy:
    """A recovery copy: ``session`` holds the document that was opened from ``source``."""

    session: Path
    source: str
    saved_as: str

    @property
    def note(self) -> Path:
        """Returns the file that says what it is a copy of."""
        return self.session.with_suffix(".json")


def new_copy(source: str, saved_as: str) -> Copy:
    """Name a document's recovery copy, and write its note.

    Args:
        source: The file that the document was opened from.
        saved_as: Its session file, if it has one.

    Raises:
        OSError: The note cannot be written.
    """
    folder = recovery_folder()
    folder.mkdir(parents=True, exist_ok=True)
    copy = Copy(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.collage", source, saved_as)
    about = {"source": source, "saved_as": saved_as, "lock": _own_lock(str(folder))}
    write_atomically(copy.note, json.dumps(about))
    return copy


def discard(copy: Copy | None) -> None:
    """Remove a copy and its note."""
    if copy is None:
        return
    for path in (copy.session, copy.note, *copy.session.parent.glob(copy.session.name + "-*")):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def left_behind() -> list[Copy]:
    """Return the copies whose window is gone without having removed them."""
    folder = recovery_folder()
    lost = []
    for note in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            data = json.loads(note.read_text(encoding="utf-8"))
            copy = Copy(note.with_suffix(".collage"), data["source"], data.get("saved_as", ""))
            lock = folder / Path(data["lock"]).name
        except (ValueError, KeyError, TypeError, OSError):
            continue
        if _held(lock):
            continue
        if copy.session.exists():
            lost.append(copy)
        else:
            discard(copy)
    return lost


@cache
def _own_lock(folder: str) -> str:
    """Return the name of a file on which this process holds a lock until it ends, however it ends.

    Process ids would not tell windows apart: containers give every window the same one.
    """
    name = f"window-{uuid.uuid4().hex[:8]}.lock"
    hold_lock(Path(folder) / name)
    return name


def _held(lock: Path) -> bool:
    """Tells whether the window that made a lock lives.

    The locks of windows that do not are removed.
    """
    with contextlib.suppress(OSError):
        if is_locked(lock):
            return True
        lock.unlink(missing_ok=True)
    return False


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
        """Return a document's copy, if it has been written."""
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
                document.requests.logged.emit(
                    "warning", f"No recovery copy could be written: {error}"
                )
                return
            self.copies[document] = copy
        document.save_recovery_copy(str(copy.session))
