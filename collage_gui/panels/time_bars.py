"""Draws the bars of a timeline and its ruler; pyqtgraph, which takes 0.7 s, is imported here.

All bars are one item, which draws what can be seen in as few calls as there are colours: a run of
thousands of layers pans and zooms smoothly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyqtgraph as pg
from PySide6.QtCore import QLineF, QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QFontMetricsF, QPainter, QPen, QTransform

from collage_engine.drawing.palette import text_on
from collage_engine.drawing.timeline import TimeBar, Timeline, bar_colour
from collage_engine.wording.amounts import time_text
from collage_gui.theme import UNIT, Theme

LANES = {"partition": (0.1, 0.46), "layer": (0.5, 0.86), "between": (0.1, 0.46)}
"""Top and bottom of a bar in its row, by its kind, as shares of the row's height."""
GAP_FROM_PX, MARK_PX = 3, 2
"""Width of a bar from which a gap of a pixel follows it, and of the outline of one that is marked,
in pixels; chosen."""


class Ruler(pg.AxisItem):  # type: ignore[misc]
    """A ruler in microseconds, or in milliseconds where these are many."""

    def tickStrings(self, values: Sequence[float], scale: float, spacing: float) -> list[str]:
        """Return the labels of some values."""
        return [time_text(value) if value > 0 else "0" for value in values]


class Bars(pg.GraphicsObject):  # type: ignore[misc]
    """The bars of a timeline as one item."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = Timeline(rows=(), bars=(), transitions=(), end_us=0.0)
        self._wanted = {"found": frozenset[int](), "selected": frozenset[int]()}
        """The operators whose bars are marked, by why."""

    def show_bars(self, shown: Timeline, theme: Theme) -> None:
        """Draw another timeline, or the same in other colours."""
        self.prepareGeometryChange()
        self.shown, self.theme, bars = shown, theme, shown.bars
        colours = theme.colours
        lanes = np.array([LANES[bar.kind] for bar in bars] or np.empty((0, 2)))
        rows = np.array([bar.row for bar in bars])
        self._begin = np.array([bar.begin_us for bar in bars])
        self._end = np.array([bar.end_us for bar in bars])
        self._top, self._low = rows + lanes[:, 0], rows + lanes[:, 1]
        fills = [bar_colour(bar, colours.canvas, colours.border) for bar in bars]
        self._fills = sorted(set(fills))
        self._fill = np.array([self._fills.index(fill) for fill in fills])
        self.marked: dict[str, np.ndarray] = {}
        self.mark()

    def mark(self, **wanted: frozenset[int]) -> None:
        """Outline what is ``selected``, or what a search ``found``; the other stays as it is."""
        self._wanted |= wanted
        for name, operators in self._wanted.items():
            held = [n for n, bar in enumerate(self.shown.bars) if _is_among(bar, operators)]
            self.marked[name] = np.array(held, int)
        self.update()

    def at(self, x: float, y: float, near: float) -> TimeBar | None:
        """Return the bar at a place, the shortest where several are as near as ``near``."""
        inside = (self._begin - near <= x) & (x <= self._end + near)
        places = np.flatnonzero(inside & (self._top <= y) & (y <= self._low))
        lengths = np.abs((self._begin + self._end)[places] / 2 - x)
        return self.shown.bars[places[lengths.argmin()]] if places.size else None

    def boundingRect(self) -> QRectF:
        """Return where it draws."""
        return QRectF(0, 0, self.shown.end_us, len(self.shown.rows))

    def paint(self, painter: QPainter, *_: Any) -> None:
        """Draw the bars that can be seen, in pixels, so that letters are not stretched."""
        if not self.shown.bars:
            return
        to_px = painter.worldTransform()
        (low, high), _rows = self.getViewBox().viewRange()
        seen = np.flatnonzero((self._end >= low) & (self._begin <= high))
        left = np.round(np.maximum(self._begin[seen], low) * to_px.m11() + to_px.dx())
        right = np.round(np.minimum(self._end[seen], high) * to_px.m11() + to_px.dx())
        wide = right - left
        # A gap tells neighbours apart; what is narrower than a pixel takes one.
        right = np.maximum(right - (wide > GAP_FROM_PX), left + 1)
        top = self._top[seen] * to_px.m22() + to_px.dy()
        bottom = self._low[seen] * to_px.m22() + to_px.dy()
        corners = np.column_stack([left, top, right - left, bottom - top])
        painter.save()
        painter.resetTransform()
        painter.setPen(Qt.PenStyle.NoPen)
        for number, fill in enumerate(self._fills):
            own = corners[self._fill[seen] == number]
            painter.setBrush(QColor(fill))
            # Of thousands of bars at one pixel one is drawn.
            painter.drawRects([QRectF(*each) for each in np.unique(own, axis=0).tolist()])
        self._draw_transitions(painter, to_px, low, high)
        self._draw_marks(painter, seen, corners)
        self._draw_labels(painter, seen, corners)
        painter.restore()

    def _draw_transitions(
        self, painter: QPainter, to_px: QTransform, low: float, high: float
    ) -> None:
        """Draw lines from partitions to those that read what they make."""
        y = np.array(LANES["partition"]).mean()
        lines = [
            QLineF(
                to_px.map(QPointF(one.end_us, one.row + y)),
                to_px.map(QPointF(other.begin_us, other.row + y)),
            )
            for one, other in self.shown.transitions
            if one.row != other.row and one.end_us <= high and other.begin_us >= low
        ]
        painter.setPen(QPen(QColor(self.theme.colours.quiet), 1))
        # More of them than columns of pixels are a grey mass.
        painter.drawLines(lines[: round((high - low) * to_px.m11())])

    def _draw_marks(self, painter: QPainter, seen: np.ndarray, corners: np.ndarray) -> None:
        """Outline what was found, and what is selected."""
        colours = self.theme.colours
        painter.setBrush(Qt.BrushStyle.NoBrush)
        for name, colour in (("found", colours.text), ("selected", colours.focus)):
            painter.setPen(QPen(QColor(colour), MARK_PX))
            own = corners[np.isin(seen, self.marked[name])]
            painter.drawRects([QRectF(*each) for each in np.unique(own, axis=0).tolist()])

    def _draw_labels(self, painter: QPainter, seen: np.ndarray, corners: np.ndarray) -> None:
        """Write on bars what they are, where there is room for three letters."""
        painter.setFont(self.theme.font(12))
        metrics = QFontMetricsF(painter.font())
        has_room = corners[:, 2] >= UNIT + metrics.horizontalAdvance("abc…")
        labelled = zip(seen[has_room].tolist(), corners[has_room].tolist(), strict=True)
        for number, corner in labelled:
            room = QRectF(*corner).adjusted(UNIT / 2, 0, -UNIT / 2, 0)
            text = self.shown.bars[number].title
            painter.setPen(QColor(text_on(self._fills[self._fill[number]])))
            cut = metrics.elidedText(text, Qt.TextElideMode.ElideRight, room.width())
            painter.drawText(room, Qt.AlignmentFlag.AlignVCenter, cut)


def _is_among(bar: TimeBar, operators: frozenset[int]) -> bool:
    """Tell whether a layer computes some of the operators, or a partition no others."""
    if bar.kind == "partition":
        return operators.issuperset(bar.operators)
    return not operators.isdisjoint(bar.operators)
