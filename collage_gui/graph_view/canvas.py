"""Zooms, pans and paints the graph; the view on top of it selects and takes events.

While a gesture lasts and the sharp picture is slow to paint, frames show the last sharp picture
moved and scaled (over that of the minimap where it does not reach); the sharp one follows as
soon as the gesture rests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from PySide6.QtCore import QMargins, QPoint, QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QFocusEvent,
    QImage,
    QPainter,
    QPaintEvent,
    QPixmap,
    QResizeEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QSizePolicy, QWidget

from collage_gui.graph_view.legend import Legend
from collage_gui.graph_view.minimap import Minimap
from collage_gui.graph_view.painter import PaintTheme, paint
from collage_gui.graph_view.picture import Marks, Picture

SLOWEST_DIRECT_S = 0.018
"""Sharp pictures that take longer than this, in seconds, are replaced by a scaled one while a
gesture lasts; chosen, a little more than one frame of a 60 Hz screen."""
SHARP_AFTER_MS = 60
"""Milliseconds for which a gesture must rest before the sharp picture is painted; chosen."""
LARGEST_SCALE, SMALLEST_SCALE = 4.0, 0.002
"""Bounds on the pixels of one scene unit; chosen."""
READABLE_SCALE = 0.3
"""Below this scale a box that is gone to is shown at ``GO_TO_SCALE``; chosen."""
MESSAGE_PX = 30
"""Height that a fitted graph leaves to a message at the lower edge, in pixels, beside the graph's
own margin; chosen: a message of one line hides no box."""
OVERLAY_MARGIN = 12
"""Pixels between the minimap and the borders of the view; chosen."""
GO_TO_SCALE = 0.8
"""The scale at which a box is read well; chosen."""


class Canvas(QAbstractScrollArea):
    """Shows a ``Picture`` at a scale and a place."""

    moved = Signal()
    """A signal that the scale or the place has changed."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("graphView")
        self.setAccessibleName("Graph")
        self.setAccessibleDescription(
            "The dataflow graph. The outline (O) lists the same operators for screen readers."
        )
        self.setFrameShape(QAbstractScrollArea.Shape.NoFrame)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setVerticalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.viewport().setMouseTracking(True)
        self.setMinimumSize(200, 160)
        self.picture: Picture | None = None
        self.marks = Marks()
        self.scale = 1.0
        self.offset = QPointF(0, 0)
        """Scene point at the viewport's top left."""
        self.message = ""
        self.sharp_s = 0.0
        self._theme: PaintTheme | None = None
        self._fit_next = True
        self._hold = False
        self._sharp: tuple[QPixmap, QPointF, float] | None = None
        self._rest = QTimer(self, interval=SHARP_AFTER_MS, singleShot=True)
        self._rest.timeout.connect(self._sharpen)
        self.minimap = Minimap(self, self.visible_area, self.centre_on)
        self.minimap_wanted = True
        self.legend_wanted = True
        """Whether the legend below explains the colours; a second view of a graph needs none."""
        self.legend = Legend(self)

    # -- content -----------------------------------------------------------------------

    def set_theme(self, theme: PaintTheme) -> None:
        """Take other colours and fonts."""
        self._theme = theme
        self.colours_changed()

    def show_picture(self, picture: Picture | None, keep_view: bool = False) -> None:
        """Show a new layout.

        Args:
            picture: The picture; None shows a message.
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
        self._sharp = None
        if self._theme is not None:
            self.minimap.refresh(self.picture, self._theme)
            entries = self.picture.legend if self.picture else []
            if self.legend_wanted:
                self.legend.show_entries(entries, self._theme)
        self._place_overlays()
        self.viewport().update()

    def set_marks(self, marks: Marks) -> None:
        """Draw other marks over the boxes."""
        self.marks = marks
        self._sharp = None
        self.viewport().update()

    # -- geometry ----------------------------------------------------------------------

    def visible_area(self) -> QRectF:
        """Returns the area of the scene that is in view."""
        size = self.viewport().size()
        return QRectF(
            self.offset.x(), self.offset.y(), size.width() / self.scale, size.height() / self.scale
        )

    def to_scene(self, point: QPointF) -> QPointF:
        """Return the point of the scene under a point of the viewport."""
        return self.offset + point / self.scale

    def area_in_scene(self, area: QRectF) -> QRectF:
        """Return the area of the scene under a rectangle of the viewport."""
        return QRectF(self.to_scene(area.topLeft()), self.to_scene(area.bottomRight()))

    def to_view(self, point: QPointF) -> QPointF:
        """Return the point of the viewport over a point of the scene."""
        return (point - self.offset) * self.scale

    def fit(self) -> None:
        """Show the whole graph, and keep doing so when the view is resized."""
        if self.picture is not None:
            self.zoom_to(self.picture.bounds, largest=1.15, free_px=MESSAGE_PX)
            self._fit_next = True

    def zoom_to(self, area: QRectF, largest: float = 1.6, free_px: int = 0) -> None:
        """Show an area of the scene as large as it fits.

        Args:
            area: The area.
            largest: The largest scale.
            free_px: Pixels that stay free below it.
        """
        size = self.viewport().size().shrunkBy(QMargins(0, 0, 0, free_px))
        if area.isEmpty() or size.isEmpty():
            return
        scale = min(size.width() / area.width(), size.height() / area.height(), largest)
        self.scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, scale))
        self._fit_next = False
        self.centre_on(area.center() + QPointF(0, free_px / 2 / self.scale))

    def centre_on(self, point: QPointF) -> None:
        """Show a point of the scene in the middle."""
        size = self.viewport().size()
        self.offset = point - QPointF(size.width(), size.height()) / (2 * self.scale)
        self._changed()

    def zoom(self, factor: float, at: QPointF | None = None) -> None:
        """Zoom around a point.

        Args:
            factor: By how much the scale grows.
            at: The point of the viewport whose scene point stays there; the middle by default.
        """
        at = at if at is not None else QPointF(self.viewport().rect().center())
        anchor = self.to_scene(at)
        self.scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, self.scale * factor))
        self.offset = anchor - at / self.scale
        self._fit_next = False
        self._changed(gesture=True)

    def pan(self, delta: QPointF) -> None:
        """Move the scene by some pixels."""
        self.offset -= delta / self.scale
        self._fit_next = False
        self._changed(gesture=True)

    def go_where(self, other: Canvas) -> None:
        """Show the same part of the scene as another view, in the same size."""
        self.scale = other.scale
        middle = other.visible_area().center()
        self._fit_next = False
        self.centre_on(middle)

    def zoom_to_boxes(self, boxes: Iterable[int]) -> None:
        """Show boxes and a little of what is around them."""
        if self.picture is None:
            return
        area = QRectF()
        for box in boxes:
            area = area.united(self.picture.rectangles[box])
        if not area.isEmpty():
            self.zoom_to(area.adjusted(-120, -90, 120, 90), largest=1.3)

    def ensure_visible(self, box: int) -> None:
        """Move as little as needed to see a box, and zoom in when it would be too small."""
        if self.picture is None or box >= len(self.picture.rectangles):
            return
        r = self.picture.rectangles[box]
        if not self.visible_area().adjusted(20, 20, -20, -20).contains(r):
            if self.scale < READABLE_SCALE:
                self.scale = GO_TO_SCALE
            self.centre_on(r.center())

    def _changed(self, gesture: bool = False) -> None:
        if gesture and self.sharp_s > SLOWEST_DIRECT_S:
            self._hold = True
            self._rest.start()
        self.minimap.setVisible(self._minimap_useful())
        self.minimap.update()
        self.viewport().update()
        self.moved.emit()

    def _sharpen(self) -> None:
        self._hold = False
        self.viewport().update()

    def _minimap_useful(self) -> bool:
        if self.picture is None or not self.minimap_wanted:
            return False
        return not self.visible_area().contains(self.picture.bounds.adjusted(60, 60, -60, -60))

    def _place_overlays(self) -> None:
        # The upper corner, since messages lie over the lower edge.
        corner = self.viewport().rect().topRight() - self.minimap.rect().topRight()
        self.minimap.move(corner + QPoint(-OVERLAY_MARGIN, OVERLAY_MARGIN))
        self.minimap.setVisible(self._minimap_useful())

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Fits the graph again, if it was fitted, and moves the minimap to its corner."""
        super().resizeEvent(event)
        self._sharp = None
        if self._fit_next:
            self.fit()
        self._place_overlays()

    # -- painting ----------------------------------------------------------------------

    def focusInEvent(self, event: QFocusEvent) -> None:
        """Shows the focus, which is painted into the viewport."""
        super().focusInEvent(event)
        self.viewport().update()

    def focusOutEvent(self, event: QFocusEvent) -> None:
        """Takes the mark of the focus away."""
        super().focusOutEvent(event)
        self.viewport().update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the sharp picture, or the last one scaled while a gesture lasts."""
        if self._theme is None:
            return
        painter = QPainter(self.viewport())
        painter.setFont(self.font())
        canvas = QColor(self._theme.colours.canvas)
        if self.picture is None:
            painter.fillRect(self.viewport().rect(), canvas)
            painter.setPen(QColor(self._theme.colours.quiet))
            painter.drawText(self.viewport().rect(), Qt.AlignmentFlag.AlignCenter, self.message)
            return
        if self._hold and self._sharp is not None:
            self._scaled_frame(painter, canvas)
        else:
            self._sharp_frame(painter)
        if self.hasFocus():
            painter.setPen(QColor(self._theme.colours.focus))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            painter.drawRect(self.viewport().rect().adjusted(0, 0, -1, -1))
        painter.end()

    def _sharp_frame(self, painter: QPainter) -> None:
        assert self.picture is not None and self._theme is not None
        key = (self.offset, self.scale)
        if self._sharp is None or (self._sharp[1], self._sharp[2]) != key:
            begin = time.perf_counter()
            ratio = self.devicePixelRatioF()
            pixmap = QPixmap(self.viewport().size() * ratio)
            pixmap.setDevicePixelRatio(ratio)
            inner = QPainter(pixmap)
            inner.scale(self.scale, self.scale)
            inner.translate(-self.offset)
            paint(inner, self.picture, self.marks, self.visible_area(), self.scale, self._theme)
            inner.end()
            self._sharp = (pixmap, QPointF(self.offset), self.scale)
            self.sharp_s = time.perf_counter() - begin
        painter.drawPixmap(0, 0, self._sharp[0])

    def _scaled_frame(self, painter: QPainter, canvas: QColor) -> None:
        assert self._sharp is not None
        painter.fillRect(self.viewport().rect(), canvas)
        if self.minimap.pixmap is not None:
            pixmap, bounds = self.minimap.pixmap, self.minimap.bounds
            target = QRectF(self.to_view(bounds.topLeft()), self.to_view(bounds.bottomRight()))
            self._draw_part(painter, pixmap, target)
        pixmap, offset, scale = self._sharp
        size = self.viewport().size() / scale
        area = QRectF(offset.x(), offset.y(), size.width(), size.height())
        target = QRectF(self.to_view(area.topLeft()), self.to_view(area.bottomRight()))
        self._draw_part(painter, pixmap, target)

    def _draw_part(self, painter: QPainter, pixmap: QPixmap, target: QRectF) -> None:
        """Draws only the part in view: scaling a whole picture would cost as much as painting."""
        shown = target.intersected(QRectF(self.viewport().rect()))
        if shown.isEmpty():
            return
        x, y = pixmap.width() / target.width(), pixmap.height() / target.height()
        source = QRectF(
            (shown.left() - target.left()) * x,
            (shown.top() - target.top()) * y,
            shown.width() * x,
            shown.height() * y,
        )
        painter.drawPixmap(shown, pixmap, source)

    def image(self, area: QRectF, scale: float) -> QImage:
        """Paint any part of the scene into an image, for export.

        Args:
            area: The part of the scene.
            scale: Pixels of one scene unit.

        Raises:
            MemoryError: The image would be too large.
        """
        assert self.picture is not None and self._theme is not None
        image = QImage(
            max(1, round(area.width() * scale)),
            max(1, round(area.height() * scale)),
            QImage.Format.Format_ARGB32_Premultiplied,
        )
        if image.isNull():
            raise MemoryError("the picture is too large")
        painter = QPainter(image)
        painter.scale(scale, scale)
        painter.translate(-area.topLeft())
        paint(painter, self.picture, self.marks, area, scale, self._theme)
        painter.end()
        return image
