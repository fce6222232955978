"""Shows what the engine and the window report, newest last."""

from __future__ import annotations

from PySide6.QtCore import QSize, QTime
from PySide6.QtGui import QColor, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit

from collage_gui.design_units import KEPT
from collage_gui.document.log import DocumentLog
from collage_gui.theme import Theme
from collage_gui.widgets import letters_px


class LogPanel(QPlainTextEdit):
    """Shows a document's log, and follows its end."""

    def __init__(self, log: DocumentLog, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self.setObjectName("logPanel")
        self.setAccessibleName("Log")
        self.setReadOnly(True)
        self.setMaximumBlockCount(KEPT)
        self.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.setPlaceholderText("What the engine reports appears here.")
        self.setFont(theme.mono())
        theme.changed.connect(lambda: self.setFont(theme.mono()))
        log.added.connect(self.add)

    def sizeHint(self) -> QSize:
        """Return the size of a terminal, of 80 × 24 letters."""
        return QSize(letters_px(self, 80), 24 * self.fontMetrics().lineSpacing())

    def add(self, level: str, text: str) -> None:
        """Append a line in the colour of its level."""
        colours = self.theme.colours
        form = QTextCharFormat()
        tint = {"warning": colours.bad, "error": colours.bad, "engine": colours.quiet}
        form.setForeground(QColor(tint.get(level, colours.text)))
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        mark = {"warning": "Warning: ", "error": "Error: "}.get(level, "")
        self.setCurrentCharFormat(form)
        self.appendPlainText(f"{QTime.currentTime().toString('HH:mm:ss')}  {mark}{text}")
        if at_end:
            bar.setValue(bar.maximum())
