"""Keeps the lines that the engine and the window report about one document."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal

from collage_gui.design_units import KEPT


class DocumentLog(QObject):
    """The log of one document, which keeps the newest lines."""

    added = Signal(str, str)
    """Level and text of a new line."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.lines: list[tuple[str, str]] = []
        """(level, text), newest last."""

    def add(self, level: str, text: str) -> None:
        """Append a line.

        Args:
            level: ``info``, ``warning``, ``error``, or ``engine`` for its standard error.
            text: One line.
        """
        self.lines.append((level, text))
        del self.lines[:-KEPT]
        self.added.emit(level, text)
