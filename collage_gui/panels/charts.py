"""Bar charts with error bars and histograms, drawn by pyqtgraph.

pyqtgraph takes 0.7 s to import: it is loaded when the first chart has something to show.
"""

from __future__ import annotations

import itertools
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
    """One bar of a chart, its whisker, and the words at its end."""

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
"""An axis ends at this many times the middle bar; what is longer is cut and says its number."""
TIP = 0.035
"""How far the pointed end of a cut bar reaches past the axis, as a share of it."""


def axis_end(bars: Sequence[Bar]) -> float:
    """Where the axis of these bars ends: one huge bar or whisker never squeezes the others."""
    values = [bar.value for bar in bars if bar.value is not None and math.isfinite(bar.value)]
    longest = max(max(_reach(bar)) for bar in bars if bar.value in values)
    middle = statistics.median_low(values)
    return min(longest, LONGEST * middle) if middle > 0 else longest


def _reach(bar: Bar) -> tuple[float, ...]:
    return tuple(x for x in (bar.value, bar.high, bar.second) if x is not None)


class BarChart(QWidget):
    """Horizontal bars from the top; the empty chart says why it is empty."""

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
        self.bars = list(bars)[:limit]
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
        import pyqtgraph as pg

        c = self.theme.colours
        if self._plot is None:
            self._plot = pg.PlotWidget()
            self._plot.setMouseEnabled(False, False)
            self._plot.setMenuEnabled(False)
            self._plot.hideButtons()
            self._plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
            self._plot.scene().sigMouseClicked.connect(self._clicked)
            self._stack.addWidget(self._plot)
        plot = self._plot
        plot.clear()
        plot.setBackground(QColor(c.panel))
        item = plot.getPlotItem()
        item.setContentsMargins(4, 2, 8, 2)
        item.showAxis("bottom", False)
        axis = item.getAxis("left")
        font = self.theme.font(12)
        axis.setTickFont(font)
        axis.setPen(QColor(c.line))
        axis.setTextPen(QColor(c.text))
        axis.setStyle(tickLength=0, tickTextOffset=6, autoExpandTextSpace=True)
        ticks = []
        end = axis_end(known)
        cut = any(b.value is not None and b.value > end for b in known)
        top = end * (1 + TIP) if cut else end
        metrics = QFontMetricsF(font)
        longest = 26 if self.width() > 460 else 18
        labels = [elide(bar.label, longest) for bar in self.bars]
        room = self.width() - max(metrics.horizontalAdvance(label) for label in labels) - 40
        # Where there is no room for notes, the numbers alone stand at the bars' ends.
        terse = max(metrics.horizontalAdvance(_note(bar, end)) for bar in known) > 0.7 * room
        widest = max(metrics.horizontalAdvance(_note(bar, end, terse)) for bar in known)
        for place, bar in enumerate(self.bars):
            y = -place
            ticks.append((y, labels[place]))
            value = bar.value if bar.value is not None and math.isfinite(bar.value) else None
            if value is None:
                text = pg.TextItem(bar.note or "not known", color=c.quiet, anchor=(0, 0.5))
                text.setFont(font)
                text.setPos(top * 0.01, y)
                plot.addItem(text)
                continue
            length = min(value, end)
            rectangle = pg.BarGraphItem(
                x0=[0],
                width=[length],
                y=[y],
                height=0.62,
                brush=QColor(bar.colour),
                pen=QColor(c.text if bar.strong else bar.colour),
            )
            plot.addItem(rectangle)
            if bar.pattern != "solid":
                ink = QColor("#000000")
                ink.setAlphaF(0.28)
                plot.addItem(
                    pg.BarGraphItem(
                        x0=[0],
                        width=[length],
                        y=[y],
                        height=0.62,
                        pen=None,
                        brush=QBrush(ink, BRUSHES[bar.pattern]),
                    )
                )
            if value > end:
                tip = pg.ArrowItem(
                    pos=(end * (1 + TIP), y),
                    angle=180,
                    headLen=16,
                    headWidth=9,
                    pxMode=True,
                    brush=QColor(bar.colour),
                    pen=QColor(c.text if bar.strong else bar.colour),
                )
                plot.addItem(tip)
            elif bar.low is not None and bar.high is not None:
                plot.addItem(
                    pg.ErrorBarItem(
                        x=np.array([value]),
                        y=np.array([float(y)]),
                        left=np.array([value - bar.low]),
                        right=np.array([min(bar.high, end) - value]),
                        beam=0.3,
                        pen=pg.mkPen(c.text, width=1.4),
                    )
                )
            if bar.second is not None and bar.second <= end:
                plot.addItem(
                    pg.PlotDataItem(
                        [bar.second, bar.second],
                        [y - 0.42, y + 0.42],
                        pen=pg.mkPen(c.text, width=2, style=Qt.PenStyle.DotLine),
                    )
                )
            text = pg.TextItem(
                _note(bar, end, terse), color=c.text if bar.strong else c.quiet, anchor=(0, 0.5)
            )
            text.setFont(self.theme.font(12))
            ends = [top if value > end else value, *(x for x in _reach(bar) if x <= end)]
            if bar.high is not None and bar.high > end:
                ends.append(top)
            text.setPos(max(ends) + top * 0.01, y)
            plot.addItem(text)
        axis.setTicks([ticks])
        # Room for the words at the bars' ends, whatever the width of the panel.
        plot.setXRange(0, top / max(0.25, 1 - (widest + 14) / max(room, 80.0)), padding=0)
        plot.setYRange(-len(self.bars) + 0.45, 0.55, padding=0)
        self.setFixedHeight(self.theme.scaled(10 + 23 * len(self.bars)))
        self._stack.setCurrentWidget(plot)

    def _clicked(self, event: Any) -> None:
        where = self._plot.getPlotItem().vb.mapSceneToView(event.scenePos())
        place = round(-where.y())
        if 0 <= place < len(self.bars) and self.bars[place].key:
            self.chosen.emit(self.bars[place].key)


