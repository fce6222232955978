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

from collage_engine.drawing.formatting import elide, time_text
from collage_gui.graph_view.painter import BRUSHES
from collage_gui.theme import Theme

NEUTRAL = "#8a9199"
"""Colour of bars that stand for no toolchain."""
LONGEST = 4.0
"""An axis ends at this many times the middle bar; longer bars are cut. Chosen."""
TIP_PX = 12
"""Length of the pointed end of a cut bar beyond the axis, in pixels; chosen."""
BAR_PX = 23
"""Height that a bar takes, in pixels; chosen, a line of text and a gap."""
GAP_PX = 8
"""Pixels between labels, bars and texts, and around the chart; chosen."""
LABEL_LETTERS = 26
"""Letters of a label at most; half of the chart at most is theirs. Chosen."""


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

    def text(self, end: float) -> str:
        """Return what is written at its end: an arrow stands before each number past the axis."""
        value = self.value or 0.0
        if value > end:
            return f"→ {time_text(value)}"
        text = time_text(value)
        if self.high is not None and self.high > end:
            text += f" → {time_text(self.high)}"
        if self.second is not None and self.second > end:
            text += f", expected → {time_text(self.second)}"
        return text


def axis_end(bars: Sequence[Bar]) -> float:
    """Returns where the axis ends, so that one huge bar or whisker never squeezes the others."""
    known = [bar for bar in bars if bar.is_known]
    values = [bar.value or 0.0 for bar in known]
    longest = max(x for bar in known for x in (bar.value, bar.high, bar.second) if x is not None)
    middle = statistics.median_low(values)
    return min(longest, LONGEST * middle) if middle > 0 else longest


class BarChart(QWidget):
    """Shows horizontal bars from the top; without bars it says why it is empty."""

    chosen = Signal(str)

    def __init__(self, theme: Theme, name: str, title: str, empty: str) -> None:
        super().__init__()
        self.theme = theme
        self.bars: list[Bar] = []
        self._empty = empty
        self.setObjectName(name)
        self.setAccessibleName(title)
        self.show_bars([])
        theme.changed.connect(lambda: self.show_bars(self.bars))

    def show_bars(self, bars: Sequence[Bar]) -> None:
        """Show bars from the top; those without a value show their note instead."""
        self.bars = list(bars)
        spoken = "; ".join(f"{bar.label} {time_text(bar.value)}" for bar in self.bars)
        self.setAccessibleDescription(spoken)
        self.setFixedHeight(self.theme.scaled(GAP_PX + BAR_PX * max(2, len(self.bars))))
        self.update()

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Chooses the bar under the pointer."""
        place = int(event.position().y() - GAP_PX / 2) // self.theme.scaled(BAR_PX)
        if 0 <= place < len(self.bars) and self.bars[place].key:
            self.chosen.emit(self.bars[place].key)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the bars."""
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setFont(self.theme.font(12))
        known = [bar for bar in self.bars if bar.is_known]
        if not known:
            painter.setPen(QColor(self.theme.colours.quiet))
            wrapped = Qt.AlignmentFlag.AlignCenter | Qt.TextFlag.TextWordWrap
            painter.drawText(self.rect().adjusted(16, 0, -16, 0), int(wrapped), self._empty)
            return
        metrics = QFontMetricsF(painter.font())
        labels = [elide(bar.label, LABEL_LETTERS) for bar in self.bars]
        left = min(max(map(metrics.horizontalAdvance, labels)), self.width() / 2) + 2 * GAP_PX
        end = axis_end(known)
        # Where there is no room for all notes the numbers decide the scale, and each note takes
        # what room its bar leaves.
        texts = max(metrics.horizontalAdvance(bar.text(end)) for bar in known)
        room = max(80.0, self.width() - left - GAP_PX)
        px = max(room / 4, room - texts - TIP_PX - 2 * GAP_PX) / end
        row = self.theme.scaled(BAR_PX)
        for place, bar in enumerate(self.bars):
            area = QRectF(left, GAP_PX / 2 + place * row, room, row)
            names = QRectF(GAP_PX, area.top(), left - 2 * GAP_PX, row)
            label = metrics.elidedText(labels[place], Qt.TextElideMode.ElideMiddle, names.width())
            painter.setPen(QColor(self.theme.colours.text))
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(names, int(right), label)
            reach = self._bar(painter, bar, area, px, end) if bar.is_known else 0.0
            text = bar.text(end) if bar.is_known else bar.note or "not known"
            if bar.is_known and bar.note:
                text += f"  {bar.note}"
            after = area.adjusted(reach + (GAP_PX if reach else 0), 0, 0, 0)
            text = metrics.elidedText(text, Qt.TextElideMode.ElideRight, after.width())
            strong = self.theme.colours.text if bar.strong else self.theme.colours.quiet
            painter.setPen(QColor(strong))
            painter.drawText(after, Qt.AlignmentFlag.AlignVCenter, text)

    def _bar(self, painter: QPainter, bar: Bar, area: QRectF, px: float, end: float) -> float:
        """Paint a bar, and return how far it reaches, in pixels."""
        value = bar.value or 0.0
        middle, line = area.center().y(), QColor(self.theme.colours.text)
        body = QRectF(area.left(), 0, max(1.0, min(value, end) * px), 0.62 * area.height())
        body.moveTop(middle - body.height() / 2)
        fill = line if bar.strong else QColor(bar.colour)
        painter.setPen(Qt.PenStyle.NoPen)
        for brush in (QBrush(fill), QBrush(QColor(0, 0, 0, 70), BRUSHES[bar.pattern])):
            painter.setBrush(brush)
            painter.drawRect(body)
        reach = body.width()
        if value > end:
            tip = [body.topRight(), QPointF(body.right() + TIP_PX, middle), body.bottomRight()]
            painter.setBrush(fill)
            painter.drawPolygon(QPolygonF(tip))
            return reach + TIP_PX
        # On a bar of its own colour a line could not be seen: there it has the panel's.
        for inside in (False, True):
            painter.setPen(QPen(QColor(self.theme.colours.panel) if inside else line, 1.4))
            painter.save()
            if inside:
                painter.setClipRect(body)
            for each in self._lines(bar, body, px, end) if bar.strong or not inside else ():
                painter.drawLine(each)
            painter.restore()
        others = [x for x in (bar.high, bar.second) if x is not None]
        return max([reach, *(min(x, end) * px for x in others if x <= end or x is bar.high)])

    def _lines(self, bar: Bar, body: QRectF, px: float, end: float) -> list[QLineF]:
        """Return the whisker of a bar, and the tick at its second value."""
        left, middle = body.left(), body.center().y()
        lines = []
        if bar.low is not None and bar.high is not None:
            low, high = left + bar.low * px, left + min(bar.high, end) * px
            lines.append(QLineF(low, middle, high, middle))
            lines += [QLineF(x, middle - 4, x, middle + 4) for x in (low, high)]
        if bar.second is not None and bar.second <= end:
            x = left + bar.second * px
            lines.append(QLineF(x, body.top() - 2, x, body.bottom() + 2))
        return lines
