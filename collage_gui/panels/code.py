"""Shows the code of a candidate: Relax, TensorIR, source, or the plan of a library."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import (
    QComboBox,
    QPlainTextEdit,
    QStackedWidget,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.formatting import short_operator
from collage_gui.document.document import Document
from collage_gui.panels.copying import allow_copying
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, named, text_label

TEXTS = {"relax": "Relax", "tir": "TensorIR", "source": "Source"}
"""The texts of a candidate by the field of the engine's answer."""
PLAN = len(TEXTS)
"""Place of the library's plan in the list of what can be shown."""


class CodePage(QWidget):
    """One text at a time, of those that the candidate's toolchain gives."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("codePage")
        self.note = text_label("Select a node or a candidate to see its code.", "quiet")
        self.choice = named(QComboBox(), "codeChoice", "What is shown")
        self.pages = QStackedWidget()
        self.texts: dict[str, QPlainTextEdit] = {}
        for key, title in TEXTS.items():
            text = named(QPlainTextEdit(readOnly=True), f"code-{key}", title)
            text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
            text.setFrameShape(QPlainTextEdit.Shape.NoFrame)
            self.texts[key] = text
            self.choice.addItem(title)
            self.pages.addWidget(text)
        self.plan = named(QTreeWidget(), "codePlan", "The library's plan")
        self.plan.setHeaderLabels(["Step", "Algorithm", "Layout", "Post-ops"])
        self.plan.itemClicked.connect(self._step)
        self.choice.addItem("Library calls")
        self.pages.addWidget(self.plan)
        allow_copying(self.plan)
        self.choice.currentIndexChanged.connect(self.pages.setCurrentIndex)
        parts = (self.note, (self.choice, 0, Qt.AlignmentFlag.AlignLeft), (self.pages, 1))
        lay_out(QVBoxLayout(self), *parts, margins=(8, 8, 8, 4), spacing=6)
        document.questions.inside_changed.connect(self.refresh)
        theme.changed.connect(self._fonts)
        self._fonts()
        self._offer([])

    def _fonts(self) -> None:
        for text in self.texts.values():
            text.setFont(self.theme.mono())

    def _offer(self, known: list[int]) -> None:
        """Enable what there is to show, and step to the first of it if need be."""
        entries = self.choice.model()
        assert isinstance(entries, QStandardItemModel)
        for at in range(self.choice.count()):
            entries.item(at).setEnabled(at in known)
        if known and self.choice.currentIndex() not in known:
            self.choice.setCurrentIndex(known[0])
        self.choice.setVisible(bool(known))
        self.pages.setVisible(bool(known))

    def refresh(self) -> None:
        """Show what the engine has answered."""
        answer = self.document.questions.inside
        if answer is None:
            return
        for key, text in self.texts.items():
            text.setPlainText(getattr(answer, key) or "")
        self.plan.clear()
        for step in answer.plan:
            post = step.get("post_ops", "")
            post = ", ".join(map(str, post)) if isinstance(post, list | tuple) else str(post)
            cells = [str(step.get(name, "")) for name in ("op", "algorithm", "layout")]
            item = QTreeWidgetItem([*cells, post])
            item.setData(0, Qt.ItemDataRole.UserRole, step.get("operators"))
            self.plan.addTopLevelItem(item)
        for at in range(self.plan.columnCount()):
            self.plan.resizeColumnToContents(at)
        known = [at for at, key in enumerate(TEXTS) if getattr(answer, key)]
        self._offer(known + [PLAN] * bool(answer.plan))
        self.note.setText(answer.reason or ("" if known else "The toolchain gives no code."))
        self.note.setVisible(bool(self.note.text()))
        self._highlight()

    def _step(self, item: QTreeWidgetItem) -> None:
        operators = item.data(0, Qt.ItemDataRole.UserRole)
        if operators:
            self.document.selection.select([int(n) for n in operators])

    def _highlight(self) -> None:
        """Mark the selected operator's name in the Relax text."""
        graph, at = self.document.operators, self.document.selection.primary
        text = self.texts["relax"]
        if graph is None or at is None or not text.toPlainText():
            return
        cursor = text.document().find(short_operator(graph.calls[at].op))
        if not cursor.isNull():
            text.setTextCursor(cursor)
            text.centerCursor()
