"""Draws the bars of runs and baselines, with error bars.

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
from PySide6.QtGui import QColor, QFontMetricsF, QResizeEvent
from PySide6.QtWidgets import QSizePolicy, QStackedWidget

from collage_engine.wording.amounts import time_text
from collage_gui.theme import UNIT, Theme
from collage_gui.widgets import named, plain_tip, text_label

EMPTY = (
    "Runs and baselines appear here: how fast the placement is, and what you could have without it."
)
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
    note: str = ""
    key: str = ""
    strong: bool = False
    """Whether it is what is shown; it is drawn in the colour of text."""

    @property
    def is_known(self) -> bool:
        """Tell whether it has a length."""
        return self.value is not None and math.isfinite(self.value)

    def reach(self, end: float) -> float:
        """Return where its drawing ends on an axis that ends at ``end``."""
        return max(min(x, end) for x in (self.value, self.high) if x is not None)

    def figures(self, end: float) -> str:
        """Return its value as text, after an arrow where the bar is cut."""
        cut = self.value is not None and self.value > end
        return f"{'→ ' if cut else ''}{time_text(self.value)}"

    def text(self, end: float) -> str:
        """Return what is written at its end: figures and note, or why there is no figure."""
        if not self.is_known:
            return self.note or "not known"
        return f"{self.figures(end)}  {self.note}".rstrip()


def axis_end(bars: Sequence[Bar]) -> float:
    """Return where the axis ends, so that one huge bar or whisker never squeezes the others."""
    known_bars = [bar for bar in bars if bar.is_known]
    middle = statistics.median_low([bar.value or 0.0 for bar in known_bars])
    longest = max(bar.reach(math.inf) for bar in known_bars)
    return min(longest, LONGEST * middle) if middle > 0 else longest


class BarChart(QStackedWidget):
    """Shows horizontal bars from the top; without bars it says why it is empty."""

    chosen = Signal(str)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self.bars: list[Bar] = []
        self.plot: Any = None
        """The ``PlotWidget``, from the first bar on."""
        named(self, "runsChart", "Latency of runs and baselines")
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        note = text_label(EMPTY, "quiet")
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
        known_bars = [bar for bar in self.bars if bar.is_known]
        if known_bars and self.plot is None:
            self.plot = self._new_plot()
            self.addWidget(self.plot)
        self.setCurrentIndex(1 if known_bars else 0)
        if not known_bars:
            return
        self.plot.clear()
        self.plot.setBackground(self.theme.colours.panel)
        end = axis_end(self.bars)
        metrics = QFontMetricsF(self.theme.font(12))
        room = max(80.0, self.width() - self._label_bars(metrics) - UNIT)
        # Bars leave their notes room, but keep a quarter of it; a note that is cut then can be read
        # in its tip.
        texts = max(metrics.horizontalAdvance(bar.text(end)) for bar in known_bars)
        px = max(room / 4, room - texts - 3 * UNIT) / end
        self.plot.setXRange(0, room / px, padding=0)
        self.plot.setYRange(-0.5, len(self.bars) - 0.5, padding=0)
        self._draw_bars(end)
        for row, bar in enumerate(self.bars):
            begin = bar.reach(end) + UNIT / px if bar.is_known else 0.0
            left_px = room - begin * px - UNIT
            # A note is cut where it has no room, figures never are.
            least_px = metrics.horizontalAdvance(f"{bar.figures(end)}…")
            cut = metrics.elidedText(bar.text(end), Qt.TextElideMode.ElideRight, left_px)
            text = cut if left_px > least_px or not bar.is_known else bar.figures(end)
            self._write(text, bar.text(end), begin, row, bar.strong)

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
        row = round(self.plot.getViewBox().mapSceneToView(event.scenePos()).y())
        if 0 <= row < len(self.bars) and self.bars[row].key:
            self.chosen.emit(self.bars[row].key)

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

    def _draw_bars(self, end: float) -> None:
        """Draw the bars with their whiskers, as far as the axis goes."""
        import pyqtgraph as pg

        colours, known_bars = self.theme.colours, [bar for bar in self.bars if bar.is_known]
        spans = [(bar.low or bar.value, bar.value, bar.high or bar.value) for bar in known_bars]
        low, x, high = np.clip(np.array(spans, float), 0.0, end).T
        y = np.flatnonzero([bar.is_known for bar in self.bars])
        brushes = [QColor(colours.text if bar.strong else bar.colour) for bar in known_bars]
        self.plot.addItem(
            pg.BarGraphItem(x0=0, y=y, width=x, height=0.62, brushes=brushes, pen=None)
        )
        told = high > low
        ends = {"x": x[told], "y": y[told], "left": (x - low)[told], "right": (high - x)[told]}
        # On a bar of the text's own colour a line can be seen by its edges.
        for pen in (pg.mkPen(colours.panel, width=3), pg.mkPen(colours.text, width=1.4)):
            self.plot.addItem(pg.ErrorBarItem(**ends, beam=0.3, pen=pen))

    def _write(self, text: str, tip: str, x: float, y: int, strong: bool) -> None:
        import pyqtgraph as pg

        colour = self.theme.colours.text if strong else self.theme.colours.quiet
        item = pg.TextItem(text, color=colour, anchor=(0, 0.5))
        item.setFont(self.theme.font(12))
        item.setToolTip(plain_tip(tip))
        item.setPos(x, y)
        self.plot.addItem(item)
