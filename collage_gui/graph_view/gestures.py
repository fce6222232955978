"""Defines the mouse gestures on the graph, one class each: pan, rubber band, zoom to an area."""

from __future__ import annotations

from typing import Protocol

from PySide6.QtCore import QPointF, QRectF, Qt
from PySide6.QtGui import QColor, QPainter, QPen

CLICK_PX = 4
"""A press that moves no further than this is a click; chosen."""


class GestureTarget(Protocol):
    """The protocol of the view in which gestures happen; points are the viewport's pixels."""

    def pan(self, delta: QPointF) -> None:
        """Move the scene by some pixels."""

    def click(self, point: QPointF, extend: bool) -> None:
        """Select what is at a point; ``extend`` adds it to the selection."""

    def select_area(self, area: QRectF, extend: bool) -> None:
        """Select what touches an area of the scene."""

    def zoom_to(self, area: QRectF) -> None:
        """Show an area of the scene as large as it fits."""

    def area_in_scene(self, area: QRectF) -> QRectF:
        """Return the area of the scene under a rectangle of the viewport."""

    def repaint_viewport(self) -> None:
        """Paint the view again soon."""


class Gesture:
    """A gesture begins with a press; ``move`` and ``end`` follow, in the viewport's pixels."""

    cursor = Qt.CursorShape.ArrowCursor

    def __init__(self, view: GestureTarget, start: QPointF) -> None:
        self.view, self.start, self.last = view, start, start

    def move(self, point: QPointF) -> None:
        """Follow the pointer."""
        self.last = point

    def end(self, point: QPointF, extend: bool) -> None:
        """Do what the gesture is for; ``extend`` adds to the selection."""
        return

    def paint(self, painter: QPainter, colour: str) -> None:
        """Paint what shows the gesture, over the graph."""
        return

    @property
    def moved(self) -> bool:
        """Tells whether the pointer has moved so far that this is no click."""
        return (self.last - self.start).manhattanLength() > CLICK_PX


class Pan(Gesture):
    """Drag the graph; a press that does not move is a click."""

    cursor = Qt.CursorShape.ClosedHandCursor

    def move(self, point: QPointF) -> None:
        """Move the graph with the pointer."""
        delta = point - self.last
        self.last = point
        if self.moved:
            self.view.pan(delta)

    def end(self, point: QPointF, extend: bool) -> None:
        """Click, if nothing was moved."""
        if not self.moved:
            self.view.click(point, extend)


class RubberBand(Gesture):
    """Shift and drag: select what the rectangle touches; with Ctrl, add it to the selection."""

    cursor = Qt.CursorShape.CrossCursor

    def move(self, point: QPointF) -> None:
        """Draw the rectangle up to the pointer."""
        self.last = point
        self.view.repaint_viewport()

    @property
    def rectangle(self) -> QRectF:
        """Return the rectangle from the press to the pointer, in the viewport's pixels."""
        return QRectF(self.start, self.last).normalized()

    def end(self, point: QPointF, extend: bool) -> None:
        """Select what the rectangle touches."""
        self.last = point
        if self.moved:
            self.view.select_area(self.view.area_in_scene(self.rectangle), extend)
        else:
            self.view.click(point, True)

    def paint(self, painter: QPainter, colour: str) -> None:
        """Paint the rectangle."""
        line, fill = QColor(colour), QColor(colour)
        fill.setAlpha(30)
        painter.setPen(QPen(line, 1.2, Qt.PenStyle.DashLine))
        painter.setBrush(fill)
        painter.drawRect(self.rectangle)


class ZoomArea(RubberBand):
    """The gesture of dragging with Ctrl, which zooms to the rectangle."""

    def end(self, point: QPointF, extend: bool) -> None:
        """Zoom to the rectangle."""
        self.last = point
        if self.moved:
            self.view.zoom_to(self.view.area_in_scene(self.rectangle))
        else:
            self.view.click(point, True)
