"""Shows what is inside a node: its attributes, types, neighbours, weights and bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QTreeWidget, QTreeWidgetItem, QVBoxLayout, QWidget

from collage_engine.records.answers import NestedGraph
from collage_engine.support.text import counted
from collage_engine.wording.amounts import bytes_text, significant
from collage_gui.document.document import Document
from collage_gui.panels.tables import allow_copying
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
            ("ONNX value", node.onnx_value),
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
        known = [row for row in rows if row[1] not in ("", None)]
        if not known:
            return
        top = QTreeWidgetItem(self.tree, [title, ""])
        for name, value, *operator in known:
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
    """Returns a histogram as one letter a bin, from the least value to the largest."""
    most = max(counts, default=0)
    return "".join(COLUMNS[count * (len(COLUMNS) - 1) // most] for count in counts) if most else ""


def _flow(inputs: Sequence[str], outputs: Sequence[str]) -> str:
    """Returns ``a, b → c``: the values that are read and made; one left out is a dash."""
    return " → ".join(", ".join(name or "–" for name in names) for names in (inputs, outputs))
