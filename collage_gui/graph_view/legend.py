"""Explains the colours below the graph; a click isolates one of them."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QIcon,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QToolButton, QWidget

from collage_engine.drawing.box_styles import LegendEntry
from collage_engine.drawing.formatting import counted
from collage_gui.graph_view.painter import CHIP, PaintTheme, chip, small_picture
from collage_gui.theme import Colours
from collage_gui.widgets import plain_tip

MARKS = {
    "hand-over": "hand-over",
    "expected": "expected, not confirmed",
    "pin": "pinned",
    "measured now": "being measured",
}
"""Marks of the picture that the legend explains, where they occur."""
ABOUT_MARKS = {
    "hand-over": "A value passes to another toolchain, format or device: its size, the conversion "
    "and its cost stand beside the arrow.",
    "expected": "Dashed boxes belong to a placement that no run has confirmed yet.",
    "pin": "A pin demands or forbids something here.",
    "measured now": "The run measures a candidate that consists of these operators.",
}

ROW = 22
"""Least height of an entry, in pixels; chosen."""
MARGIN = 10
"""Pixels left and right of the entries; chosen."""
MOST = 16
"""Entries that are shown at most; chosen, since there are ten toolchains."""


def _paint_mark(mark: str, c: Colours, painter: QPainter, area: QRectF) -> None:
    """Paint a sample of a mark."""
    text = QColor(c.text)
    if mark == "hand-over":
        middle, right = area.center().y(), area.right()
        painter.setPen(QPen(text, 2))
        painter.drawLine(QPointF(area.left(), middle), QPointF(right - 6, middle))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(text)
        tip = ((0, 0), (-9, -4), (-9, 4))
        painter.drawPolygon(QPolygonF([QPointF(right + x, middle + y) for x, y in tip]))
    elif mark == "pin":
        painter.setPen(Qt.PenStyle.NoPen)
        for colour, radius in ((text, 7), (QColor(c.canvas), 2.5)):
            painter.setBrush(colour)
            painter.drawEllipse(area.center(), radius, radius)
    else:
        expected = mark == "expected"
        line = Qt.PenStyle.DashLine if expected else Qt.PenStyle.DashDotLine
        painter.setPen(QPen(QColor(c.quiet) if expected else text, 1 if expected else 2, line))
        painter.drawRoundedRect(area.adjusted(1, 1, -1, -1), 3, 3)


class Legend(QWidget):
    """The legend below the graph: all entries side by side, and what the marks mean."""

    isolated = Signal(object)
    """LegendEntry, or None when all are shown again."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("legend")
        self._rows: list[QToolButton] = []
        self._marks: list[QToolButton] = []
        self._named: list[str] = []
        """The marks that are explained."""
        self._chosen: str | None = None
        self._theme: PaintTheme | None = None
        self.hide()

    def show_entries(self, entries: list[LegendEntry], theme: PaintTheme) -> None:
        """Show the entries of a picture; the isolated one stays so if it is among them."""
        if theme is not self._theme:
            self._theme = theme
            self._show_marks()
        _remove(self._rows)
        if self._chosen not in [entry.key for entry in entries]:
            self._chosen = None
        self._rows = []
        for entry in entries[:MOST]:
            detail = entry.detail or str(entry.count)
            row = self._row(f"{entry.label}   {detail}", chip(entry, theme.colours.line))
            row.setAccessibleName(f"{entry.label}: {counted(entry.count, 'node')}")
            row.setToolTip(plain_tip(f"{entry.label}: {detail}. Click to see only these."))
            row.setCursor(Qt.CursorShape.PointingHandCursor)
            row.setCheckable(True)
            row.setChecked(entry.key == self._chosen)
            row.clicked.connect(partial(lambda entry, _: self.choose(entry), entry))
            row.setProperty("key", entry.key)
            self._rows.append(row)
        self._arrange()
        self.setVisible(bool(entries))

    def show_marks(self, marks: list[str]) -> None:
        """Explain the marks that occur in the picture, by their keys in ``MARKS``."""
        if self._theme is not None and marks != self._named:
            self._named = marks
            self._show_marks()
            self._arrange()

    def _show_marks(self) -> None:
        assert self._theme is not None
        _remove(self._marks)
        self._marks = []
        for mark in self._named:
            row = self._row(
                MARKS[mark], small_picture(partial(_paint_mark, mark, self._theme.colours))
            )
            row.setAccessibleName(MARKS[mark])
            row.setToolTip(ABOUT_MARKS[mark])
            row.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            self._marks.append(row)

    def _row(self, text: str, icon: QIcon) -> QToolButton:
        row = QToolButton(self)
        row.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextBesideIcon)
        row.setIcon(icon)
        row.setIconSize(CHIP)
        row.setText(text.replace("&", "&&"))
        row.show()
        return row

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arranges the entries anew."""
        super().resizeEvent(event)
        self._arrange()

    def sizeHint(self) -> QSize:
        """Return a size as high as the lines of entries."""
        return QSize(0, self.minimumHeight())

    def _arrange(self) -> None:
        """Put entries side by side, in as many lines as they need.

        A legend that leaves one out, or squeezes it, explains nothing.
        """
        left, top, tall = MARGIN, 3, ROW
        for row in (*self._rows, *self._marks):
            size = row.sizeHint()
            if left > MARGIN and left + size.width() > self.width() - MARGIN:
                left, top = MARGIN, top + tall
            row.setGeometry(left, top, min(size.width(), self.width() - 2 * MARGIN), size.height())
            left, tall = left + size.width(), size.height()
        self.setFixedHeight(top + tall + 3)

    def choose(self, entry: LegendEntry) -> None:
        """Isolates an entry in the graph, or shows all again when it is isolated already."""
        self._chosen = None if self._chosen == entry.key else entry.key
        for row in self._rows:
            row.setChecked(row.property("key") == self._chosen)
        self.isolated.emit(entry if self._chosen is not None else None)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the background."""
        if self._theme is None:
            return
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(self._theme.colours.panel))
        painter.setPen(QPen(QColor(self._theme.colours.line), 1))
        painter.drawLine(0, 0, self.width(), 0)


def _remove(rows: list[QToolButton]) -> None:
    for row in rows:
        row.hide()
        row.deleteLater()
