"""The graph on the screen: selecting, walking along edges, mouse and keyboard."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import (
    QKeyEvent,
    QMouseEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QMenu, QToolTip

from collage_engine.drawing.looks import LegendEntry
from collage_gui.graph_view.canvas import Canvas
from collage_gui.graph_view.gestures import Gesture, Pan, RubberBand, ZoomArea
from collage_gui.graph_view.picture import Picture


class GraphView(Canvas):
    """Shows a ``Picture``. Boxes are numbers of the scene; who listens translates."""

    boxes_selected = Signal(object, object)
    """(set of boxes, primary box or None), chosen by the user."""
    box_opened = Signal(int)
    """Double click or Enter on a box."""
    left_group = Signal()
    """Backspace."""
    menu_wanted = Signal(object, object)
    """(global position, box or None)."""

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
        if look.note:
            lines.append(look.note)
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
