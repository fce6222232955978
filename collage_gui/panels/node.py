"""Shows everything about the selected node: why it runs where it does, and what is inside it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QShowEvent
from PySide6.QtWidgets import QSplitter, QTabWidget, QVBoxLayout, QWidget

from collage_gui.document.document import Document
from collage_gui.panels.attributes import AttributesPage
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.code import CodePage
from collage_gui.panels.why import WhyPanel
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, named


class NodePanel(QWidget):
    """The reasons above; below them the candidates, the attributes and the code.

    The engine is asked for what is inside only where it can be seen: code may be several hundred
    kilobytes.
    """

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("nodePanel")
        self._asked: tuple[str | None, int | None] | None = None
        self.why = WhyPanel(document, theme)
        self.candidates = CandidatesPanel(document, theme, actions)
        self.attributes = AttributesPage(document)
        self.code = CodePage(document, theme)
        self.tabs = named(QTabWidget(), "nodeTabs")
        self.tabs.setUsesScrollButtons(True)
        self.tabs.addTab(self.candidates, "Candidates")
        self.tabs.addTab(self.attributes, "Attributes")
        self.tabs.addTab(self.code, "Code")
        self.tabs.currentChanged.connect(lambda _: self._ask())
        split = QSplitter(Qt.Orientation.Vertical)
        split.setChildrenCollapsible(False)
        split.addWidget(self.why)
        split.addWidget(self.tabs)
        split.setSizes([1000, 1000])  # shares of any height: equal ones
        lay_out(QVBoxLayout(self), split, edge=0)
        document.selection.changed.connect(self._ask)
        document.selection.candidate_changed.connect(self._ask)
        document.placement.changed.connect(self._ask)

    def showEvent(self, event: QShowEvent) -> None:
        """Asks the engine, now that the answer can be seen."""
        super().showEvent(event)
        self._ask()

    def _ask(self) -> None:
        document = self.document
        candidate, primary = document.selection.candidate, document.selection.primary
        if candidate is None:
            partition = document.placement.partition_of(primary)
            candidate = partition.candidate if partition else None
        wanted = candidate, primary
        seen = self.attributes.isVisible() or self.code.isVisible()
        if not seen or wanted in (self._asked, (None, None)):
            return
        self._asked = wanted
        if document.handle:
            document.questions.ask_inside(*wanted)
