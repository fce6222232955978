"""The graph on the screen: zoom, pan, selection, keyboard walk, gestures, overlays.

While a gesture lasts and the sharp picture is slow to paint, frames show the last sharp picture
moved and scaled (over the cached overview where it does not reach); the sharp one follows as
soon as the gesture rests.
"""

from __future__ import annotations

import time

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, QTimer, Signal
from PySide6.QtGui import (
    QColor,
    QImage,
    QKeyEvent,
    QMouseEvent,
    QPainter,
    QPaintEvent,
    QPixmap,
    QWheelEvent,
)
from PySide6.QtWidgets import QAbstractScrollArea, QMenu, QSizePolicy, QToolTip, QWidget

from collage_engine.drawing.looks import LegendEntry
from collage_gui.graph_view.gestures import Gesture, Pan, RubberBand, ZoomArea
from collage_gui.graph_view.legend import Legend
from collage_gui.graph_view.minimap import Minimap
from collage_gui.graph_view.painter import Style, paint
from collage_gui.graph_view.picture import Marks, Picture

SLOWEST_DIRECT_S = 0.018
"""Sharp pictures slower than this are replaced by a scaled one while a gesture lasts."""
SHARP_AFTER_MS = 60
LARGEST_SCALE, SMALLEST_SCALE = 4.0, 0.002


