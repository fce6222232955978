"""Draws histograms with pyqtgraph, which is loaded when the first one is shown."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from PySide6.QtGui import QColor
from PySide6.QtWidgets import QStackedLayout, QWidget

from collage_gui.theme import Theme


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
