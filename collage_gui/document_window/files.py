"""Asks for files of a document, and writes them with a message for the user."""

from __future__ import annotations

import os
from collections.abc import Callable

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QFileDialog, QWidget

from collage_engine.support.files import resource
from collage_gui.document.document import Document
from collage_gui.messages import Messages

VIEWABLE = (".html", ".png", ".svg")
"""Ends of the names of files that a browser or a viewer shows."""


class DocumentFiles:
    """File dialogs that begin beside the document's own file."""

    def __init__(self, document: Document, messages: Messages, parent: QWidget) -> None:
        self._document, self._messages, self._parent = document, messages, parent

    @property
    def stem(self) -> str:
        """Returns the name of the document's file without its suffix."""
        return os.path.splitext(os.path.basename(self._document.path or "graph"))[0]

    @property
    def folder(self) -> str:
        """Returns where files are written at first: beside the session, else beside the model.

        The sample model lies in the installed package, where nothing of the user's belongs.
        """
        folder = os.path.dirname(self._document.session_path or self._document.path)
        packaged = os.path.dirname(str(resource("models")))
        return os.path.expanduser("~") if folder.startswith(packaged) else folder

    def ask_save(self, title: str, name: str, kind: str) -> str:
        """Ask where to save.

        Args:
            title: Title of the dialog.
            name: The proposed file name.
            kind: The file filter, e.g. ``PNG (*.png)``.

        Returns:
            A path, or an empty string when the user cancels.
        """
        path, _ = QFileDialog.getSaveFileName(
            self._parent, title, os.path.join(self.folder, name), kind
        )
        return path

    def ask_folder(self, title: str, what: str) -> str:
        """Ask for the folder to make.

        Args:
            title: Title of the dialog.
            what: What the folder will hold, as the end of the name that is proposed.

        Returns:
            A path, or an empty string when the user cancels.
        """
        name = os.path.join(self.folder, f"{self.stem}-{what}")
        return QFileDialog.getSaveFileName(self._parent, title, new_name(name), "Folder (*)")[0]

    def write(self, write: Callable[[], object], path: str) -> None:
        """Call ``write``, and say in the banner what it wrote or why it could not."""
        try:
            write()
        except (OSError, MemoryError) as error:
            name = os.path.basename(path)
            self._messages.show_message(f"{name} could not be written: {error!s}", "error")
            return
        shows = os.path.isfile(path) and path.endswith(VIEWABLE)
        shown = path if shows or os.path.isdir(path) else os.path.dirname(path)
        label = "Open" if shows else "Open folder"
        self._messages.show_message(
            f"Written: {path}", "info", label, lambda: open_with_the_system(shown)
        )


def open_with_the_system(path: str) -> None:
    """Show a file, or a folder, in the program that the system has for it."""
    QDesktopServices.openUrl(QUrl.fromLocalFile(path))


def new_name(path: str) -> str:
    """Return a path that does not exist yet: the given one, or one with a number at its end.

    The dialog would open a folder that exists, where a new one is to be made.
    """
    number, free = 1, path
    while os.path.exists(free):
        number += 1
        free = f"{path}-{number}"
    return free