class GraphView(QAbstractScrollArea):
    """Shows a ``Picture``. Boxes are numbers of the scene; who listens translates."""

    boxes_selected = Signal(object, object)
    """(set of boxes, primary box or None), chosen by the user."""
    box_opened = Signal(int)
    """Double click or Enter on a box."""
    left_group = Signal()
    """Backspace."""
    menu_wanted = Signal(object, object)
    """(global position, box or None)."""
    legend_chosen = Signal(object)
    moved = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setObjectName("graphView")
        self.setAccessibleName("Graph")
        self.setAccessibleDescription(
            "The dataflow graph. The Outline panel lists the same operators for screen readers."
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
            (shown.left() - target.left()) * x, (shown.top() - target.top()) * y,
            shown.width() * x, shown.height() * y,
        )  # fmt: skip
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
            max(1, round(area.width() * scale)), max(1, round(area.height() * scale)),
            QImage.Format.Format_ARGB32_Premultiplied,
        )  # fmt: skip
        if image.isNull():
            raise MemoryError("the picture is too large")
        painter = QPainter(image)
        painter.scale(scale, scale)
        painter.translate(-area.topLeft())
        paint(painter, self.picture, self.marks, area, scale, self._style)
        painter.end()
        return image

    # -- selecting ---------------------------------------------------------------------

    def click(self, point: QPointF, extend: bool) -> None:
        if self.picture is None:
            return
        where = self.to_scene(point)
        box = self.picture.box_at(where)
        if box is None:
            jump = self.picture.jump_at(where)
            if jump is not None:
                self._jump(jump, point)
            elif not extend:
                self.boxes_selected.emit(set(), None)
            return
        if extend:
            chosen = set(self.marks.selected) ^ {box}
            self.boxes_selected.emit(chosen, box if box in chosen else None)
        else:
            self.boxes_selected.emit({box}, box)

    def select_area(self, area: QRectF, extend: bool) -> None:
        if self.picture is None:
            return
        found = {int(box) for box in self.picture.boxes_in(area)}
        kinds = self.picture.scene.display.boxes
        found = {box for box in found if kinds[box].kind in ("operator", "group")}
        if extend:
            found |= self.marks.selected
        self.boxes_selected.emit(found, min(found) if found else None)

    def _jump(self, jump: tuple[int, str], point: QPointF) -> None:
        """Follow a cut edge; with several ends, ask which."""
        assert self.picture is not None
        box, side = jump
        scene = self.picture.scene
        others = (scene.jumps_out if side == "out" else scene.jumps_in)[box]
        if len(others) == 1:
            self.go_to(others[0])
            return
        menu = QMenu(self)
        for other in others[:40]:
            action = menu.addAction(scene.display.boxes[other].label)
            action.triggered.connect(lambda _=False, o=other: self.go_to(o))
        menu.popup(self.viewport().mapToGlobal(point.toPoint()))

    def go_to(self, box: int) -> None:
        self.boxes_selected.emit({box}, box)
        self.ensure_visible(box)

    def walk(self, direction: str) -> None:
        """To the producer, consumer or neighbour of the primary box."""
        picture = self.picture
        if picture is None or not len(picture.rectangles):
            return
        at = self.marks.primary
        if at is None:
            self.go_to(0)
            return
        edges = picture.scene.display.edges
        here = picture.rectangles[at].center()
        if direction == "back":
            near = [a for a, b in edges if b == at]
        elif direction == "forward":
            near = [b for a, b in edges if a == at]
        else:
            sideways = picture.scene.orientation != "horizontal"
            near = []
            for box in picture.boxes_in(picture.rectangles[at].adjusted(-900, -900, 900, 900)):
                other = picture.rectangles[int(box)].center() - here
                across, along = (other.x(), other.y()) if sideways else (other.y(), other.x())
                if abs(along) < 30 and (across < -1 if direction == "left" else across > 1):
                    near.append(int(box))
        if near:
            self.go_to(
                min(near, key=lambda b: (picture.rectangles[b].center() - here).manhattanLength())
            )

    # -- events ------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        if event.button() == Qt.MouseButton.RightButton:
            box = self.picture.box_at(self.to_scene(event.position())) if self.picture else None
            if box is not None and box not in self.marks.selected:
                self.boxes_selected.emit({box}, box)
            self.menu_wanted.emit(event.globalPosition().toPoint(), box)
            return
        kind: type[Gesture] = Pan
        if event.button() == Qt.MouseButton.LeftButton:
            if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
                kind = RubberBand
            elif event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                kind = ZoomArea
        self._gesture = kind(self, event.position())
        if kind is not Pan:
            self.viewport().setCursor(self._gesture.cursor)

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        if self._gesture is not None:
            self._gesture.move(event.position())
            if self._gesture.moved:
                self.viewport().setCursor(self._gesture.cursor)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        gesture, self._gesture = self._gesture, None
        self.viewport().unsetCursor()
        if gesture is not None:
            extend = bool(
                event.modifiers()
                & (Qt.KeyboardModifier.ShiftModifier | Qt.KeyboardModifier.ControlModifier)
            )
            gesture.end(event.position(), extend)
            self.viewport().update()

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        box = self.picture.box_at(self.to_scene(event.position())) if self.picture else None
        if box is not None:
            self.box_opened.emit(box)

    def wheelEvent(self, event: QWheelEvent) -> None:
        pixels = event.pixelDelta()
        steps = event.angleDelta()
        control = event.modifiers() & Qt.KeyboardModifier.ControlModifier
        if not pixels.isNull() and not control:
            self.pan(QPointF(pixels))
        elif event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
            self.pan(QPointF(steps.y() or steps.x(), 0))
        else:
            self.zoom(1.0016 ** (steps.y() or steps.x()), event.position())
        event.accept()

    def viewportEvent(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.NativeGesture and (
            event.gestureType() == Qt.NativeGestureType.ZoomNativeGesture  # type: ignore[attr-defined]
        ):
            self.zoom(1.0 + event.value(), event.position())  # type: ignore[attr-defined]
            return True
        if event.type() == QEvent.Type.ToolTip and self.picture is not None:
            where = self.to_scene(QPointF(event.pos()))  # type: ignore[attr-defined]
            box = self.picture.box_at(where)
            text = self.tip(box) if box is not None else self._jump_tip(where)
            QToolTip.showText(event.globalPos(), text, self.viewport())  # type: ignore[attr-defined]
            return True
        return super().viewportEvent(event)

    def tip(self, box: int) -> str:
        assert self.picture is not None
        look = self.picture.looks[box]
        item = self.picture.scene.display.boxes[box]
        lines = [item.label, f"{look.title} · {look.detail}"]
        if look.value:
            lines.append(look.value)
        return "\n".join(lines)

    def _jump_tip(self, where: QPointF) -> str:
        assert self.picture is not None
        jump = self.picture.jump_at(where)
        if jump is None:
            return ""
        scene = self.picture.scene
        others = (scene.jumps_out if jump[1] == "out" else scene.jumps_in)[jump[0]]
        names = "\n".join(scene.display.boxes[o].label for o in others[:12])
        more = f"\nand {len(others) - 12} more" if len(others) > 12 else ""
        return ("Leads to\n" if jump[1] == "out" else "Comes from\n") + names + more

    def keyPressEvent(self, event: QKeyEvent) -> None:
        sideways = self.picture is not None and self.picture.scene.orientation == "horizontal"
        keys = {
            Qt.Key.Key_Up: "left" if sideways else "back",
            Qt.Key.Key_Down: "right" if sideways else "forward",
            Qt.Key.Key_Left: "back" if sideways else "left",
            Qt.Key.Key_Right: "forward" if sideways else "right",
        }
        key = Qt.Key(event.key())
        plain = event.modifiers() in (
            Qt.KeyboardModifier.NoModifier,
            Qt.KeyboardModifier.KeypadModifier,
        )
        if key in keys and plain:
            self.walk(keys[key])
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter) and self.marks.primary is not None:
            self.box_opened.emit(self.marks.primary)
        elif key == Qt.Key.Key_Backspace:
            self.left_group.emit()
        elif key == Qt.Key.Key_Escape:
            self.boxes_selected.emit(set(), None)
        else:
            super().keyPressEvent(event)


def isolate(picture: Picture, entry: LegendEntry | None) -> frozenset[int]:
    """The boxes to dim when one entry of the legend is isolated."""
    if entry is None:
        return frozenset()
    return frozenset(
        box
        for box, look in enumerate(picture.looks)
        if look.kind in ("operator", "group") and look.band != entry.key
    )
