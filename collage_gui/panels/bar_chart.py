"""Draws bar charts with error bars.

The module pyqtgraph takes 0.7 s to import: it is loaded when the first chart has something to show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QBrush, QColor, QFontMetricsF, QResizeEvent
from PySide6.QtWidgets import QLabel, QSizePolicy, QStackedLayout, QWidget

from collage_engine.drawing.formatting import elide, time_text
from collage_gui.graph_view.painter import BRUSHES
from collage_gui.theme import Theme


@dataclass(frozen=True)
class Bar:
    """One bar of a chart, its whisker, and the note at its end."""

    label: str
    value: float | None
    low: float | None = None
    high: float | None = None
    colour: str = "#8a9199"
    pattern: str = "solid"
    note: str = ""
    key: str = ""
    strong: bool = False
    second: float | None = None
    """Another value shown as a tick across the bar, e.g. the estimate beside the measured."""


LONGEST = 4.0
"""An axis ends at this many times the middle bar; longer bars are cut. Chosen."""
LEAST_NOTE = 40.0
"""Pixels below which no part of a note is written beside a bar; chosen, about six letters."""
TIP = 0.035
"""Length of the pointed end of a cut bar beyond the axis, as a share of the axis; chosen."""
BAR_PX = 23
"""Height that a bar takes, in pixels; chosen, a line of text and a gap."""


def axis_end(bars: Sequence[Bar]) -> float:
    """Returns where the axis ends, so that one huge bar or whisker never squeezes the others."""
    values = [bar.value for bar in bars if bar.value is not None and math.isfinite(bar.value)]
    longest = max(max(_reach(bar)) for bar in bars if bar.value in values)
    middle = statistics.median_low(values)
    return min(longest, LONGEST * middle) if middle > 0 else longest


def _reach(bar: Bar) -> tuple[float, ...]:
    return tuple(x for x in (bar.value, bar.high, bar.second) if x is not None)


class BarChart(QWidget):
    """Shows horizontal bars from the top; without bars it says why it is empty."""

    chosen = Signal(str)

    def __init__(self, theme: Theme, name: str, title: str, empty: str) -> None:
        super().__init__()
        self.theme = theme
        self.bars: list[Bar] = []
        self._plot: Any = None
        self._empty = empty
        self.setObjectName(name)
        self.setAccessibleName(title)
        self._stack = QStackedLayout(self)
        self._note = QLabel(empty)
        self._note.setProperty("quiet", True)
        self._note.setWordWrap(True)
        self._note.setAlignment(Qt.AlignmentFlag.AlignCenter)
        self._note.setContentsMargins(16, 8, 16, 8)
        self._stack.addWidget(self._note)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setFixedHeight(64)
        theme.changed.connect(self._draw)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arranges labels and notes for the new width."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width() and self._plot is not None:
            self._draw()

    def show_bars(self, bars: Sequence[Bar], limit: int = 12) -> None:
        """Show bars from the top.

        Args:
            bars: The bars; those without a value show their note instead.
            limit: How many are shown at most.
        """
        shown = list(bars)[:limit]
        if self.bars and shown == self.bars:
            return  # drawing takes a good part of the time of showing a run
        self.bars = shown
        spoken = "; ".join(f"{bar.label} {time_text(bar.value)}" for bar in self.bars)
        self.setAccessibleDescription(spoken)
        self._draw()

    def _draw(self) -> None:
        known = [b for b in self.bars if b.value is not None and math.isfinite(b.value)]
        if not known:
            self._note.setText(self._empty)
            self._stack.setCurrentWidget(self._note)
            self.setFixedHeight(self.theme.scaled(64))
            return
        if self._plot is None:
            self._plot = self._make_plot()
            self._stack.addWidget(self._plot)
        drawing = _BarDrawing(self._plot, self.theme, known)
        drawing.draw(self.bars, self.width())
        self.setFixedHeight(self.theme.scaled(10 + BAR_PX * len(self.bars)))
        self._stack.setCurrentWidget(self._plot)

    def _make_plot(self) -> Any:
        import pyqtgraph as pg

        plot = pg.PlotWidget()
        plot.setMouseEnabled(False, False)
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plot.scene().sigMouseClicked.connect(self._clicked)
        return plot

    def _clicked(self, event: Any) -> None:
        where = self._plot.getPlotItem().vb.mapSceneToView(event.scenePos())
        place = round(-where.y())
        if 0 <= place < len(self.bars) and self.bars[place].key:
            self.chosen.emit(self.bars[place].key)


class _BarDrawing:
    """Draws bars into a plot: one method for each thing that a bar may consist of."""

    def __init__(self, plot: Any, theme: Theme, known: Sequence[Bar]) -> None:
        import pyqtgraph as pg

        self._pg, self._plot = pg, plot
        self._colours, self._font = theme.colours, theme.font(12)
        self._metrics = QFontMetricsF(self._font)
        self._known = known
        self._end = axis_end(known)
        cut = any(bar.value is not None and bar.value > self._end for bar in known)
        self._top = self._end * (1 + TIP) if cut else self._end
        """Where the longest bar ends, with its point."""

    def draw(self, bars: Sequence[Bar], width: int) -> None:
        """Draw all bars, from the top, into ``width`` pixels."""
        labels = [elide(bar.label, 26 if width > 460 else 18) for bar in bars]
        room = width - max(self._metrics.horizontalAdvance(label) for label in labels) - 40
        # Where there is no room for all notes the numbers decide the scale, and each note takes
        # what room its bar leaves.
        terse = self._widest_text(terse=False) > 0.7 * room
        self._plot.clear()
        self._plot.setBackground(QColor(self._colours.panel))
        self._label_bars(labels)
        # Room for the texts at the ends of the bars, whatever the width of the panel.
        share = 1 - (self._widest_text(terse) + 14) / max(room, 80.0)
        end = self._top / max(0.25, share)
        self._px = max(room, 80.0) / end
        for place, bar in enumerate(bars):
            if bar.value is None or not math.isfinite(bar.value):
                self._unknown(bar, -place, room)
            else:
                self._bar(bar, bar.value, -place, end)
        self._plot.setXRange(0, end, padding=0)
        self._plot.setYRange(-len(bars) + 0.45, 0.55, padding=0)

    def _widest_text(self, terse: bool) -> float:
        texts = (_text_at_end(bar, self._end, terse) for bar in self._known)
        return max(self._metrics.horizontalAdvance(text) for text in texts)

    def _label_bars(self, labels: Sequence[str]) -> None:
        item = self._plot.getPlotItem()
        item.setContentsMargins(4, 2, 8, 2)
        item.showAxis("bottom", False)
        axis = item.getAxis("left")
        axis.setTickFont(self._font)
        axis.setPen(QColor(self._colours.line))
        axis.setTextPen(QColor(self._colours.text))
        axis.setStyle(tickLength=0, tickTextOffset=6, autoExpandTextSpace=False)
        # An axis that learns its width while it is painted is first painted without labels.
        widest = max(self._metrics.horizontalAdvance(label) for label in labels)
        axis.setWidth(math.ceil(widest) + 12)
        axis.setTicks([[(-place, label) for place, label in enumerate(labels)]])

    def _unknown(self, bar: Bar, y: int, room: float) -> None:
        """Writes why a bar has no value, in so many pixels."""
        elided = Qt.TextElideMode.ElideRight
        text = self._metrics.elidedText(bar.note or "not known", elided, max(room, 80.0))
        self._text(text, self._colours.quiet, self._top * 0.01, y)

    def _bar(self, bar: Bar, value: float, y: int, end: float) -> None:
        length = min(value, self._end)
        edge = QColor(self._colours.text if bar.strong else bar.colour)
        self._rectangle(length, y, QColor(bar.colour), edge)
        if bar.pattern != "solid":
            ink = QColor("#000000")
            ink.setAlphaF(0.28)
            self._rectangle(length, y, QBrush(ink, BRUSHES[bar.pattern]), None)
        if value > self._end:
            self._point(bar, y, edge)
        elif bar.low is not None and bar.high is not None:
            self._whisker(value, bar.low, bar.high, y)
        if bar.second is not None and bar.second <= self._end:
            self._tick(bar.second, y)
        reached = [self._top if x > self._end else x for x in (value, bar.high) if x is not None]
        reached += [x for x in (bar.second,) if x is not None and x <= self._end]
        colour = self._colours.text if bar.strong else self._colours.quiet
        begin = max(reached) + self._top * 0.01
        self._text(self._fitting(bar, (end - begin) * self._px), colour, begin, y)

    def _fitting(self, bar: Bar, room: float) -> str:
        """Returns the text at the end of a bar, with as much of its note as so many pixels hold."""
        least = _text_at_end(bar, self._end, terse=True)
        whole = _text_at_end(bar, self._end, terse=False)
        if room - self._metrics.horizontalAdvance(least) < LEAST_NOTE:
            return least
        return self._metrics.elidedText(whole, Qt.TextElideMode.ElideRight, room)

    def _rectangle(self, length: float, y: int, brush: QColor | QBrush, pen: QColor | None) -> None:
        self._plot.addItem(
            self._pg.BarGraphItem(x0=[0], width=[length], y=[y], height=0.62, brush=brush, pen=pen)
        )

    def _point(self, bar: Bar, y: int, edge: QColor) -> None:
        """Draws the pointed end of a bar that is cut."""
        self._plot.addItem(
            self._pg.ArrowItem(
                pos=(self._end * (1 + TIP), y),
                angle=180,
                headLen=16,
                headWidth=9,
                pxMode=True,
                brush=QColor(bar.colour),
                pen=edge,
            )
        )

    def _whisker(self, value: float, low: float, high: float, y: int) -> None:
        self._plot.addItem(
            self._pg.ErrorBarItem(
                x=np.array([value]),
                y=np.array([float(y)]),
                left=np.array([value - low]),
                right=np.array([min(high, self._end) - value]),
                beam=0.3,
                pen=self._pg.mkPen(self._colours.text, width=1.4),
            )
        )

    def _tick(self, value: float, y: int) -> None:
        """Draws the second value as a dotted line across the bar."""
        pen = self._pg.mkPen(self._colours.text, width=2, style=Qt.PenStyle.DotLine)
        self._plot.addItem(self._pg.PlotDataItem([value, value], [y - 0.42, y + 0.42], pen=pen))

    def _text(self, text: str, colour: str, x: float, y: int) -> None:
        item = self._pg.TextItem(text, color=colour, anchor=(0, 0.5))
        item.setFont(self._font)
        item.setPos(x, y)
        self._plot.addItem(item)


def _text_at_end(bar: Bar, end: float, terse: bool) -> str:
    """Returns the text at the end of a bar, with an arrow before each number past the axis."""
    value = bar.value or 0.0
    text = f"→ {time_text(value)}" if value > end else time_text(value)
    if value <= end and bar.high is not None and bar.high > end:
        text += f" → {time_text(bar.high)}"
    if value <= end and bar.second is not None and bar.second > end:
        text += f", expected → {time_text(bar.second)}"
    return text + (f"  {bar.note}" if bar.note and not terse else "")