def _note(bar: Bar, end: float, terse: bool = False) -> str:
    """The words at a bar's end; an arrow before each number that lies past the axis."""
    value = bar.value or 0.0
    text = f"→ {time_text(value)}" if value > end else time_text(value)
    if value <= end and bar.high is not None and bar.high > end:
        text += f" → {time_text(bar.high)}"
    if value <= end and bar.second is not None and bar.second > end:
        text += f", estimated → {time_text(bar.second)}"
    return text + (f"  {bar.note}" if bar.note and not terse else "")


class Histogram(QWidget):
    """Counts between edges, e.g. of a weight's values."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self._plot: Any = None
        self._stack = QStackedLayout(self)
        self.setFixedHeight(120)

    def show_counts(self, counts: Sequence[int], edges: Sequence[float], name: str) -> None:
        """Show a histogram; without counts the widget hides.

        Args:
            counts: Values in each bin.
            edges: Borders of the bins, one more than counts.
            name: What is counted.
        """
        self.setVisible(bool(counts))
        if not counts:
            return
        import pyqtgraph as pg

        c = self.theme.colours
        if self._plot is None:
            self._plot = pg.PlotWidget()
            self._plot.setMouseEnabled(False, False)
            self._plot.setMenuEnabled(False)
            self._plot.hideButtons()
            self._stack.addWidget(self._plot)
        plot = self._plot
        plot.clear()
        plot.setBackground(QColor(c.panel))
        for side in ("left", "bottom"):
            axis = plot.getPlotItem().getAxis(side)
            axis.setPen(QColor(c.line))
            axis.setTextPen(QColor(c.quiet))
            axis.setTickFont(self.theme.font(11))
        middle = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
        width = edges[1] - edges[0] if len(edges) > 1 else 1.0
        plot.addItem(
            pg.BarGraphItem(
                x=middle, height=list(counts), width=width * 0.92, brush=QColor(c.quiet), pen=None
            )
        )
        self.setAccessibleName(f"Histogram of {name}")
