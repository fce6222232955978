"""Shows a text on one line that never asks for more width than there is."""

from __future__ import annotations

from html import escape

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QSizePolicy

LEAST_WIDTH = 60
"""Least width of the label, in pixels; chosen, a few letters and the ellipsis."""


class ElidedLabel(QLabel):
    """Shows plain text and cuts what has no room; its tool tip has the whole text.

    A window that holds only such labels keeps its size whatever they say.
    """

    def __init__(self, look: str = "") -> None:
        """Makes the label, in a look of the style sheet such as ``quiet``."""
        super().__init__()
        self.setProperty(look, True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    @property
    def is_cut(self) -> bool:
        """Tells whether the whole text does not fit into one line of the label."""
        return self.fontMetrics().horizontalAdvance(self._one_line()) > self.contentsRect().width()

    def minimumSizeHint(self) -> QSize:
        """Return the size of one line of a few letters."""
        return QSize(LEAST_WIDTH, super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        """Return the size of one line, as wide as the text."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance(self._one_line()) + 4, metrics.height() + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the text with an ellipsis where it is cut; wrapped text is painted as usual."""
        if self.wordWrap():
            super().paintEvent(event)
            return
        painter = QPainter(self)
        area = self.contentsRect()
        text = self.fontMetrics().elidedText(
            self._one_line(), Qt.TextElideMode.ElideRight, area.width()
        )
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(area, int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), text)

    def _one_line(self) -> str:
        return " ".join(self.text().split("\n"))


def plain_tip(text: str) -> str:
    """Returns a tool tip that shows a text as it is, also where Qt would take it for markup."""
    return f"<span style='white-space:pre-wrap'>{escape(text)}</span>" if "<" in text else text
