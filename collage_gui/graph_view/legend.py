"""Explains the colours below the graph; a click isolates one of them."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from collage_engine.drawing.box_styles import LegendEntry
from collage_engine.drawing.formatting import counted
from collage_gui.graph_view.painter import BRUSHES, PaintTheme

ROW = 22
"""Least height of an entry, in pixels; chosen."""
MARGIN = 10
"""Pixels left and right of the entries; chosen."""
MOST = 16
"""Entries that are shown at most; chosen, since there are ten toolchains."""


class _Row(QWidget):
    """One entry: its colour, its name, and how many operators have it."""

    def __init__(self, entry: LegendEntry, theme: PaintTheme, legend: Legend) -> None:
        super().__init__(legend)
        self.entry, self._theme, self._legend = entry, theme, legend
        self.chosen = False
        self.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setAccessibleName(f"{entry.label}: {counted(entry.count, 'operator')}")
        self.setToolTip(
            f"{entry.label}: {counted(entry.count, 'operator')}. Click to see only these."
        )
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        metrics = self.fontMetrics()
        wide = metrics.horizontalAdvance(f"{self.entry.label}   {self.entry.count}")
        return QSize(36 + wide + 14, max(ROW, metrics.height() + 6))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        c = self._theme.colours
        if self.chosen or self.hasFocus():
            painter.setPen(QPen(QColor(c.accent), 1.2))
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
            rest, Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignRight, str(self.entry.count)
        )

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self._legend.choose(self.entry)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space):
            self._legend.choose(self.entry)
        else:
            super().keyPressEvent(event)


class Legend(QWidget):
    """All entries, side by side below the graph."""

    isolated = Signal(object)
    """LegendEntry, or None when all are shown again."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("legend")
        self._rows: list[_Row] = []
        self._chosen: str | None = None
        self._theme: PaintTheme | None = None
        self.hide()

    def show_entries(self, entries: list[LegendEntry], theme: PaintTheme) -> None:
        """Show the entries of a picture; the isolated one stays so if it is among them."""
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

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arranges the entries anew."""
        super().resizeEvent(event)
        self._arrange()

    def sizeHint(self) -> QSize:
        """As high as the lines of entries."""
        return QSize(0, self.minimumHeight())

    def _arrange(self) -> None:
        """Put entries side by side, in as many lines as they need.

        A legend that leaves one out, or squeezes it, explains nothing.
        """
        left, top, tall = MARGIN, 3, ROW
        for row in self._rows:
            size = row.sizeHint()
            if left > MARGIN and left + size.width() > self.width() - MARGIN:
                left, top = MARGIN, top + tall
            row.setGeometry(left, top, min(size.width(), self.width() - 2 * MARGIN), size.height())
            left, tall = left + size.width() + 8, size.height()
        self.setFixedHeight(top + tall + 3)

    def choose(self, entry: LegendEntry) -> None:
        """Isolate an entry in the graph, or show all again when it is isolated already."""
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
