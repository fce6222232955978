"""One class per mouse gesture on the graph: pan, rubber band, zoom to an area."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

if TYPE_CHECKING:
    from collage_gui.graph_view.view import GraphView


class Gesture:
    """Begins with a press; ``move`` and ``end`` follow. Positions are the viewport's pixels."""

    cursor = Qt.CursorShape.ArrowCursor

    def __init__(self, view: GraphView, start: QPointF) -> None:
        self.view, self.start, self.last = view, start, start

    def move(self, point: QPointF) -> None:
        self.last = point

    def end(self, point: QPointF, extend: bool) -> None:
        return

    def paint(self, painter: QPainter, accent: str) -> None:
        return

    @property
    def moved(self) -> bool:
        return (self.last - self.start).manhattanLength() > 4


class Pan(Gesture):
    """Drag the graph; a press that does not move is a click."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def move(self, point: QPointF) -> None:
        delta = point - self.last
        self.last = point
        if self.moved:
            self.view.pan(delta)

    def end(self, point: QPointF, extend: bool) -> None:
        if not self.moved:
            self.view.click(point, extend)


class RubberBand(Gesture):
    """Shift and drag: select what the rectangle touches, added to the selection."""

    cursor = Qt.CursorShape.CrossCursor

    def move(self, point: QPointF) -> None:
        self.last = point
        self.view.viewport().update()

    @property
    def rectangle(self) -> QRectF:
        return QRectF(self.start, self.last).normalized()

    def end(self, point: QPointF, extend: bool) -> None:
        self.last = point
        if self.moved:
            self.view.select_area(self.view.to_scene(self.rectangle), extend=True)
        else:
            self.view.click(point, True)

    def paint(self, painter: QPainter, accent: str) -> None:
        colour = QColor(accent)
        painter.setPen(QPen(colour, 1.2, Qt.PenStyle.DashLine))
        colour.setAlpha(30)
        painter.setBrush(colour)
        painter.drawRect(self.rectangle)


class ZoomArea(RubberBand):
    """Ctrl and drag: zoom to the rectangle."""

    def end(self, point: QPointF, extend: bool) -> None:
        self.last = point
        if self.moved:
            self.view.zoom_to(self.view.to_scene(self.rectangle))
        else:
            self.view.click(point, True)
