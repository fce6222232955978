"""Zooming, panning and painting of the graph; selecting and events are the view's.

While a gesture lasts and the sharp picture is slow to paint, frames show the last sharp picture
moved and scaled (over the cached overview where it does not reach); the sharp one follows as
soon as the gesture rests.
"""

from __future__ import annotations

import time

from PySide6.QtCore import QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QImage,
    QPainter,
    QPaintEvent,
    QPixmap,
)
from PySide6.QtWidgets import QAbstractScrollArea, QSizePolicy, QWidget

from collage_gui.graph_view.gestures import Gesture
from collage_gui.graph_view.legend import Legend
from collage_gui.graph_view.minimap import Minimap
from collage_gui.graph_view.painter import Style, paint
from collage_gui.graph_view.picture import Marks, Picture

SLOWEST_DIRECT_S = 0.018
"""Sharp pictures slower than this are replaced by a scaled one while a gesture lasts."""
SHARP_AFTER_MS = 60
LARGEST_SCALE, SMALLEST_SCALE = 4.0, 0.002


class Canvas(QAbstractScrollArea):
    """Shows a ``Picture`` at a scale and place."""

    legend_chosen = Signal(object)
    moved = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("graphView")
        self.setAccessibleName("Graph")
        self.setAccessibleDescription(
            "The dataflow graph. The Model tab lists the same operators for screen readers."
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
        self.frame_s = 0.0
        """How long the last frame took."""
        self.sharp_s = 0.0
        self._style: Style | None = None
        self._gesture: Gesture | None = None
        self._fit_next = True
        self._hold = False
        self._sharp: tuple[QPixmap, QPointF, float] | None = None
        self._overview: tuple[QPixmap, QRectF] | None = None
        self._rest = QTimer(self, interval=SHARP_AFTER_MS, singleShot=True)
        self._rest.timeout.connect(self._sharpen)
        self._prepare = QTimer(self, interval=120, singleShot=True)
        self._prepare.timeout.connect(self._make_overview)
        self.minimap = Minimap(self)
        self.minimap_wanted = True
        self.legend = Legend(self)
        self.legend.isolated.connect(self.legend_chosen)

    # -- content -----------------------------------------------------------------------

    def set_style(self, style: Style) -> None:
        self._style = style
        self.recoloured()

    def show_picture(self, picture: Picture | None, keep_view: bool = False) -> None:
        """A new layout. The view is fitted unless it is to be kept."""
        self.picture = picture
        self.marks = Marks()
        self._fit_next = not keep_view
        self.recoloured()
        if not keep_view:
            self.fit()

    def recoloured(self) -> None:
        """Colours changed: places and view stay."""
        self._sharp = self._overview = None
        if self._style is not None:
            self.minimap.refresh(self.picture, self._style)
            entries = self.picture.legend if self.picture else []
            self.legend.show_entries(entries, self._style)
        self._place_overlays()
        self.viewport().update()

    def set_marks(self, marks: Marks) -> None:
        self.marks = marks
        self._sharp = None
        self.viewport().update()

    # -- geometry ----------------------------------------------------------------------

    def visible_area(self) -> QRectF:
        size = self.viewport().size()
        return QRectF(
            self.offset.x(), self.offset.y(), size.width() / self.scale, size.height() / self.scale
        )

    def to_scene(self, what):
        if isinstance(what, QRectF):
            return QRectF(self.to_scene(what.topLeft()), self.to_scene(what.bottomRight()))
        return QPointF(
            self.offset.x() + what.x() / self.scale, self.offset.y() + what.y() / self.scale
        )

    def to_view(self, point: QPointF) -> QPointF:
        return (point - self.offset) * self.scale

    def fit(self) -> None:
        """The whole graph; one that would be too small is shown from its beginning."""
        if self.picture is not None:
            self.zoom_to(self.picture.bounds, largest=1.15)
            self._fit_next = True

    def zoom_to(self, area: QRectF, largest: float = 1.6) -> None:
        size = self.viewport().size()
        if area.isEmpty() or size.isEmpty():
            return
        scale = min(size.width() / area.width(), size.height() / area.height(), largest)
        self.scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, scale))
        self._fit_next = False
        self.centre_on(area.center())

    def centre_on(self, point: QPointF) -> None:
        size = self.viewport().size()
        self.offset = point - QPointF(size.width(), size.height()) / (2 * self.scale)
        self._changed()

    def zoom(self, factor: float, at: QPointF | None = None) -> None:
        """Zoom so that the scene point under ``at`` (viewport pixels) stays there."""
        at = at if at is not None else QPointF(self.viewport().rect().center())
        anchor = self.to_scene(at)
        self.scale = min(LARGEST_SCALE, max(SMALLEST_SCALE, self.scale * factor))
        self.offset = anchor - at / self.scale
        self._fit_next = False
        self._changed(gesture=True)

    def pan(self, delta: QPointF) -> None:
        self.offset -= delta / self.scale
        self._fit_next = False
        self._changed(gesture=True)

    def zoom_to_boxes(self, boxes) -> None:
        if self.picture is None or not boxes:
            return
        area = QRectF()
        for box in boxes:
            area = area.united(self.picture.rectangles[box])
        self.zoom_to(area.adjusted(-120, -90, 120, 90), largest=1.3)

    def ensure_visible(self, box: int) -> None:
        """Move as little as needed to see a box, and zoom in when it would be too small."""
        if self.picture is None or box >= len(self.picture.rectangles):
            return
        r = self.picture.rectangles[box]
        if not self.visible_area().adjusted(20, 20, -20, -20).contains(r):
            if self.scale < 0.3:
                self.scale = 0.8
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
        area = self.viewport().rect()
        self.minimap.move(
            area.right() - self.minimap.width() - 12, area.bottom() - self.minimap.height() - 12
        )
        self.minimap.setVisible(self._minimap_useful())

    def resizeEvent(self, event) -> None:
        super().resizeEvent(event)
        self._sharp = None
        if self._fit_next:
            self.fit()
        self._place_overlays()

    # -- painting ----------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        if self._style is None:
            return
        begin = time.perf_counter()
        painter = QPainter(self.viewport())
        painter.setFont(self.font())
        canvas = QColor(self._style.colours.canvas)
        if self.picture is None:
            painter.fillRect(self.viewport().rect(), canvas)
            painter.setPen(QColor(self._style.colours.quiet))
            painter.drawText(self.viewport().rect(), Qt.AlignmentFlag.AlignCenter, self.message)
            return
        if self._hold and self._sharp is not None:
            self._scaled_frame(painter, canvas)
        else:
            self._sharp_frame(painter)
        if self._gesture is not None:
            self._gesture.paint(painter, self._style.colours.accent)
        if self.marks.stale:
            self._stale_badge(painter)
        painter.end()
        self.frame_s = time.perf_counter() - begin

    def _sharp_frame(self, painter: QPainter) -> None:
        assert self.picture is not None and self._style is not None
        key = (self.offset, self.scale)
        if self._sharp is None or (self._sharp[1], self._sharp[2]) != key:
            begin = time.perf_counter()
            ratio = self.devicePixelRatioF()
            pixmap = QPixmap(self.viewport().size() * ratio)
            pixmap.setDevicePixelRatio(ratio)
            inner = QPainter(pixmap)
            inner.scale(self.scale, self.scale)
            inner.translate(-self.offset)
            paint(inner, self.picture, self.marks, self.visible_area(), self.scale, self._style)
            inner.end()
            self._sharp = (pixmap, QPointF(self.offset), self.scale)
            self.sharp_s = time.perf_counter() - begin
            if self._overview is None and self.sharp_s > SLOWEST_DIRECT_S / 2:
                self._prepare.start()
        painter.drawPixmap(0, 0, self._sharp[0])

    def _scaled_frame(self, painter: QPainter, canvas: QColor) -> None:
        assert self._sharp is not None
        painter.fillRect(self.viewport().rect(), canvas)
        if self._overview is not None:
            pixmap, bounds = self._overview
            target = QRectF(self.to_view(bounds.topLeft()), self.to_view(bounds.bottomRight()))
            self._draw_part(painter, pixmap, target)
        pixmap, offset, scale = self._sharp
        size = self.viewport().size() / scale
        area = QRectF(offset.x(), offset.y(), size.width(), size.height())
        target = QRectF(self.to_view(area.topLeft()), self.to_view(area.bottomRight()))
        self._draw_part(painter, pixmap, target)

    def _draw_part(self, painter: QPainter, pixmap: QPixmap, target: QRectF) -> None:
        """Only the part in view: scaling up a whole picture would cost as much as painting."""
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

    def _make_overview(self) -> None:
        """The whole graph, kept for gestures; made when nothing else happens."""
        if self._overview is None and self.picture is not None and self._style is not None:
            bounds = self.picture.bounds
            size = bounds.size().toSize().scaled(1100, 800, Qt.AspectRatioMode.KeepAspectRatio)
            if size.isEmpty():
                return
            pixmap = QPixmap(size)
            inner = QPainter(pixmap)
            inner.scale(size.width() / bounds.width(), size.height() / bounds.height())
            inner.translate(-bounds.topLeft())
            paint(
                inner, self.picture, self.marks, bounds, size.width() / bounds.width(), self._style
            )
            inner.end()
            self._overview = (pixmap, bounds)

    def _stale_badge(self, painter: QPainter) -> None:
        assert self._style is not None
        c = self._style.colours
        text = "Older than the pins · press Space to search again"
        painter.setFont(self._style.sized(12, bold=True))
        width = painter.fontMetrics().horizontalAdvance(text) + 24
        box = QRectF((self.viewport().width() - width) / 2, 12, width, 28)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.setPen(QColor(c.border))
        painter.setBrush(QColor(c.warning))
        painter.drawRoundedRect(box, 14, 14)
        painter.setPen(QColor(c.warning_text))
        painter.drawText(box, Qt.AlignmentFlag.AlignCenter, text)

    def image(self, area: QRectF, scale: float) -> QImage:
        """Any part of the scene as a picture, for export."""
        assert self.picture is not None and self._style is not None
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
        paint(painter, self.picture, self.marks, area, scale, self._style)
        painter.end()
        return image
