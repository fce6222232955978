"""What the engine said, newest last."""

from __future__ import annotations

from PySide6.QtGui import QColor, QTextCharFormat
from PySide6.QtWidgets import QPlainTextEdit

from collage_gui.session import Document
from collage_gui.theme import Theme


class LogPanel(QPlainTextEdit):
    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self.setObjectName("logPanel")
        self.setAccessibleName("Log")
        self.setReadOnly(True)
        self.setMaximumBlockCount(2000)
        self.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.setPlaceholderText("What the engine reports appears here.")
        self.setFont(theme.mono())
        theme.changed.connect(lambda: self.setFont(theme.mono()))
        for level, text in document.log:
            self.add(level, text)
        document.log_added.connect(self.add)

    def add(self, level: str, text: str) -> None:
        colours = self.theme.colours
        form = QTextCharFormat()
        tint = {"warning": colours.bad, "error": colours.bad, "engine": colours.quiet}
        form.setForeground(QColor(tint.get(level, colours.text)))
        bar = self.verticalScrollBar()
        at_end = bar.value() >= bar.maximum() - 4
        mark = {"warning": "warning: ", "error": "error: "}.get(level, "")
        self.setCurrentCharFormat(form)
        self.appendPlainText(mark + text)
        if at_end:
            bar.setValue(bar.maximum())
