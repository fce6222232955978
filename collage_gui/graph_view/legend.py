"""Explains the colours below the graph; a click isolates one of them."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from collage_engine.drawing.box_styles import LegendEntry
from collage_engine.drawing.formatting import counted
from collage_gui.elided_label import plain_tip
from collage_gui.graph_view.painter import BRUSHES, PaintTheme
from collage_gui.theme import Colours

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


class _Row(QWidget):
    """One entry: its colour, its name, and how many nodes have it."""

    def __init__(self, entry: LegendEntry, theme: PaintTheme, legend: Legend) -> None:
        super().__init__(legend)
        self.entry, self._theme, self._legend = entry, theme, legend
        self._detail = entry.detail or str(entry.count)
        self.chosen = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(f"{entry.label}: {counted(entry.count, 'node')}")
        self.setToolTip(plain_tip(f"{entry.label}: {self._detail}. Click to see only these."))
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        wide = metrics.horizontalAdvance(f"{self.entry.label}   {self._detail}")
        return QSize(36 + wide + 14, max(ROW, metrics.height() + 6))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        c = self._theme.colours
        if self.chosen or self.hasFocus():
            painter.setPen(QPen(QColor(c.focus), 1.2))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(QRectF(self.rect()).adjusted(1, 1, -1, -1), 4, 4)
        chip = QRectF(5, (self.height() - 16) / 2, 26, 16)
        painter.setPen(QPen(QColor(c.line), 1))
        painter.setBrush(QColor(self.entry.colour))
        painter.drawRoundedRect(chip, 3, 3)
        painter.setPen(Qt.PenStyle.NoPen)
        if self.entry.pattern != "solid":
            ink = QColor(self.entry.text)
            ink.setAlphaF(0.3)
            painter.setBrush(QBrush(ink, BRUSHES[self.entry.pattern]))
            painter.drawRoundedRect(chip, 3, 3)
            painter.setBrush(QColor(self.entry.colour))
            painter.drawRect(chip.adjusted(5, 2, -5, -2))
        painter.setPen(QColor(self.entry.text))
        painter.setFont(self._theme.sized(10, bold=True))
        painter.drawText(chip, Qt.AlignmentFlag.AlignCenter, self.entry.tag)
        painter.setFont(self.font())
        painter.setPen(QColor(c.text))
        rest = QRectF(37, 0, self.width() - 43, self.height())
        painter.drawText(rest, Qt.AlignmentFlag.AlignVCenter, self.entry.label)
        painter.setPen(QColor(c.quiet))
        painter.drawText(
            rest, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, self._detail
        )

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._legend.choose(self.entry)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._legend.choose(self.entry)
        else:
            super().keyPressEvent(event)


class _MarkRow(QWidget):
    """A row that explains a mark in the picture; it cannot be chosen."""

    def __init__(self, mark: str, theme: PaintTheme, legend: Legend) -> None:
        super().__init__(legend)
        self._mark, self._theme = mark, theme
        self.setObjectName(f"legend-{mark}")
        self.setAccessibleName(MARKS[mark])
        self.setToolTip(ABOUT_MARKS[mark])

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        return QSize(
            36 + metrics.horizontalAdvance(MARKS[self._mark]), max(ROW, metrics.height() + 6)
        )

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        c = self._theme.colours
        sample = QRectF(5, (self.height() - 14) / 2, 22, 14)
        _MARK_PAINTERS[self._mark](painter, sample, c)
        painter.setPen(QColor(c.quiet))
        painter.setFont(self.font())
        rest = QRectF(33, 0, self.width() - 33, self.height())
        painter.drawText(rest, Qt.AlignmentFlag.AlignVCenter, MARKS[self._mark])


def _paint_expected(painter: QPainter, sample: QRectF, c: Colours) -> None:
    painter.setPen(QPen(QColor(c.quiet), 1, Qt.PenStyle.DashLine))
    painter.drawRoundedRect(sample, 3, 3)


def _paint_pin(painter: QPainter, sample: QRectF, c: Colours) -> None:
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(c.text))
    painter.drawEllipse(sample.center(), 7, 7)
    painter.setBrush(QColor(c.canvas))
    painter.drawEllipse(sample.center(), 2.5, 2.5)


def _paint_measured_now(painter: QPainter, sample: QRectF, c: Colours) -> None:
    painter.setPen(QPen(QColor(c.text), 2, Qt.PenStyle.DashDotLine))
    painter.setBrush(Qt.BrushStyle.NoBrush)
    painter.drawRoundedRect(sample, 3, 3)


def _paint_hand_over(painter: QPainter, sample: QRectF, c: Colours) -> None:
    middle, right = sample.center().y(), sample.right()
    painter.setPen(QPen(QColor(c.text), 2))
    painter.drawLine(QPointF(sample.left(), middle), QPointF(right - 6, middle))
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(c.text))
    tip = [QPointF(right, middle), QPointF(right - 9, middle - 4), QPointF(right - 9, middle + 4)]
    painter.drawPolygon(QPolygonF(tip))


_MARK_PAINTERS: dict[str, Callable[[QPainter, QRectF, Colours], None]] = {
    "hand-over": _paint_hand_over,
    "expected": _paint_expected,
    "pin": _paint_pin,
    "measured now": _paint_measured_now,
}


class Legend(QWidget):
    """The legend below the graph: all entries side by side, and what the marks mean."""

    isolated = Signal(object)
    """LegendEntry, or None when all are shown again."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("legend")
        self._rows: list[_Row] = []
        self._marks: list[_MarkRow] = []
        self._chosen: str | None = None
        self._theme: PaintTheme | None = None
        self.hide()

    def show_entries(self, entries: list[LegendEntry], theme: PaintTheme) -> None:
        """Show the entries of a picture; the isolated one stays so if it is among them."""
        if theme is not self._theme:
            for mark in self._marks:
                mark._theme = theme
        self._theme = theme
        for row in self._rows:
            row.hide()
            row.deleteLater()
        self._rows = [_Row(entry, theme, self) for entry in entries[:MOST]]
        if self._chosen not in [entry.key for entry in entries]:
            self._chosen = None
        for row in self._rows:
            row.chosen = row.entry.key == self._chosen
            row.show()
        self._arrange()
        self.setVisible(bool(entries))

    def show_marks(self, marks: list[str]) -> None:
        """Explains the marks that occur in the picture.

        Args:
            marks: Keys of ``words.MARKS``.
        """
        if self._theme is None or marks == [row.objectName()[7:] for row in self._marks]:
            return
        for row in self._marks:
            row.hide()
            row.deleteLater()
        self._marks = [_MarkRow(mark, self._theme, self) for mark in marks]
        for row in self._marks:
            row.setFont(self.font())
            row.show()
        self._arrange()

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
            left, tall = left + size.width() + 8, size.height()
        self.setFixedHeight(top + tall + 3)

    def choose(self, entry: LegendEntry) -> None:
        """Isolates an entry in the graph, or shows all again when it is isolated already."""
        self._chosen = None if self._chosen == entry.key else entry.key
        for row in self._rows:
            row.chosen = row.entry.key == self._chosen
            row.update()
        self.isolated.emit(entry if self._chosen is not None else None)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the background."""
        if self._theme is None:
            return
        painter = QPainter(self)
        painter.fillRect(self.rect(), QColor(self._theme.colours.panel))
        painter.setPen(QPen(QColor(self._theme.colours.line), 1))
        painter.drawLine(0, 0, self.width(), 0)
