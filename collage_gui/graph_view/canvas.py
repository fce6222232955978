"""Zooms, pans and paints the graph; the view on top of it selects and takes events.

A frame takes at most 16 ms where boxes can be read, and 65 ms where 10,000 of them are in view.
"""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QMargins, QPoint, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QColor,
    QFont,
    QImage,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPen,
    QPixmap,
    QResizeEvent,
    QTransform,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from collage_engine.drawing.layout import LEGIBLE_SCALE
from collage_engine.drawing.palette import LIGHT
from collage_gui.graph_view.legend import Legend
from collage_gui.graph_view.painter import Painting, PaintTheme
from collage_gui.graph_view.picture import EMPTY, Marks, Picture
from collage_gui.theme import UNIT
from collage_gui.widgets import named

LARGEST_SCALE = 4.0
"""Pixels of one scene unit at most: WCAG 2.2 has text enlarged to 400 % (1.4.10)."""


class Canvas(QWidget):
    """Shows a ``Picture`` at a scale and a place."""

    moved = Signal()
    """A signal that the scale or the place has changed."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        named(self, "graphView", "Graph")
        self.setAccessibleDescription(
            "The dataflow graph. The outline (O) lists the same operators for screen readers."
        )
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(200, 160)
        self.picture = Picture(EMPTY)
        self.marks = Marks()
        self.scale = 1.0
        self.offset = QPointF(0, 0)
        """Scene point at the view's top left."""
        self.message = ""
        self._theme = PaintTheme(LIGHT, QFont(), QFont())
        self._fit_next = True
        self.minimap = Minimap(self)
        self.minimap_wanted = True
        self.legend_wanted = True
        """Whether the legend below explains the colours; a second view of a graph needs none."""
        self.legend = Legend(self)

    # -- content -----------------------------------------------------------------------

    def set_theme(self, theme: PaintTheme) -> None:
        """Take other colours and fonts."""
        self._theme = theme
        self.colours_changed()

    def show_picture(self, picture: Picture, keep_view: bool = False) -> None:
        """Show a new layout.

        Args:
            picture: The picture.
            keep_view: Whether scale and place stay; else the view is fitted.
        """
        self.picture = picture
        self.marks = Marks()
        self._fit_next = not keep_view
        self.colours_changed()
        if not keep_view:
            self.fit()

    def colours_changed(self) -> None:
        """Paint the same places in other colours."""
        self.minimap.refresh(self.picture, self._theme)
        if self.legend_wanted:
            self.legend.show_entries(self.picture.legend, self._theme.colours)
        self._place_overlays()
        self.update()

    def set_marks(self, marks: Marks) -> None:
        """Draw other marks over the boxes."""
        self.marks = marks
        self.update()

    # -- geometry ----------------------------------------------------------------------

    def visible_area(self) -> QRectF:
        """Return the area of the scene that is in view."""
        return QRectF(self.offset, self.size().toSizeF() / self.scale)

    def to_scene(self, point: QPointF) -> QPointF:
        """Return the point of the scene under a point of the view."""
        return self.offset + point / self.scale

    def to_view(self, point: QPointF) -> QPointF:
        """Return the point of the view over a point of the scene."""
        return (point - self.offset) * self.scale

    def fit(self) -> None:
        """Show the whole graph, and keep doing so when the view is resized."""
        # A message of one line, with its frame, hides no box.
        free_px = 2 * self.fontMetrics().height()
        self.zoom_to(self.picture.bounds, largest=1.15, free_px=free_px)
        self._fit_next = True

    def zoom_to(self, area: QRectF, largest: float = 1.6, free_px: int = 0) -> None:
        """Show an area of the scene as large as it fits.

        Args:
            area: The area.
            largest: The largest scale.
            free_px: Pixels that stay free below it.
        """
        size = self.size().shrunkBy(QMargins(0, 0, 0, free_px))
        if area.isEmpty() or size.isEmpty():
            return
        scale = min(size.width() / area.width(), size.height() / area.height(), largest)
        self.scale = min(LARGEST_SCALE, scale)
        self._fit_next = False
        self.centre_on(area.center() + QPointF(0, free_px / 2 / self.scale))

    def centre_on(self, point: QPointF) -> None:
        """Show a point of the scene in the middle."""
        size = self.size()
        self.offset = point - QPointF(size.width(), size.height()) / (2 * self.scale)
        self._changed()

    def zoom(self, factor: float, at: QPointF | None = None) -> None:
        """Zoom around a point.

        Args:
            factor: By how much the scale grows.
            at: The point of the view whose scene point stays there; the middle by default.
        """
        at = at if at is not None else QPointF(self.rect().center())
        anchor = self.to_scene(at)
        self.scale = min(LARGEST_SCALE, max(self._least_scale(), self.scale * factor))
        self.offset = anchor - at / self.scale
        self._fit_next = False
        self._changed()

    def _least_scale(self) -> float:
        """Return the scale at which the whole graph takes a quarter of the view's width."""
        bounds, view = self.picture.bounds, self.size()
        fits = min(view.width() / bounds.width(), view.height() / bounds.height(), 1.0)
        return fits / LARGEST_SCALE

    def pan(self, delta: QPointF) -> None:
        """Move the scene by some pixels."""
        self.offset -= delta / self.scale
        self._fit_next = False
        self._changed()

    def go_where(self, other: Canvas) -> None:
        """Show the same part of the scene as another view, in the same size."""
        self.scale = other.scale
        middle = other.visible_area().center()
        self._fit_next = False
        self.centre_on(middle)

    def zoom_to_boxes(self, boxes: Iterable[int]) -> None:
        """Show boxes and a little of what is around them."""
        area = QRectF()
        for box in boxes:
            area = area.united(self.picture.rectangles[box])
        if not area.isEmpty():
            self.zoom_to(area.adjusted(-120, -90, 120, 90), largest=1.3)

    def ensure_visible(self, box: int) -> None:
        """Move as little as needed to see a box, and zoom in when it would be too small."""
        r = self.picture.rectangles[box]
        if not self.visible_area().adjusted(20, 20, -20, -20).contains(r):
            self.scale = max(self.scale, LEGIBLE_SCALE)
            self.centre_on(r.center())

    def _changed(self) -> None:
        self.minimap.setVisible(self._minimap_useful())
        self.minimap.update()
        self.update()
        self.moved.emit()

    def _minimap_useful(self) -> bool:
        most = self.picture.bounds.adjusted(60, 60, -60, -60)
        return self.minimap_wanted and not self.visible_area().contains(most)

    def _place_overlays(self) -> None:
        # The upper corner, since messages lie over the lower edge.
        corner = self.rect().topRight() - self.minimap.rect().topRight()
        self.minimap.move(corner + QPoint(-UNIT, UNIT))
        self.minimap.setVisible(self._minimap_useful())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fits the graph again, if it was fitted, and moves the minimap to its corner."""
        super().resizeEvent(event)
        if self._fit_next:
            self.fit()
        self._place_overlays()

    # -- painting ----------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints what is in view, or the message where there is no graph."""
        painter = QPainter(self)
        painter.setFont(self.font())
        if not self.picture.rectangles:
            painter.fillRect(self.rect(), QColor(self._theme.colours.canvas))
            painter.setPen(QColor(self._theme.colours.quiet))
            painter.drawText(self.rect(), Qt.AlignmentFlag.AlignCenter, self.message)
            return
        painter.save()
        self._paint_area(painter, self.visible_area(), self.scale)
        painter.restore()
        if self.hasFocus():
            painter.setPen(QColor(self._theme.colours.focus))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(self.rect().adjusted(0, 0, -1, -1))
        painter.end()

    def image(self, area: QRectF, scale: float) -> QImage:
        """Paint any part of the scene into an image, for export.

        Args:
            area: The part of the scene.
            scale: Pixels of one scene unit.

        Raises:
            MemoryError: The image would be too large.
        """
        size = (area.size() * scale).toSize().expandedTo(QSize(1, 1))
        image = QImage(size, QImage.Format.Format_ARGB32_Premultiplied)
        if image.isNull():
            raise MemoryError("the picture is too large")
        painter = QPainter(image)
        self._paint_area(painter, area, scale)
        painter.end()
        return image

    def _paint_area(self, painter: QPainter, area: QRectF, scale: float) -> None:
        """Paint a part of the scene from the upper left corner on."""
        painter.scale(scale, scale)
        painter.translate(-area.topLeft())
        Painting(painter, self.picture, self.marks, area, scale, self._theme).paint()


