"""Shows the page of shortcuts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from PySide6.QtWidgets import QDialog, QLabel, QTextBrowser, QVBoxLayout, QWidget

from collage_gui.actions import MENUS

MOUSE_AND_KEYS = (
    ("Wheel", "Zoom at the pointer; with Shift scroll sideways; with two fingers pan"),
    ("Drag", "Pan"),
    ("Shift+drag", "Select what the rectangle touches"),
    ("Ctrl+drag", "Zoom to an area"),
    ("Shift+click", "Add to the selection"),
    ("Double click", "Open a collapsed group, or select the partition"),
    ("Arrows", "Walk along edges"),
    ("Enter, Backspace", "Into a group, out of it"),
)


class ShortcutsPage(QDialog):
    """The page that lists every shortcut, by menu."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.setObjectName("shortcutsPage")
        self.setWindowTitle("Shortcuts")
        title = QLabel("Shortcuts")
        title.setProperty("title", True)
        text = QTextBrowser()
        text.setObjectName("shortcutsText")
        text.setAccessibleName("List of shortcuts")
        text.setFrameShape(QTextBrowser.Shape.NoFrame)
        text.setHtml(shortcuts_html())
        box = QVBoxLayout(self)
        box.setContentsMargins(20, 18, 20, 12)
        box.addWidget(title)
        box.addWidget(text)
        self.resize(680, 640)


def shortcuts_html() -> str:
    """Return gestures and shortcuts as an HTML table."""
    rows = _section("In the graph", MOUSE_AND_KEYS)
    for menu in MENUS:
        rows += _section(
            menu.title,
            [
                (
                    ", ".join(spec.keys),
                    spec.title.rstrip("…") + (f" · {spec.tip}" if spec.tip else ""),
                )
                for spec in menu.entries
                if spec is not None and spec.keys
            ],
        )
    return f"<table cellspacing='0' cellpadding='3' width='100%'>{''.join(rows)}</table>"


def _section(name: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    lines = [
        f"<tr><td width='190'>{escape(keys)}</td><td>{escape(what)}</td></tr>"
        for keys, what in rows
    ]
    heading = (
        f"<tr><td colspan='2'><br><span style='font-weight:600'>{escape(name)}</span></td></tr>"
    )
    return [heading, *lines] if lines else []
