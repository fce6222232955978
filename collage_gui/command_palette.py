"""Shows the command palette, which finds every action, key and gesture by name."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction, QKeyEvent
from PySide6.QtWidgets import (
    QApplication,
    QDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_gui.actions import ACTIONS, MENU_OF
from collage_gui.widgets import lay_out, named

LIST_KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Up, Qt.Key.Key_Return, Qt.Key.Key_Enter)
GESTURES = {
    "Wheel": "Zoom at the pointer; with Shift scroll sideways; with two fingers pan",
    "Drag": "Pan",
    "Shift+drag": "Select what the rectangle touches",
    "Ctrl+drag": "Zoom to an area",
    "Shift+click": "Add to the selection",
    "Double click": "Open a collapsed group, or select the partition",
    "Arrows": "Walk along edges",
    "Enter, Backspace": "Into a group, out of it",
}
"""What mouse and keys do in the graph; the list ends with it."""


class CommandPalette(QDialog):
    """A list of actions that narrows while the user types: every word must occur."""

    def __init__(self, actions: dict[str, QAction], parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setObjectName("commandPalette")
        self.actions_by_id = actions
        self.text = QLineEdit(placeholderText="What do you want to do?")
        named(self.text, "paletteText", "Command")
        self.list = named(QListWidget(), "paletteList", "Actions, keys and gestures")
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        lay_out(QVBoxLayout(self), self.text, self.list, edge=1)
        self.text.textChanged.connect(self.refresh)
        self.text.installEventFilter(self)
        self.list.itemActivated.connect(self.choose)
        self.list.itemClicked.connect(self.choose)
        self.resize(560, 420)
        self.refresh()

    def open_over(self, window: QWidget) -> None:
        """Show every action over a window."""
        self.text.clear()
        self.refresh()
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - self.width()) // 2, corner.y() + 90)
        self.show()
        self.text.setFocus()

    def refresh(self) -> None:
        """List the actions that fit the text; those whose title begins with it come first."""
        self.list.clear()
        query = self.text.text().lower()
        specs = [spec for spec in ACTIONS if spec.id != "palette"]
        for spec in sorted(specs, key=lambda spec: not spec.title.lower().startswith(query)):
            menus = filter(None, [MENU_OF[spec.id], spec.submenu])
            text = f"{' › '.join(menus)}: {spec.title.rstrip('…')}"
            self._list(text, ", ".join(spec.keys), self.actions_by_id[spec.id])
        for keys, what in GESTURES.items():
            self._list(f"In the graph: {what}", keys, None)
        for row in reversed(range(self.list.count())):
            if self.list.item(row).flags():
                self.list.setCurrentRow(row)

    def _list(self, text: str, keys: str, action: QAction | None) -> None:
        if not all(word in text.lower() for word in self.text.text().lower().split()):
            return
        item = QListWidgetItem(f"{text}    {keys}".rstrip())
        item.setData(Qt.ItemDataRole.UserRole, action)
        item.setToolTip(action.toolTip() if action is not None else "")
        if action is None or not action.isEnabled():
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        self.list.addItem(item)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Give the list the arrow keys and Enter while the text has the focus."""
        pressed = event.key() if isinstance(event, QKeyEvent) else None
        if pressed in LIST_KEYS and event.type() == QEvent.Type.KeyPress:
            return QApplication.sendEvent(self.list, event)
        return super().eventFilter(watched, event)

    def choose(self, item: QListWidgetItem) -> None:
        """Carries out an action that can be carried out now."""
        if item.flags():
            self.hide()
            item.data(Qt.ItemDataRole.UserRole).trigger()
