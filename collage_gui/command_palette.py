"""Shows the command palette, which finds every action, key and gesture by name."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QAction, QKeyEvent
from PySide6.QtWidgets import (
    QDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_gui.actions import ACTIONS, MENU_OF
from collage_gui.widgets import lay_out, named

_PRESS = QEvent.Type.KeyPress
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


def score(query: str, title: str) -> int | None:
    """Returns how well a title fits a query.

    Args:
        query: What the user typed.
        title: Title and menu of an action.

    Returns:
        A number, higher for a better fit: the whole query at the start of a word, then inside
        one, then its letters in order with a bonus for starts of words and neighbours. None
        where a letter is missing.
    """
    text, at, total, last = title.lower(), 0, 0, -2
    whole = text.find(query.lower())
    if whole >= 0:
        # Written out as typed beats letters strewn about; at the start of a word beats inside.
        return (
            10_000 - whole * 10 - len(title) + (500 if whole == 0 or text[whole - 1] == " " else 0)
        )
    for letter in query.lower().replace(" ", ""):
        at = text.find(letter, at)
        if at < 0:
            return None
        total += 4 if at == last + 1 else 0
        total += 3 if at == 0 or text[at - 1] in " :-" else 0
        last = at
        at += 1
    return total * 10 - len(title)


class CommandPalette(QDialog):
    """A list of actions that narrows while the user types."""

    def __init__(self, actions: dict[str, QAction], parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setObjectName("commandPalette")
        self.actions_by_id = actions
        self.text = QLineEdit(placeholderText="What do you want to do?")
        named(self.text, "paletteText", "Command")
        self.list = named(QListWidget(), "paletteList", "Actions, keys and gestures")
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        lay_out(QVBoxLayout(self), self.text, self.list, margins=(8, 8, 8, 8))
        self.text.textChanged.connect(self.refresh)
        self.text.installEventFilter(self)
        self.list.itemActivated.connect(lambda _: self.choose())
        self.list.itemClicked.connect(lambda _: self.choose())
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
        """List the actions that fit the text, the best first."""
        self.list.clear()
        query = self.text.text()
        fitting = []
        for number, spec in enumerate(ACTIONS):
            fits = score(query, f"{spec.title} {MENU_OF[spec.id]}") if query else -number
            if fits is not None and spec.id in self.actions_by_id and spec.id != "palette":
                fitting.append((fits, number, spec))
        for _, _, spec in sorted(fitting, key=lambda each: (-each[0], each[1])):
            text = f"{MENU_OF[spec.id]}: {spec.title.rstrip('…')}"
            self._list(text, ", ".join(spec.keys), self.actions_by_id[spec.id])
        for keys, what in GESTURES.items():
            if query.lower() in what.lower():
                self._list(f"In the graph: {what}", keys, None)
        for row in range(self.list.count()):
            if self.list.item(row).flags():
                self.list.setCurrentRow(row)
                break

    def _list(self, text: str, keys: str, action: QAction | None) -> None:
        item = QListWidgetItem(f"{text}    {keys}".rstrip())
        item.setData(Qt.ItemDataRole.UserRole, action)
        item.setToolTip(action.toolTip() if action is not None else "")
        if action is None or not action.isEnabled():
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        self.list.addItem(item)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Lets the arrow keys and Enter act on the list while the text has the focus."""
        if watched is self.text and isinstance(event, QKeyEvent) and event.type() == _PRESS:
            step = {Qt.Key.Key_Down: 1, Qt.Key.Key_Up: -1}.get(Qt.Key(event.key()))
            if step:
                count = self.list.count()
                row = self.list.currentRow() + step
                while 0 <= row < count and not self.list.item(row).flags():
                    row += step
                if 0 <= row < count:
                    self.list.setCurrentRow(row)
                return True
            if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
                self.choose()
                return True
        return super().eventFilter(watched, event)

    def choose(self) -> None:
        """Carries out the current action."""
        item = self.list.currentItem()
        self.hide()
        if item is not None and item.flags():
            item.data(Qt.ItemDataRole.UserRole).trigger()
