"""Shows the graph as an outline, for the keyboard and for screen readers."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QKeyEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QAbstractItemView, QTreeWidget, QTreeWidgetItem

from collage_engine.drawing.groups import LEGIBLE_BOXES
from collage_engine.support.text import counted
from collage_engine.wording.amounts import node_shapes
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.tables import allow_copying, toolchain_icon
from collage_gui.theme import NAME_LETTERS
from collage_gui.widgets import letters_px, named, plain_tip

TOOLCHAIN = 2
"""Number of the column that shows the toolchain."""


class Outline(QTreeWidget):
    """Shows scopes and operators, with the same selection as the graph."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        named(self, "outline", "Operators of the model")
        self.setHeaderLabels(["Type and name", "Shape", "Toolchain", "Name in the file"])
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setUniformRowHeights(True)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        allow_copying(self)
        self._items: dict[int, QTreeWidgetItem] = {}
        """Operator → the item of its node."""
        self._outdated = True
        """Whether it lists another graph: it is filled when somebody looks at it."""
        self._quiet = False
        self.itemSelectionChanged.connect(self._picked)
        document.graph_changed.connect(self.rebuild)
        document.placement.changed.connect(self._label_all)
        document.selection.changed.connect(self._show_selection)

    def showEvent(self, event: QShowEvent) -> None:
        """List the operators, now that they can be seen."""
        super().showEvent(event)
        if self._outdated:
            self.rebuild()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Leaves letters to the window, whose actions of one key they are."""
        if event.text().isalnum():
            event.ignore()
        else:
            super().keyPressEvent(event)

    def rebuild(self) -> None:
        """Show the operators of another graph."""
        graph, scopes = self.document.operators, self.document.scopes
        self._outdated = not self.isVisible()
        if self._outdated:
            return
        self._quiet = True
        self.clear()
        self._items.clear()
        innermost: dict[int, str] = {}
        for scope in sorted(scopes.values(), key=lambda scope: -len(scope.members)):
            innermost.update(dict.fromkeys(scope.members, scope.id))
        made: dict[str | None, QTreeWidgetItem] = {None: self.invisibleRootItem()}

        def item_of(scope: str | None) -> QTreeWidgetItem:
            if scope not in made:
                group = scopes[scope or ""]
                nodes = counted(graph.count_nodes(group.members), "node")
                made[scope] = QTreeWidgetItem(item_of(group.parent), [group.label, nodes])
                made[scope].setData(0, Qt.ItemDataRole.UserRole, scope)
            return made[scope]

        for node in graph.nodes:
            first, name = node[0], graph.names[node[0]]
            texts = [graph.label_with_name([first]), node_shapes(graph.calls[first]), "", name]
            item = QTreeWidgetItem(item_of(innermost.get(first)), texts)
            item.setToolTip(0, plain_tip(name))
            item.setData(0, Qt.ItemDataRole.UserRole, first)
            self._items.update(dict.fromkeys(node, item))
        self._label_all()
        for at in range(4):
            self.resizeColumnToContents(at)
        self._fit_names()
        self._quiet = False
        self._show_selection()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give the names the width that the other columns leave."""
        super().resizeEvent(event)
        self._fit_names()

    def _fit_names(self) -> None:
        others = self.columnWidth(1) + self.columnWidth(2)
        least = letters_px(self, 2 * NAME_LETTERS)  # type and name
        self.setColumnWidth(0, max(least, self.viewport().width() - others))

    def _label_all(self) -> None:
        for operator, item in self._items.items():
            partition = self.document.placement.partition_of(operator)
            item.setText(TOOLCHAIN, toolchain_title(partition.toolchain) if partition else "")
            if partition:
                item.setIcon(0, toolchain_icon(partition.toolchain))

    def _picked(self) -> None:
        if self._quiet:
            return
        chosen: list[int] = []
        for item in self.selectedItems():
            entry = item.data(0, Qt.ItemDataRole.UserRole)
            chosen += [entry] if isinstance(entry, int) else self.document.scopes[entry].members
        if chosen:
            self._quiet = True
            self.document.selection.select(chosen)
            self._quiet = False

    def _show_selection(self) -> None:
        if self._quiet or self._outdated:
            return
        self._quiet = True
        self.clearSelection()
        chosen = self.document.selection.operators
        # More of them would open the whole tree.
        if len(chosen) <= LEGIBLE_BOXES:
            for operator in sorted(chosen):
                item = self._items[operator]
                item.setSelected(True)
                if operator == self.document.selection.primary:
                    self.scrollToItem(item)
        self._quiet = False
