"""Lets the user select in the graph and walk along its edges, by mouse and keyboard."""

from __future__ import annotations

from typing import Literal

from PySide6.QtCore import QEvent, QLineF, QPoint, QPointF, QRect, QRectF, Qt, Signal
from PySide6.QtGui import (
    QContextMenuEvent,
    QKeyEvent,
    QMouseEvent,
    QWheelEvent,
)
from PySide6.QtWidgets import QApplication, QMenu, QRubberBand, QToolTip, QWidget

from collage_engine.drawing.box_styles import LegendEntry
from collage_gui.graph_view.canvas import Canvas
from collage_gui.graph_view.picture import Picture
from collage_gui.widgets import plain_tip


class GraphView(Canvas):
    """Shows a ``Picture`` and reports what the user does in it.

    Boxes are numbers of the scene; who listens to the signals knows the operators in them.
    """

    boxes_selected = Signal(object, object)
    """A signal with what the user selected: a set of boxes, and the primary box or None."""
    box_opened = Signal(int)
    """Double click or Enter on a box."""
    left_group = Signal()
    """A signal that the user wants to leave a group (Backspace)."""
    menu_wanted = Signal(object, object)
    """A signal that the user wants a menu, with the global position and the box or None."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._gesture: Literal["pan", "select", "zoom", ""] = ""
        """What the mouse does while a button is held."""
        self._start = self._last = QPointF()
        """Where the button was pressed, and where the pointer was last, in the view."""
        self._band = QRubberBand(QRubberBand.Shape.Rectangle, self)

    # -- selecting ---------------------------------------------------------------------

    def click(self, point: QPointF, extend: bool) -> None:
        """Select the box at a point of the view, or follow the jump there.

        Args:
            point: Pixels of the view.
            extend: Whether to add to the selection, or take away from it.
        """
        where = self.to_scene(point)
        box = self.picture.box_at(where)
        if box is None:
            jump = self.picture.jump_at(where)
            if jump is not None:
                self._jump(jump[0], point)
            elif not extend:
                self.boxes_selected.emit(set(), None)
            return
        if extend:
            chosen = set(self.marks.selected) ^ {box}
            self.boxes_selected.emit(chosen, box if box in chosen else None)
        else:
            self.boxes_selected.emit({box}, box)

    def select_area(self, area: QRectF, extend: bool) -> None:
        """Select the operators and groups that touch an area of the scene.

        Args:
            area: Scene units.
            extend: Whether what is selected already stays selected.
        """
        boxes = {int(box) for box in self.picture.boxes_in(area)}
        kinds = self.picture.scene.display.boxes
        boxes = {box for box in boxes if kinds[box].is_work}
        if extend:
            boxes |= self.marks.selected
        self.boxes_selected.emit(boxes, min(boxes) if boxes else None)

    def _jump(self, others: list[int], point: QPointF) -> None:
        """Follow a cut edge; with several ends, ask which."""
        if len(others) == 1:
            self.go_to(others[0])
            return
        menu = QMenu(self)
        for other in others[:40]:
            action = menu.addAction(self.picture.scene.display.boxes[other].label)
            action.triggered.connect(lambda _=False, o=other: self.go_to(o))
        menu.popup(self.mapToGlobal(point.toPoint()))

    def go_to(self, box: int) -> None:
        """Select a box and bring it into view."""
        self.boxes_selected.emit({box}, box)
        self.ensure_visible(box)

    def walk(self, direction: str) -> None:
        """Select the nearest box in a direction from the primary one.

        Args:
            direction: ``back`` to a producer, ``forward`` to a consumer, ``left`` or ``right``
                to a box of the same rank.
        """
        picture = self.picture
        if not picture.rectangles:
            return
        primary = self.marks.primary
        if primary is None:
            self.go_to(0)
            return
        edges = picture.scene.display.edges
        if direction == "back":
            near = [a for a, b in edges if b == primary]
        elif direction == "forward":
            near = [b for a, b in edges if a == primary]
        else:
            near = picture.neighbours(primary, -1 if direction == "left" else 1)
        if near:
            here = picture.rectangles[primary].center()
            self.go_to(
                min(near, key=lambda b: (picture.rectangles[b].center() - here).manhattanLength())
            )

    # -- events ------------------------------------------------------------------------

    def mousePressEvent(self, event: QMouseEvent) -> None:
        """Begins a gesture, or opens the menu of the right button."""
        self.setFocus(Qt.FocusReason.MouseFocusReason)
        if event.button() == Qt.MouseButton.RightButton:
            box = self.picture.box_at(self.to_scene(event.position()))
            if box is not None and box not in self.marks.selected:
                self.boxes_selected.emit({box}, box)
            self.menu_wanted.emit(event.globalPosition().toPoint(), box)
            return
        self._gesture = "pan"
        if event.button() == Qt.MouseButton.LeftButton:
            if event.modifiers() & Qt.KeyboardModifier.ShiftModifier:
                self._gesture = "select"
            elif event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                self._gesture = "zoom"
        self._start = self._last = event.position()

    @property
    def _dragged(self) -> bool:
        """Tells whether the pointer has moved so far that this is no click."""
        moved = (self._last - self._start).manhattanLength()
        return moved > QApplication.startDragDistance()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        """Pans, or draws the rectangle up to the pointer."""
        if self._gesture:
            before, self._last = self._last, event.position()
            if self._gesture == "pan" and self._dragged:
                self.setCursor(Qt.CursorShape.ClosedHandCursor)
                self.pan(self._last - before)
            elif self._dragged:
                self.setCursor(Qt.CursorShape.CrossCursor)
                band = QRect(self._start.toPoint(), self._last.toPoint())
                self._band.setGeometry(band.normalized())
                self._band.show()

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        """End the gesture."""
        gesture, self._gesture = self._gesture, ""
        self._last = event.position()
        self.unsetCursor()
        self._band.hide()
        corners = self.to_scene(self._start), self.to_scene(self._last)
        area = QRectF(*corners).normalized()
        if gesture and not self._dragged:
            self.click(self._last, extend=gesture != "pan")
        elif gesture == "select":
            control = event.modifiers() & Qt.KeyboardModifier.ControlModifier
            self.select_area(area, extend=bool(control))
        elif gesture == "zoom":
            self.zoom_to(area)

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        """Open the box under the pointer."""
        box = self.picture.box_at(self.to_scene(event.position()))
        if box is not None:
            self.box_opened.emit(box)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        """Open the menu of the primary box by the Menu key or Shift+F10."""
        if event.reason() != QContextMenuEvent.Reason.Keyboard:
            return  # a press of the right button has opened it
        self.menu_wanted.emit(self.below_primary(), self.marks.primary)

    def below_primary(self) -> QPoint:
        """Return where a menu opens on the screen: below the primary box, else in the middle."""
        point, box = self.rect().center(), self.marks.primary
        if box is not None:
            corner = self.to_view(self.picture.rectangles[box].bottomLeft()).toPoint()
            if self.rect().contains(corner):
                point = corner
        return self.mapToGlobal(point)

    def wheelEvent(self, event: QWheelEvent) -> None:
        """Zooms at the pointer, or pans with Shift and on touchpads."""
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

    def event(self, event: QEvent) -> bool:
        """Zooms by pinching, and shows tool tips."""
        if event.type() == QEvent.Type.NativeGesture and (
            event.gestureType() == Qt.NativeGestureType.ZoomNativeGesture  # type: ignore[attr-defined]
        ):
            self.zoom(1.0 + event.value(), event.position())  # type: ignore[attr-defined]
            return True
        if event.type() == QEvent.Type.ToolTip:
            where = self.to_scene(QPointF(event.pos()))  # type: ignore[attr-defined]
            box = self.picture.box_at(where)
            text = self.tip(box) if box is not None else self._between_tip(where)
            text = plain_tip(text)
            QToolTip.showText(event.globalPos(), text, self)  # type: ignore[attr-defined]
            return True
        return super().event(event)

    def tip(self, box: int) -> str:
        """Return the text of a box's tool tip."""
        style = self.picture.styles[box]
        item = self.picture.scene.display.boxes[box]
        lines = (item.label, f"{style.title} · {style.detail}", style.value, style.note)
        return "\n".join(filter(None, lines))

    def _between_tip(self, where: QPointF) -> str:
        """Return the text of the tool tip of a transition or of a jump."""
        for crossing in self.picture.crossings:
            if crossing.bounds.contains(where) and any(
                _distance(line, where) < 6 / min(self.scale, 1.0) for line in crossing.lines
            ):
                return crossing.transition.sentence
        jump = self.picture.jump_at(where)
        if jump is None:
            return ""
        others, leads = jump
        names = "\n".join(self.picture.scene.display.boxes[o].label for o in others[:12])
        more = f"\nand {len(others) - 12} more" if len(others) > 12 else ""
        return ("Leads to\n" if leads else "Comes from\n") + names + more

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Walk along edges, open and leave groups."""
        sideways = not self.picture.scene.upright
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


def boxes_outside(picture: Picture, entry: LegendEntry | None) -> frozenset[int]:
    """Return the boxes to dim when one entry of the legend is isolated; none without one."""
    if entry is None:
        return frozenset()
    return frozenset(
        box
        for box, style in enumerate(picture.styles)
        if style.kind not in ("input", "output") and style.entry != entry.key
    )


def _distance(line: QLineF, point: QPointF) -> float:
    """Return how far a point lies from a line segment."""
    along = line.p2() - line.p1()
    length = along.x() ** 2 + along.y() ** 2
    share = 0.0
    if length:
        share = QPointF.dotProduct(point - line.p1(), along) / length
    return QLineF(line.pointAt(max(0.0, min(1.0, share))), point).length()
