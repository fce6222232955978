"""Shows the code of a candidate: Relax, TensorIR, or the plan of a library."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import (
    QComboBox,
    QPlainTextEdit,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.wording.amounts import short_operator
from collage_gui.document.document import Document
from collage_gui.panels.tables import allow_copying
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, named, text_label

TEXTS = {"relax": "Relax", "tir": "TensorIR"}
"""The texts of a candidate by the field of the engine's answer."""
PLAN = "Steps"
"""What the list calls the library's plan, or TVM's kernels."""


class CodePage(QWidget):
    """One text at a time, of those that the candidate's toolchain gives."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("codePage")
        self.note = text_label("Select a node or a candidate to see its code.", "quiet")
        self.choice = named(QComboBox(), "codeChoice", "What is shown")
        self.choice.currentTextChanged.connect(self._show)
        self.text = named(QPlainTextEdit(readOnly=True), "codeText", "Code")
        self.text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
        self.text.setFrameShape(QPlainTextEdit.Shape.NoFrame)
        self.plan = named(QTreeWidget(), "codePlan", "The library's plan")
        self.plan.setHeaderLabels(["Step", "Algorithm", "Layout", "Post-ops"])
        allow_copying(self.plan)
        choice = (self.choice, 0, Qt.AlignmentFlag.AlignLeft)
        parts = (self.note, choice, (self.text, 1), (self.plan, 1), None)
        lay_out(QVBoxLayout(self), *parts, edge=1)
        self._texts: dict[str, str] = {}
        """What there is to show, by what the list calls it."""
        document.questions.inside_changed.connect(self.refresh)
        theme.changed.connect(self._fonts)
        self._fonts()
        self._show("")

    def _fonts(self) -> None:
        self.text.setFont(self.theme.mono())

    def refresh(self) -> None:
        """Show what the engine has answered."""
        answer = self.document.questions.inside
        if answer is None:
            return
        texts = {title: getattr(answer, key) for key, title in TEXTS.items()}
        self._texts = {title: text for title, text in texts.items() if text}
        self.plan.clear()
        for step in answer.plan:
            cells = [step[name] for name in ("op", "algorithm", "layout", "post_ops")]
            self.plan.addTopLevelItem(QTreeWidgetItem(cells))
        for at in range(self.plan.columnCount()):
            self.plan.resizeColumnToContents(at)
        before = self.choice.currentText()
        with QSignalBlocker(self.choice):
            self.choice.clear()
            self.choice.addItems([*self._texts, *[PLAN] * bool(answer.plan)])
            self.choice.setCurrentIndex(max(0, self.choice.findText(before)))
        nothing = "" if self._texts else "The toolchain gives no code."
        self.note.setText(answer.reason or nothing)
        self.note.setVisible(bool(self.note.text()))
        self._show(self.choice.currentText())

    def _show(self, title: str) -> None:
        """Show the text or the plan that the list calls so."""
        self.choice.setVisible(bool(title))
        self.plan.setVisible(title == PLAN)
        self.text.setVisible(title in self._texts)
        self.text.setPlainText(self._texts.get(title, ""))
        if title == TEXTS["relax"]:
            self._highlight()

    def _highlight(self) -> None:
        """Mark the selected operator's name in the Relax text."""
        graph, at = self.document.operators, self.document.selection.primary
        if at is None:
            return
        cursor = self.text.document().find(short_operator(graph.calls[at].op))
        if not cursor.isNull():
            self.text.setTextCursor(cursor)
            self.text.centerCursor()
