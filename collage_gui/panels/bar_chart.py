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
from PySide6.QtWidgets import QSizePolicy, QStackedWidget

from collage_engine.drawing.formatting import time_text
from collage_gui.design_units import UNIT
from collage_gui.graph_view.painter import BRUSHES
from collage_gui.theme import Theme
from collage_gui.widgets import text_label

NEUTRAL = "#8a9199"
"""Colour of bars that stand for no toolchain."""
LONGEST = 4.0
"""An axis ends at this many times the middle bar; longer bars are cut. Chosen."""
BAR_PX = 3 * UNIT
"""Height that a bar takes, in pixels: a line of text and a gap."""


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


class BarChart(QStackedWidget):
    """Shows horizontal bars from the top; without bars it says why it is empty."""

    chosen = Signal(str)

    def __init__(self, theme: Theme, name: str, title: str, empty: str) -> None:
        super().__init__()
        self.theme = theme
        self.bars: list[Bar] = []
        self.plot: Any = None
        """The ``PlotWidget``, from the first bar on."""
        self.setObjectName(name)
        self.setAccessibleName(title)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        note = text_label(empty, "quiet")
        note.setAlignment(Qt.AlignmentFlag.AlignCenter)
        note.setContentsMargins(2 * UNIT, UNIT, 2 * UNIT, UNIT)
        self.addWidget(note)
        self._draw()
        theme.changed.connect(self._draw)

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Arranges labels and texts for the new width."""
        super().resizeEvent(event)
        if event.size().width() != event.oldSize().width():
            self._draw()

    def show_bars(self, bars: Sequence[Bar]) -> None:
        """Show bars from the top; those without a value show their note instead."""
        if self.bars == list(bars):
            return  # drawing takes a good part of the time of showing a run
        self.bars = list(bars)
        spoken = "; ".join(f"{bar.label} {time_text(bar.value)}" for bar in self.bars)
        self.setAccessibleDescription(spoken)
        self._draw()

    def _draw(self) -> None:
        self.setFixedHeight(self.theme.scaled(UNIT + BAR_PX * max(2, len(self.bars))))
        known = [bar for bar in self.bars if bar.is_known]
        if known and self.plot is None:
            self.plot = self._new_plot()
            self.addWidget(self.plot)
        self.setCurrentIndex(1 if known else 0)
        if not known:
            return
        self.plot.clear()
        self.plot.setBackground(self.theme.colours.panel)
        end = axis_end(self.bars)
        metrics = QFontMetricsF(self.theme.font(12))
        room = max(80.0, self.width() - self._label_bars(metrics) - UNIT)
        # Where there is no room for all notes the numbers decide the scale, and each note takes
        # what room its bar leaves.
        texts = max(metrics.horizontalAdvance(bar.figures(end)) for bar in known)
        px = max(room / 4, room - texts - 3 * UNIT) / end
        self.plot.setXRange(0, room / px, padding=0)
        self.plot.setYRange(-0.5, len(self.bars) - 0.5, padding=0)
        for place, bar in enumerate(self.bars):
            begin = 0.0
            if bar.is_known:
                self._draw_bar(bar, place, end)
                begin = bar.reach(end) + UNIT / px
            left_px = room - begin * px - UNIT
            # A note is cut where it has no room, figures never are.
            least_px = metrics.horizontalAdvance(f"{bar.figures(end)}…")
            cut = metrics.elidedText(bar.text(end), Qt.TextElideMode.ElideRight, left_px)
            text = cut if left_px > least_px or not bar.is_known else bar.figures(end)
            self._write(text, begin, place, bar.strong)

    def _new_plot(self) -> Any:
        import pyqtgraph as pg

        plot = pg.PlotWidget()
        plot.setMouseEnabled(False, False)
        plot.setMenuEnabled(False)
        plot.hideButtons()
        plot.hideAxis("bottom")
        plot.invertY(True)
        plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        plot.scene().sigMouseClicked.connect(self._clicked)
        return plot

    def _clicked(self, event: Any) -> None:
        place = round(self.plot.getViewBox().mapSceneToView(event.scenePos()).y())
        if 0 <= place < len(self.bars) and self.bars[place].key:
            self.chosen.emit(self.bars[place].key)

    def _label_bars(self, metrics: QFontMetricsF) -> float:
        """Write the labels as ticks of the axis, and return its width in pixels."""
        middle, most = Qt.TextElideMode.ElideMiddle, self.width() / 2
        labels = [metrics.elidedText(bar.label, middle, most) for bar in self.bars]
        width = math.ceil(max(map(metrics.horizontalAdvance, labels))) + 2 * UNIT
        axis = self.plot.getAxis("left")
        axis.setTickFont(self.theme.font(12))
        axis.setPen(self.theme.colours.line)
        axis.setTextPen(self.theme.colours.text)
        axis.setStyle(tickLength=0, tickTextOffset=UNIT, autoExpandTextSpace=False)
        axis.setWidth(width)
        axis.setTicks([list(enumerate(labels))])
        return width

    def _draw_bar(self, bar: Bar, y: int, end: float) -> None:
        """Draw a bar with its whisker and its second value; one that is cut ends in a point."""
        import pyqtgraph as pg

        value, colours = bar.value or 0.0, self.theme.colours
        fill = QColor(colours.text if bar.strong else bar.colour)
        for brush in (fill, QBrush(QColor(0, 0, 0, 70), BRUSHES[bar.pattern])):
            self.plot.addItem(
                pg.BarGraphItem(
                    x0=[0], y=[y], width=[min(value, end)], height=0.62, brush=brush, pen=None
                )
            )
        # On a bar of the text's own colour a line can be seen by its edges.
        line, edge = pg.mkPen(colours.text, width=1.4), pg.mkPen(colours.panel, width=3)
        if value > end:
            self.plot.plot([end], [y], symbol="t2", symbolSize=14, symbolBrush=fill, symbolPen=None)
        elif bar.low is not None and bar.high is not None:
            x, left, right = np.array([value, value - bar.low, min(bar.high, end) - value])[:, None]
            for pen in (edge, line):
                whisker = pg.ErrorBarItem(x=x, y=x * 0 + y, left=left, right=right, beam=0.3)
                whisker.setData(pen=pen)
                self.plot.addItem(whisker)
        if bar.second is not None and bar.second <= end:
            for pen in (edge, line):
                self.plot.plot([bar.second, bar.second], [y - 0.4, y + 0.4], pen=pen)

    def _write(self, text: str, x: float, y: int, strong: bool) -> None:
        import pyqtgraph as pg

        colour = self.theme.colours.text if strong else self.theme.colours.quiet
        item = pg.TextItem(text, color=colour, anchor=(0, 0.5))
        item.setFont(self.theme.font(12))
        item.setPos(x, y)
        self.plot.addItem(item)
