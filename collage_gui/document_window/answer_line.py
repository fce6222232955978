"""Says over the graph how fast the shown placement is, beside what can be done with it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QFrame, QHBoxLayout

from collage_gui.document.document import Document
from collage_gui.panels.run_headline import headline
from collage_gui.widgets import ElidedLabel, action_button, lay_out, named, tool_button

AGAIN = "confirm_quickly"
"""The action that measures again, where measurements do not decide."""
BUTTONS = {AGAIN: "Measure again", "save": "Save", "artifact": "Export", "split": "Compare"}
"""The actions that belong to an answer, by id, with what their buttons are called there."""


class AnswerLine(QFrame):
    """One line, which stands there before there is an answer: the graph must not move for it."""

    def __init__(self, document: Document, actions: Mapping[str, QAction]) -> None:
        """Listens to what is shown.

        Args:
            document: The document.
            actions: The main window's actions by id.
        """
        super().__init__()
        self._document = document
        self.setObjectName("answerLine")
        self.text = named(ElidedLabel("heading"), "answer")
        self.buttons = {
            name: action_button(actions[name], title, f"{name}Answer", tool_button)
            for name, title in BUTTONS.items()
        }
        parts = ((self.text, 1), *self.buttons.values())
        lay_out(QHBoxLayout(self), *parts, edge=1)
        comparison = document.comparison
        for changed in (
            document.placement.changed,
            document.runs.changed,
            comparison.reference_changed,
            comparison.changed,
            document.execution.running_changed,
        ):
            changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the latency of what is shown now."""
        running = self._document.execution.running
        unknown = "No placement is timed yet" if running else "Run to see how fast the model can be"
        self.text.setText(headline(self._document) or unknown)
        self.buttons[AGAIN].setVisible(not self._document.comparison.is_decided())
