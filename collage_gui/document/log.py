"""Hands on the lines that the engine and the window report about one document."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal


class DocumentLog(QObject):
    """The log of one document, of which its panel keeps the newest lines."""

    added = Signal(str, str)
    """Level and text of a new line."""

    def add(self, level: str, text: str) -> None:
        """Append a line.

        Args:
            level: ``info``, ``warning``, ``error``, or ``engine`` for its standard error.
            text: One line.
        """
        self.added.emit(level, text)
