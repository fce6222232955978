"""Shows the whole graph in a corner, with the part that is in view."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QMouseEvent, QPainter, QPaintEvent, QPen, QPixmap
from PySide6.QtWidgets import QWidget

from collage_gui.graph_view.painter import Painting, PaintTheme
from collage_gui.graph_view.picture import Marks, Picture

LARGEST = QSize(216, 150)
"""Pixels of the minimap at most; chosen."""


class Minimap(QWidget):
    """Caches its picture; only the rectangle is painted anew while the view moves."""

    def __init__(
        self,
        parent: QWidget,
        visible_area: Callable[[], QRectF],
        centre_on: Callable[[QPointF], None],
    ) -> None:
        """Make the minimap of a view.

        Args:
            parent: The view.
            visible_area: Gives the area of the scene that is in view.
            centre_on: Shows a point of the scene in the middle of the view.
        """
        super().__init__(parent)
        self._visible_area, self._centre_on = visible_area, centre_on
        self._border = self._focus = ""
        self.pixmap: QPixmap | None = None
        """The whole graph; None without one."""
        self.bounds = QRectF()
        """What the pixmap shows, in scene units."""
        self.setObjectName("minimap")
        self.setAccessibleName("Minimap")
        self.setToolTip("The whole graph. Drag to move the view.")
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.hide()

    def refresh(self, picture: Picture | None, theme: PaintTheme) -> None:
        """Paint the cached picture anew: after a layout, or when colours changed."""
        if picture is None or not len(picture.rectangles):
            self.pixmap = None
            self.hide()
            return
        self.bounds = picture.bounds
        size = self.bounds.size().toSize()
        size.scale(LARGEST, Qt.AspectRatioMode.KeepAspectRatio)
        size = size.expandedTo(QSize(24, 24))
        ratio = self.devicePixelRatioF()
        pixmap = QPixmap(size * ratio)
        pixmap.setDevicePixelRatio(ratio)
        pixmap.fill(QColor(theme.colours.canvas))
        painter = QPainter(pixmap)
        scale_x = size.width() / self.bounds.width()
        scale_y = size.height() / self.bounds.height()
        painter.scale(scale_x, scale_y)
        painter.translate(-self.bounds.topLeft())
        scale = min(scale_x, scale_y, 0.1)
        Painting(painter, picture, Marks(), self.bounds, scale, theme).paint(labels=False)
        painter.end()
        self.pixmap = pixmap
        self._border = theme.colours.border
        self._focus = theme.colours.focus
        self.resize(size)
        self.update()

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the cached picture and the rectangle of what is in view."""
        painter = QPainter(self)
        if self.pixmap is None:
            return
        painter.drawPixmap(0, 0, self.pixmap)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        visible = self._visible_area().intersected(self.bounds)
        x = self.width() / self.bounds.width()
        y = self.height() / self.bounds.height()
        shown = QRectF(
            (visible.left() - self.bounds.left()) * x,
            (visible.top() - self.bounds.top()) * y,
            visible.width() * x,
            visible.height() * y,
        )
        painter.setPen(QPen(QColor(self._border), 1))
        painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))
        painter.setPen(QPen(QColor(self._focus), 1.5))
        painter.drawRect(shown.adjusted(1, 1, -1, -1))

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Move the view to the point."""
        self._go(event.position())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Move the view along with the pointer."""
        if event.buttons() & Qt.MouseButton.LeftButton:
            self._go(event.position())

    def _go(self, point: QPointF) -> None:
        self._centre_on(
            QPointF(
                self.bounds.left() + point.x() / self.width() * self.bounds.width(),
                self.bounds.top() + point.y() / self.height() * self.bounds.height(),
            )
        )
