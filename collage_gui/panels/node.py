"""Shows everything about the selected node: why it runs where it does, and what is inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QShowEvent
from PySide6.QtWidgets import (
    QSplitter,
    QTabWidget,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.answers import NestedGraph
from collage_engine.support.text import counted
from collage_engine.wording.amounts import bytes_text, significant
from collage_gui.document.document import Document
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.code import CodePage
from collage_gui.panels.tables import allow_copying
from collage_gui.panels.why import WhyPanel
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, named, plain_tip, text_label

COLUMNS = "▁▂▃▄▅▆▇█"
"""Letters for the heights of a histogram's columns."""


class AttributesPage(QWidget):
    """A tree of what is known of the selected node."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("attributesPage")
        self.note = text_label("Select a node to see its attributes and weights.", "quiet")
        self.note.setContentsMargins(10, 8, 10, 4)
        self.tree = named(QTreeWidget(), "attributesTree", "Attributes, types and weights")
        self.tree.setHeaderLabels(["Attribute", "Value"])
        self.tree.itemActivated.connect(self._activated)
        allow_copying(self.tree)
        lay_out(QVBoxLayout(self), self.note, (self.tree, 1), edge=0, gap=0)
        document.selection.changed.connect(self.refresh)
        document.questions.inside_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show what is inside the selected node, as far as the engine has answered."""
        self.tree.clear()
        document = self.document
        graph = document.operators
        primary = document.selection.primary
        self.note.setVisible(primary is None)
        if primary is None:
            return
        node = graph.calls[primary]
        self._add(
            "Operator",
            ("name", graph.name(primary)),
            ("type", graph.title(primary)),
            ("internally", node.op),
            ("number", primary),
            ("kind", node.kind),
            ("ONNX nodes", ", ".join(node.onnx_nodes)),
            ("ONNX value", ", ".join(v.onnx_value for v in node.results if v.onnx_value)),
        )
        outputs = [
            f"output {i}" if len(node.types) > 1 else "output" for i in range(len(node.types))
        ]
        types = [f"{t}  ({bytes_text(t.bytes)})" for t in node.types]
        self._add("Types", *zip(outputs, types, strict=True))
        self._add("Attributes", *sorted(node.attributes.items()))
        for title, near in (
            ("Producers", graph.producers(primary)),
            ("Consumers", graph.consumers(primary)),
        ):
            self._add(title, *((graph.title(n), graph.name(n), n) for n in near))
        weights = document.questions.inside.weights if document.questions.inside is not None else ()
        for weight in weights:
            spread = f"{significant(weight.mean)} ± {significant(weight.deviation)}"
            self._add(
                f"Weight {weight.name}",
                ("shape", "×".join(map(str, weight.shape)) + f" {weight.dtype}"),
                ("range", f"{significant(weight.minimum)} … {significant(weight.maximum)}"),
                ("mean ± deviation", spread),
                ("zeros", f"{weight.zeros * 100:.1f} %"),
                ("histogram", _columns(weight.histogram)),
            )
        for nested in document.questions.inside.graphs if document.questions.inside else ():
            self._add_graph(self.tree.invisibleRootItem(), nested)
        self.tree.resizeColumnToContents(0)

    def _add(self, title: str, *rows: tuple[Any, ...]) -> None:
        """Show rows below a title; each is a name, a value, and the operator that it leads to."""
        filled = [row for row in rows if row[1] not in ("", None)]
        if not filled:
            return
        top = QTreeWidgetItem(self.tree, [title, ""])
        for name, value, *operator in filled:
            item = QTreeWidgetItem(top, [str(name), str(value)])
            item.setToolTip(1, plain_tip(str(value)))
            item.setData(0, Qt.ItemDataRole.UserRole, operator[0] if operator else None)
        top.setExpanded(True)

    def _add_graph(self, parent: QTreeWidgetItem, graph: NestedGraph) -> None:
        """Show a branch or a body as a tree, with what its own operators hold inside them."""
        top = QTreeWidgetItem(
            [graph.name or "ONNX nodes that run together", _flow(graph.inputs, graph.outputs)]
        )
        parent.addChild(top)
        for node in graph.nodes:
            item = QTreeWidgetItem(
                [" ".join(filter(None, (node.type, node.name))), _flow(node.inputs, node.outputs)]
            )
            item.setToolTip(1, plain_tip(item.text(1)))
            top.addChild(item)
            for body in node.bodies:
                self._add_graph(item, body)
        if graph.left_out:
            nodes = counted(graph.left_out, "node")
            top.addChild(QTreeWidgetItem(["", f"{nodes} more, which are not listed"]))
        top.setExpanded(True)

    def _activated(self, item: QTreeWidgetItem) -> None:
        operator = item.data(0, Qt.ItemDataRole.UserRole)
        if operator is not None:
            self.document.selection.select([operator], operator)


def _columns(counts: Sequence[int]) -> str:
    """Return a histogram as one letter a bin, from the least value to the largest."""
    most = max(counts, default=0)
    return "".join(COLUMNS[count * (len(COLUMNS) - 1) // most] for count in counts) if most else ""


def _flow(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Return ``a, b → c``: the values that are read and made; one left out is a dash."""
    return " → ".join(", ".join(name or "–" for name in names) for names in (inputs, outputs))


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
