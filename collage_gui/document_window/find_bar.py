"""Finds operators by a text in their names, operators and shapes."""

from __future__ import annotations

from collections.abc import Iterator

from PySide6.QtCore import Qt, QTimer, Signal
from PySide6.QtGui import QKeyEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QLineEdit

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.wording.amounts import node_shapes
from collage_gui.document.document import Document
from collage_gui.theme import INSTANT_MS, LINE_LETTERS
from collage_gui.widgets import lay_out, letters_px, named, push_button, text_label, tool_button


def find_operators(graph: OperatorGraph, text: str) -> list[int]:
    """Find nodes by name, operator or shape.

    Args:
        graph: The graph.
        text: What to find, in upper or lower case; nothing finds nothing.

    Returns:
        The first operator of each node, ascending.
    """
    if not text:
        return []

    def lines(operator: int) -> Iterator[str]:
        call = graph.calls[operator]
        names = call.onnx_nodes or (call.name,)
        yield from (*names, graph.titles[operator], call.op, node_shapes(call))

    return [
        node[0]
        for node in graph.nodes
        if any(text.lower() in line.lower() for operator in node for line in lines(operator))
    ]


LONGEST_COUNT = "9999 of 9999"
"""The longest usual text of the count: there is always room for it."""


class FindBar(QFrame):
    """The line above the graph; Enter and Shift+Enter step through results, Escape closes."""

    results = Signal(object)
    """A signal with the list of the operator numbers that were found."""
    stepped = Signal(int)
    """The operator number of the occurrence that was stepped to."""
    closed = Signal()

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.setProperty("banner", "info")
        self.setObjectName("findBar")
        self._document = document
        self.found: list[int] = []
        self.at = -1
        self._wait = QTimer(self, interval=INSTANT_MS, singleShot=True)
        self._wait.timeout.connect(self.search)
        self.text = QLineEdit(placeholderText="Name, operator or shape", clearButtonEnabled=True)
        named(self.text, "findText", "Find in the graph")
        self.text.setMinimumWidth(letters_px(self.text, LINE_LETTERS // 2))
        self.text.textChanged.connect(lambda _: self._wait.start())
        tip = "Previous (Shift+Enter)"
        self.before = tool_button("↑", "", lambda: self.step(-1), "Previous result", tip)
        self.after = tool_button("↓", "", lambda: self.step(1), "Next result", "Next (Enter)")
        self.count = text_label(name="findCount", wraps=False)
        # Nothing beside it moves while somebody steps through results.
        self.count.setMinimumWidth(self.count.fontMetrics().horizontalAdvance(LONGEST_COUNT))
        self.all = push_button(
            "Select all", "findSelectAll", lambda: document.selection.select(self.found)
        )
        self.close_button = tool_button("✕", "", self.dismiss, "Close")
        parts = (self.text, self.before, self.after, self.count, self.all, None)
        lay_out(QHBoxLayout(self), *parts, self.close_button, edge=1)
        self.hide()

    def open(self) -> None:
        """Show the bar and type into it."""
        self.show()
        self.text.setFocus()
        self.text.selectAll()

    def dismiss(self) -> None:
        """Hide the bar and its results."""
        self.hide()
        self.results.emit([])
        self.closed.emit()

    def search(self) -> None:
        """Find the text now."""
        self._wait.stop()
        self.at = -1
        self.found = find_operators(self._document.operators, self.text.text())
        self.count.setText(self._count_text())
        self.results.emit(self.found)

    def step(self, by: int) -> None:
        """Goes to the next result, or with -1 to the previous one."""
        if self._wait.isActive():
            self.search()
        if self.found:
            self.at = (self.at + by) % len(self.found) if self.at >= 0 else (0 if by > 0 else -1)
            self.at %= len(self.found)
            self.count.setText(self._count_text())
            self.stepped.emit(self.found[self.at])

    def _count_text(self) -> str:
        if not self.text.text():
            return ""
        if not self.found:
            return "nothing found"
        return f"{self.at + 1} of {len(self.found)}" if self.at >= 0 else f"{len(self.found)} found"

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Step with Enter and Shift+Enter, and close with Escape."""
        if event.key() == Qt.Key.Key_Escape:
            self.dismiss()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            back = event.modifiers() & Qt.KeyboardModifier.ShiftModifier
            self.step(-1 if back else 1)
        else:
            super().keyPressEvent(event)
