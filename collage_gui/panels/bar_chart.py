"""Draws bar charts with error bars."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QLineF, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import (
    QBrush,
    QColor,
    QFontMetricsF,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
)
from PySide6.QtWidgets import QWidget

from collage_engine.drawing.formatting import time_text
from collage_gui.graph_view.painter import BRUSHES
from collage_gui.theme import Theme

NEUTRAL = "#8a9199"
"""Colour of bars that stand for no toolchain."""
LONGEST = 4.0
"""An axis ends at this many times the middle bar; longer bars are cut. Chosen."""
BAR_PX = 23
"""Height that a bar takes, in pixels; chosen, a line of text and a gap."""
GAP_PX = 8
"""Pixels between labels, bars and texts, and around the chart; chosen."""
LABEL_SHARE = 0.4
"""Share of the chart's width that labels take at most; chosen."""

_LEFT = int(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
_RIGHT = int(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)


@dataclass(frozen=True)
class Bar:
    """One bar of a chart, its whisker, and the note at its end."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    colour: str = NEUTRAL
    pattern: str = "solid"
    note: str = ""
    key: str = ""
    strong: bool = False
    """Whether it is what is shown; it is drawn in the colour of text."""
    second: float | None = None
    """Another value shown as a tick across the bar, e.g. the estimate beside the measured."""

    @property
    def is_known(self) -> bool:
        """Tell whether it has a length."""
        return self.value is not None and math.isfinite(self.value)

    def reach(self, end: float) -> float:
        """Returns where its drawing ends on an axis that ends at ``end``."""
        ends = [self.value, self.high, self.second]
        return max(min(x, end) for x in ends if x is not None)

    def figures(self, end: float) -> str:
        """Return its value as text, with an arrow before each number that is past the axis."""
        text = time_text(self.value)
        if self.value is not None and self.value > end:
            return f"→ {text}"
        if self.high is not None and self.high > end:
            text += f" → {time_text(self.high)}"
        if self.second is not None and self.second > end:
            text += f", expected → {time_text(self.second)}"
        return text

    def text(self, end: float) -> str:
        """Return what is written at its end: figures and note, or why there is no figure."""
        if not self.is_known:
            return self.note or "not known"
        return f"{self.figures(end)}  {self.note}".rstrip()


def axis_end(bars: Sequence[Bar]) -> float:
    """Returns where the axis ends, so that one huge bar or whisker never squeezes the others."""
    known = [bar for bar in bars if bar.is_known]
    middle = statistics.median_low([bar.value or 0.0 for bar in known])
    longest = max(bar.reach(math.inf) for bar in known)
    return min(longest, LONGEST * middle) if middle > 0 else longest


class BarChart(QWidget):
    """Shows horizontal bars from the top; without bars it says why it is empty."""

    chosen = Signal(str)
    """A signal with the key of a bar that was clicked."""

    def __init__(self, theme: Theme, name: str, title: str, empty: str) -> None:
        super().__init__()
        self.theme = theme
        self.bars: list[Bar] = []
        self._empty = empty
        self.setObjectName(name)
        self.setAccessibleName(title)
        self._fit()
        theme.changed.connect(self._fit)

    def show_bars(self, bars: Sequence[Bar]) -> None:
        """Show bars from the top; those without a value show their note instead."""
        self.bars = list(bars)
        spoken = "; ".join(f"{bar.label} {time_text(bar.value)}" for bar in self.bars)
        self.setAccessibleDescription(spoken)
        self._fit()

    def _fit(self) -> None:
        self.setFixedHeight(GAP_PX + self._bar_px * max(2, len(self.bars)))
        self.update()

    @property
    def _bar_px(self) -> int:
        return self.theme.scaled(BAR_PX)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Chooses the bar under the pointer."""
        place = int((event.position().y() - GAP_PX / 2) // self._bar_px)
        if 0 <= place < len(self.bars) and self.bars[place].key:
            self.chosen.emit(self.bars[place].key)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints labels, bars and texts for the width that there is now."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(self.theme.font(12))
        known = [bar for bar in self.bars if bar.is_known]
        if not known:
            painter.setPen(QColor(self.theme.colours.quiet))
            wrapped = int(Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap)
            painter.drawText(self.rect(), wrapped, self._empty)
            return
        metrics, end = QFontMetricsF(painter.font()), axis_end(self.bars)
        middle, most = Qt.TextElideMode.ElideMiddle, LABEL_SHARE * self.width()
        labels = [metrics.elidedText(bar.label, middle, most) for bar in self.bars]
        left = math.ceil(max(map(metrics.horizontalAdvance, labels))) + 2 * GAP_PX
        room = max(80.0, self.width() - left - GAP_PX)
        # Where there is no room for all notes the numbers decide the scale, and each note takes
        # what room its bar leaves.
        texts = max(metrics.horizontalAdvance(bar.figures(end)) for bar in known)
        px = max(room / 4, room - texts - 3 * GAP_PX) / end
        for place, (bar, label) in enumerate(zip(self.bars, labels, strict=True)):
            line = QRectF(0, GAP_PX / 2 + place * self._bar_px, left - GAP_PX, self._bar_px)
            painter.setPen(QColor(self.theme.colours.text))
            painter.drawText(line, _RIGHT, label)
            begin = 0.0
            if bar.is_known:
                self._paint_bar(painter, bar, QPointF(left, line.center().y()), px, end)
                begin = bar.reach(end) * px + GAP_PX
            # A note is cut where it has no room, figures never are.
            left_px = room - begin
            least_px = metrics.horizontalAdvance(f"{bar.figures(end)}…")
            cut = metrics.elidedText(bar.text(end), Qt.TextElideMode.ElideRight, left_px)
            text = cut if left_px > least_px or not bar.is_known else bar.figures(end)
            colours = self.theme.colours
            painter.setPen(QColor(colours.text if bar.strong else colours.quiet))
            line.setLeft(left + begin)
            line.setRight(self.width())
            painter.drawText(line, _LEFT, text)

    def _paint_bar(
        self, painter: QPainter, bar: Bar, start: QPointF, px: float, end: float
    ) -> None:
        """Paint a bar with its whisker and its second value; one that is cut ends in a point.

        Args:
            painter: Paints.
            bar: The bar.
            start: Where it starts, in the middle of its height.
            px: Pixels of one µs.
            end: The µs at which the axis ends.
        """
        value, colours, half = bar.value or 0.0, self.theme.colours, 0.31 * self._bar_px
        fill = QColor(colours.text if bar.strong else bar.colour)
        area = QRectF(start.x(), start.y() - half, min(value, end) * px, 2 * half)
        painter.fillRect(area, fill)
        painter.fillRect(area, QBrush(QColor(0, 0, 0, 70), BRUSHES[bar.pattern]))

        def upright(us: float, height: float) -> QLineF:
            x = start.x() + us * px
            return QLineF(x, start.y() - height, x, start.y() + height)

        lines = []
        if value > end:
            tip = QPointF(area.right() + half, start.y())
            painter.setPen(Qt.PenStyle.NoPen)
            painter.setBrush(fill)
            painter.drawPolygon(QPolygonF([area.topRight(), tip, area.bottomRight()]))
        elif bar.low is not None and bar.high is not None:
            low, high = upright(bar.low, half / 2), upright(min(bar.high, end), half / 2)
            lines = [low, high, QLineF(low.center(), high.center())]
        if bar.second is not None and bar.second <= end:
            lines.append(upright(bar.second, 1.3 * half))
        # On a bar of the text's own colour a line can be seen by its edges.
        for colour, width in ((colours.panel, 3.0), (colours.text, 1.4)):
            painter.setPen(QPen(QColor(colour), width))
            painter.drawLines(lines)