LARGEST = QSize(216, 150)
"""Pixels of the minimap at most; chosen."""


class Minimap(QWidget):
    """Caches its picture; only the rectangle is painted anew while the view moves."""

    def __init__(self, view: Canvas) -> None:
        super().__init__(view)
        self._view = view
        self._colours = LIGHT
        self.pixmap = QPixmap()
        """The whole graph."""
        self.bounds = QRectF()
        """What the pixmap shows, in scene units."""
        self._to_pixels = QTransform()
        """Turns places of the scene into those of the pixmap."""
        named(self, "minimap", "Minimap", "The whole graph. Drag to move the view.")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.hide()

    def refresh(self, picture: Picture, theme: PaintTheme) -> None:
        """Paint the cached picture anew: after a layout, or when colours changed."""
        self.bounds = picture.bounds
        size = self.bounds.size().toSize()
        size.scale(LARGEST, Qt.AspectRatioMode.KeepAspectRatio)
        size = size.expandedTo(QSize(24, 24))
        ratio = self.devicePixelRatioF()
        pixmap = QPixmap(size * ratio)
        pixmap.setDevicePixelRatio(ratio)
        pixmap.fill(QColor(theme.colours.canvas))
        painter = QPainter(pixmap)
        x, y = size.width() / self.bounds.width(), size.height() / self.bounds.height()
        self._to_pixels = QTransform.fromScale(x, y)
        self._to_pixels.translate(-self.bounds.left(), -self.bounds.top())
        painter.setTransform(self._to_pixels)
        scale = min(x, y, 0.1)
        Painting(painter, picture, Marks(), self.bounds, scale, theme).paint(labels=False)
        painter.end()
        self.pixmap = pixmap
        self._colours = theme.colours
        self.resize(size)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the cached picture and the rectangle of what is in view."""
        painter = QPainter(self)
        painter.drawPixmap(0, 0, self.pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        visible = self._view.visible_area().intersected(self.bounds)
        shown = self._to_pixels.mapRect(visible)
        painter.setPen(QPen(QColor(self._colours.border), 1))
        painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))
        painter.setPen(QPen(QColor(self._colours.focus), 1.5))
        painter.drawRect(shown.adjusted(1, 1, -1, -1))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Move the view to the point."""
        self._go(event.position())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Move the view along with the pointer."""
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._go(event.position())

    def _go(self, point: QPointF) -> None:
        self._view.centre_on(self._to_pixels.inverted()[0].map(point))
