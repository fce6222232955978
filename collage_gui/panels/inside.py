"""Shows what is inside a node (attributes, weights, bodies) and a partition (code, plan)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QShowEvent, QTextCursor
from PySide6.QtWidgets import (
    QLabel,
    QPlainTextEdit,
    QTabWidget,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.formatting import bytes_text, counted, significant
from collage_engine.records.answers import NestedGraph
from collage_gui import words
from collage_gui.document.document import Document
from collage_gui.elided_label import plain_tip
from collage_gui.panels.copying import Copying
from collage_gui.panels.histogram import Histogram
from collage_gui.theme import Theme


class InsidePanel(QWidget):
    """Asks the engine only when it is visible, since code may be several hundred kilobytes."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("insidePanel")
        self._asked: tuple[str | None, int | None] | None = None
        self.note = QLabel(words.SELECT_FOR_CODE, wordWrap=True)
        self.note.setProperty("quiet", True)
        self.note.setContentsMargins(10, 8, 10, 4)
        self.tabs = QTabWidget()
        self.tabs.setObjectName("insideTabs")
        self.node = QTreeWidget()
        self.node.setObjectName("insideNode")
        self.node.setHeaderLabels(["Attribute", "Value"])
        self.node.setRootIsDecorated(True)
        self.node.setAccessibleName(words.ATTRIBUTES_TYPES_AND_WEIGHTS)
        self.node.itemActivated.connect(self._activated)
        self.histogram = Histogram(theme)
        self.histogram.hide()
        first = QWidget()
        box = QVBoxLayout(first)
        box.setContentsMargins(0, 0, 0, 0)
        box.addWidget(self.node, 1)
        box.addWidget(self.histogram)
        self.tabs.addTab(first, "Node")
        self.texts: dict[str, QPlainTextEdit] = {}
        for key, title in (("relax", "Relax"), ("tir", "TIR"), ("source", "Source")):
            text = QPlainTextEdit(readOnly=True)
            text.setObjectName(f"inside-{key}")
            text.setAccessibleName(title)
            text.setLineWrapMode(QPlainTextEdit.LineWrapMode.NoWrap)
            text.setFrameShape(QPlainTextEdit.Shape.NoFrame)
            text.cursorPositionChanged.connect(lambda t=text: self._text_clicked(t))
            self.texts[key] = text
            self.tabs.addTab(text, title)
        self.plan = QTreeWidget()
        self.plan.setObjectName("insidePlan")
        self.plan.setAccessibleName(words.LIBRARY_PLAN)
        self.plan.setHeaderLabels(["Step", "Algorithm", "Layout", "Post-ops"])
        self.plan.itemClicked.connect(self._step)
        self.tabs.addTab(self.plan, "Plan")
        self.copying = (Copying(self.node), Copying(self.plan))
        outer = QVBoxLayout(self)
        outer.setContentsMargins(0, 0, 0, 0)
        outer.setSpacing(0)
        outer.addWidget(self.note)
        outer.addWidget(self.tabs, 1)
        document.selection.changed.connect(self._selected)
        document.selection.candidate_changed.connect(self._ask)
        document.placement.changed.connect(self._ask)
        document.questions.inside_changed.connect(self._arrived)
        theme.changed.connect(self._fonts)
        self._fonts()
        self._selected()

    def _fonts(self) -> None:
        for text in self.texts.values():
            text.setFont(self.theme.mono())

    def showEvent(self, event: QShowEvent) -> None:
        """Asks the engine, now that the answer can be seen."""
        super().showEvent(event)
        self._ask()

    def _wanted(self) -> tuple[str | None, int | None]:
        document = self.document
        candidate = document.selection.candidate
        if candidate is None:
            partition = document.placement.partition_of(document.selection.primary)
            candidate = partition.candidate if partition else None
        return candidate, document.selection.primary

    def _selected(self) -> None:
        self._node_tree()
        self._ask()

    def _ask(self) -> None:
        wanted = self._wanted()
        if not self.isVisible() or wanted == self._asked or wanted == (None, None):
            return
        self._asked = wanted
        if self.document.handle:
            self.note.setText(words.ASKING_THE_ENGINE)
            self.note.show()
            self.document.questions.ask_inside(*wanted)

    def _arrived(self) -> None:
        answer = self.document.questions.inside
        if answer is None:
            return
        for key, text in self.texts.items():
            value = getattr(answer, key)
            text.setPlainText(value or "")
            text.setPlaceholderText(answer.reason or words.NO_SUCH_TEXT)
        self.plan.clear()
        for step in answer.plan:
            post = step.get("post_ops", "")
            post = ", ".join(map(str, post)) if isinstance(post, list | tuple) else str(post)
            item = QTreeWidgetItem(
                [
                    str(step.get("op", "")),
                    str(step.get("algorithm", "")),
                    str(step.get("layout", "")),
                    post,
                ]
            )
            item.setData(0, Qt.ItemDataRole.UserRole, step.get("operators"))
            self.plan.addTopLevelItem(item)
        for at in range(4):
            self.plan.resizeColumnToContents(at)
        for at, key in enumerate(("relax", "tir", "source"), 1):
            self.tabs.setTabEnabled(at, bool(getattr(answer, key)))
        self.tabs.setTabEnabled(4, bool(answer.plan))
        self.note.setText(answer.reason or "")
        self.note.setVisible(bool(answer.reason))
        self._node_tree()
        self._highlight()

    def _node_tree(self) -> None:
        self.node.clear()
        document = self.document
        graph = document.operators
        if graph is None or document.selection.primary is None:
            self.histogram.hide()
            return
        node = graph.calls[document.selection.primary]

        def add(title: str, rows, open_: bool = True) -> None:
            rows = [row for row in rows if row[1] not in ("", None)]
            if not rows:
                return
            top = QTreeWidgetItem([title, ""])
            self.node.addTopLevelItem(top)
            for name, value, *extra in rows:
                item = QTreeWidgetItem([str(name), str(value)])
                item.setToolTip(1, plain_tip(str(value)))
                if extra:
                    item.setData(0, Qt.ItemDataRole.UserRole, extra[0])
                top.addChild(item)
            top.setExpanded(open_)

        add(
            "Operator",
            [
                ("name", graph.name(document.selection.primary)),
                ("type", graph.title(document.selection.primary)),
                ("internally", node.op),
                ("number", document.selection.primary),
                ("kind", node.kind),
                ("ONNX nodes", ", ".join(node.onnx_nodes)),
                ("ONNX value", node.onnx_value),
            ],
        )
        add(
            "Types",
            [
                (
                    f"output {i}" if len(node.types) > 1 else "output",
                    f"{t}  ({bytes_text(t.bytes)})",
                )
                for i, t in enumerate(node.types)
            ],
        )
        add("Attributes", sorted((k, v) for k, v in node.attributes.items()))
        add(
            "Producers",
            [
                (graph.title(n), graph.name(n), ("node", n))
                for n in graph.producers(document.selection.primary)
            ],
        )
        add(
            "Consumers",
            [
                (graph.title(n), graph.name(n), ("node", n))
                for n in graph.consumers(document.selection.primary)
            ],
        )
        weights = document.questions.inside.weights if document.questions.inside is not None else ()
        shown = False
        for weight in weights:
            add(
                f"Weight {weight.name}",
                [
                    ("shape", "×".join(map(str, weight.shape)) + f" {weight.dtype}"),
                    ("range", f"{significant(weight.minimum)} … {significant(weight.maximum)}"),
                    (
                        "mean ± deviation",
                        f"{significant(weight.mean)} ± {significant(weight.deviation)}",
                    ),
                    ("zeros", f"{weight.zeros * 100:.1f} %"),
                ],
            )
            if weight.histogram and not shown:
                self.histogram.show_counts(weight.histogram, weight.edges, weight.name)
                shown = True
        if not shown:
            self.histogram.hide()
        for nested in document.questions.inside.graphs if document.questions.inside else ():
            self._add_graph(self.node.invisibleRootItem(), nested)
        self.node.resizeColumnToContents(0)
        if self.note.text().startswith("Select"):
            self.note.hide()

    def _add_graph(self, parent: QTreeWidgetItem, graph: NestedGraph) -> None:
        """Show a branch or a body as a tree, with what its own operators hold inside them."""
        top = QTreeWidgetItem(
            [graph.name or words.NODES_THAT_RUN_TOGETHER, _flow(graph.inputs, graph.outputs)]
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
            top.addChild(QTreeWidgetItem(["", words.NODES_NOT_LISTED.format(nodes=nodes)]))
        top.setExpanded(True)

    def _activated(self, item: QTreeWidgetItem) -> None:
        data = item.data(0, Qt.ItemDataRole.UserRole)
        if isinstance(data, tuple | list) and data and data[0] == "node":
            self.document.selection.select([int(data[1])], int(data[1]))

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
        from collage_engine.drawing.formatting import short_operator

        cursor = text.document().find(short_operator(graph.calls[at].op))
        if not cursor.isNull():
            text.blockSignals(True)
            text.setTextCursor(cursor)
            text.centerCursor()
            text.blockSignals(False)

    def _text_clicked(self, text: QPlainTextEdit) -> None:
        """Selects the next node of the partition with the operator whose name was clicked."""
        if not text.hasFocus():
            return
        cursor = text.textCursor()
        cursor.select(QTextCursor.SelectionType.LineUnderCursor)
        operators = re.findall(r"R\.(?:\w+\.)*(\w+)\(", cursor.selectedText())
        graph = self.document.operators
        partition = self.document.placement.partition_of(self.document.selection.primary)
        if graph is None or partition is None or not operators:
            return
        nodes = [n for n in partition.nodes if graph.calls[n].op.endswith(operators[-1])]
        if nodes:
            before = text.toPlainText()[: cursor.selectionStart()]
            nth = len(re.findall(rf"R\.(?:\w+\.)*{operators[-1]}\(", before))
            self.document.selection.select(partition.nodes, nodes[min(nth, len(nodes) - 1)])


def _flow(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Returns ``a, b → c``: the values that are read and made; one left out is a dash."""
    return " → ".join(", ".join(name or "–" for name in names) for names in (inputs, outputs))
