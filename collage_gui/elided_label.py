"""Shows a text on one line that never asks for more width than there is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

LEAST_WIDTH = 60
"""Least width of the label, in pixels; chosen, a few letters and the ellipsis."""


class ElidedLabel(QLabel):
    """Shows plain text and cuts what has no room; its tool tip has the whole text.

    A window that holds only such labels keeps its size whatever they say.
    """

    def __init__(self) -> None:
        super().__init__()
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
            self.fitting(), Qt.TextElideMode.ElideRight, area.width()
        )
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(area, int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), text)

    def fitting(self) -> str:
        """Returns the text that is painted, before it is cut."""
        return self._one_line()

    def _one_line(self) -> str:
        return " ".join(self.text().split("\n"))


class PartsLabel(ElidedLabel):
    """Shows parts of a text beside each other and leaves out the least important ones.

    Parts are left out, and not only cut, where there is no room for them. The text and the tool
    tip always have all of them.
    """

    def __init__(self, least: str = "", separator: str = " · ") -> None:
        """Make an empty label.

        Args:
            least: A text of the width that the label always has; it does not depend on what is
                shown, so that the window keeps its size.
            separator: What stands between two parts.
        """
        super().__init__()
        self._least, self._separator = least, separator
        self._parts: tuple[tuple[str, int], ...] = ()

    def set_parts(self, parts: Sequence[tuple[str, int]]) -> None:
        """Show these texts.

        Args:
            parts: Each text with its rank, in the order in which they stand; those of the highest
                ranks are left out first.
        """
        self._parts = tuple(part for part in parts if part[0])
        self.setText(self._separator.join(text for text, _ in self._parts))
        self.setToolTip(plain_tip(self.text()))
        self.update()

    def minimumSizeHint(self) -> QSize:
        """Returns the size of one line of the text that there is always room for."""
        least = self.fontMetrics().horizontalAdvance(self._least) + 4
        return super().minimumSizeHint().expandedTo(QSize(least, 0))

    def fitting(self) -> str:
        """Returns the parts that fit; the most important one also where it does not."""
        width = self.contentsRect().width()
        chosen: set[str] = set()
        fitting = ""
        for wanted, _ in sorted(self._parts, key=lambda part: part[1]):
            text = self._separator.join(t for t, _ in self._parts if t in chosen or t == wanted)
            if not chosen or self.fontMetrics().horizontalAdvance(text) <= width:
                chosen.add(wanted)
                fitting = text
        return fitting


def plain(label: QLabel) -> QLabel:
    """Make a label show its text as it is: names from files may look like markup."""
    label.setTextFormat(Qt.TextFormat.PlainText)
    return label


def all_plain(parent: QWidget) -> None:
    """Make every label below a widget show its text as it is."""
    for label in parent.findChildren(QLabel):
        label.setTextFormat(Qt.TextFormat.PlainText)


def plain_tip(text: str) -> str:
    """Returns a tool tip that shows a text as it is, also where Qt would take it for markup."""
    return f"<span style='white-space:pre-wrap'>{escape(text)}</span>" if "<" in text else text
