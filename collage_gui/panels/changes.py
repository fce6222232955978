"""Shows what differs between the shown run and the one it is compared with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from collage_engine.drawing.formatting import DASH, signed_time
from collage_engine.drawing.palette import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.tables import Column, RowsModel, Table, toolchain_column
from collage_gui.theme import Theme
from collage_gui.widgets import action_button, lay_out, text_label


class ChangesPage(QWidget):
    """The page with what to compare with, and the nodes that moved to another toolchain since."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self.document = document
        in_graph = action_button(actions["changes"], "Show in graph", "showChanges")
        self.note = text_label(look="quiet")
        self.model = RowsModel(
            [
                Column("Node", lambda r: self._node_name(r.node), width=76, stretches=True),
                Column("Change", lambda r: r.change, width=80),
                toolchain_column("Before", lambda r: r.before),
                toolchain_column("After", lambda r: r.after),
                Column("Difference", lambda r: r.delta_us, "signed-time"),
            ]
        )
        self.table = Table(self.model, "changesTable", "Changed nodes", theme)
        self.table.selectionModel().selectionChanged.connect(self._select)

        button = (in_graph, 0, Qt.AlignmentFlag.AlignTop)
        head = lay_out(QHBoxLayout(), (self.note, 1), button)
        lay_out(QVBoxLayout(self), head, (self.table, 1), None, margins=(8, 8, 8, 4))

    def refresh(self) -> None:
        """Show what differs from the reference."""
        comparison = self.document.comparison.result
        rows = [] if comparison is None else [n for n in comparison.nodes if n.change != "same"]
        self.model.set_rows(rows)
        self.note.setText(self._note())
        self.table.setVisible(comparison is not None)

    def _note(self) -> str:
        comparison = self.document.comparison.result
        if comparison is not None:
            counts = Counter(node.change for node in comparison.nodes)
            per = ", ".join(
                f"{toolchain_title(t)} {a} → {b}" for t, (a, b) in comparison.by_toolchain.items()
            )
            before = self.document.comparison.reference_time()[0]
            return (
                f"Against {before}: {counts['moved']} moved, {counts['regrouped']} regrouped, "
                f"{counts['same']} same · {signed_time(comparison.delta_us)} · partitions: {per}"
            )
        if self.document.comparison.reference.kind == "run":
            return "Show another run to compare it with this one."
        return (
            "Choose a run in “Against” in the toolbar, to see which nodes moved between toolchains."
        )

    def _node_name(self, node: int) -> str:
        graph = self.document.operators
        return graph.name(node) if graph is not None and node < graph.count else DASH

    def _select(self) -> None:
        nodes = [row.node for row in self.table.chosen()]
        if nodes:
            self.document.selection.select(nodes)
