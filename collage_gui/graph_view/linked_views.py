"""Has two views of one graph pan and zoom together."""

from __future__ import annotations

from PySide6.QtCore import QObject

from collage_gui.graph_view.canvas import Canvas


class LinkedViews(QObject):
    """Keeps two views at the same scale and place, whichever of them is moved."""

    def __init__(self, one: Canvas, other: Canvas, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._one, self._other = one, other
        self._following = False
        self.active = False
        """Whether a move of one view moves the other."""
        one.moved.connect(lambda: self._follow(other, one))
        other.moved.connect(lambda: self._follow(one, other))

    def activate(self, active: bool) -> None:
        """Link the views, the second at the place of the first; or let them go."""
        self.active = active
        if active:
            self._follow(self._other, self._one)

    def _follow(self, view: Canvas, leader: Canvas) -> None:
        if not self.active or self._following:
            return
        self._following = True
        view.go_where(leader)
        self._following = False
