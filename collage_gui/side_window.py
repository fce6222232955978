"""Shows something of a document in a window of its own that is opened and closed at will."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt
from PySide6.QtWidgets import QDialog, QVBoxLayout, QWidget

from collage_gui.widgets import lay_out


class SideWindow(QDialog):
    """Holds one widget beside the graph and blocks nothing; goes with the widget it belongs to."""

    def __init__(self, title: str, content: QWidget, size: QSize, owner: QWidget) -> None:
        super().__init__(owner, Qt.WindowType.Tool)
        self._owner = owner
        self.setWindowTitle(title)
        self.setObjectName(f"{content.objectName()}Window")
        lay_out(QVBoxLayout(self), content, margins=(0, 0, 0, 0))
        self.resize(size)
        owner.installEventFilter(self)

    def open_at(self, corner: QPoint) -> None:
        """Open it within the main window, or bring it to the front.

        Args:
            corner: Where its upper left corner is, in the coordinates of its owner.
        """
        if not self.isVisible():
            window = self._owner.window()
            self.resize(self.size().boundedTo(window.size()))
            last = window.mapToGlobal(window.rect().bottomRight())
            last -= QPoint(self.width(), self.height())
            wanted = self._owner.mapToGlobal(corner)
            self.move(min(wanted.x(), last.x()), min(wanted.y(), last.y()))
        self.show()
        self.raise_()
        self.activateWindow()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Closes as another document comes to the front."""
        if watched is self._owner and event.type() == QEvent.Type.Hide:
            self.hide()
        return False
