"""Shows the graph as an outline, for the keyboard and for screen readers."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QAbstractItemView, QTreeWidget, QTreeWidgetItem

from collage_engine.drawing.formatting import counted, node_shapes
from collage_engine.drawing.palette import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.copying import allow_copying
from collage_gui.panels.tables import toolchain_icon
from collage_gui.widgets import plain_tip

MOST_SHOWN = 400
"""A selection of more operators is not shown in the tree; chosen, since it would open it all."""

TOOLCHAIN = 2
"""Number of the column that shows the toolchain."""
LEAST_NAME = 170
"""Least width of the column of names, in pixels; chosen, room for a name of twenty letters."""


class Outline(QTreeWidget):
    """Shows scopes and operators, with the same selection as the graph."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("outline")
        self.setAccessibleName("Operators of the model")
        self.setHeaderLabels(["Type and name", "Shape", "Toolchain", "Name in the file"])
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setUniformRowHeights(True)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        allow_copying(self)
        self._items: dict[int, QTreeWidgetItem] = {}
        self._quiet = False
        self.itemSelectionChanged.connect(self._picked)
        self.itemExpanded.connect(self._fill)
        document.graph_changed.connect(self.rebuild)
        document.placement.changed.connect(self._label_all)
        document.selection.changed.connect(self._show_selection)
        self.rebuild()

    def rebuild(self) -> None:
        """Show the operators of another graph."""
        self._quiet = True
        self.clear()
        self._items.clear()
        graph = self.document.operators
        if graph is not None:
            groups = self.document.scopes
            children: dict[str | None, list[str]] = {}
            for group in groups.values():
                children.setdefault(group.parent, []).append(group.id)
            self._children = children
            inside = {m for g in groups.values() if g.parent is None for m in g.members}
            loose = [node[0] for node in graph.nodes if node[0] not in inside]
            self._add(self.invisibleRootItem(), None, loose)
            for at in range(4):
                self.resizeColumnToContents(at)
            self._fit_names()
        self._quiet = False

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Gives the names the width that the other columns leave."""
        super().resizeEvent(event)
        self._fit_names()

    def _fit_names(self) -> None:
        others = self.columnWidth(1) + self.columnWidth(2)
        self.setColumnWidth(0, max(LEAST_NAME, self.viewport().width() - others))

    def _add(self, parent: QTreeWidgetItem, group: str | None, loose: list[int]) -> None:
        graph, groups = self.document.operators, self.document.scopes
        assert graph is not None
        entries: list[tuple[int, str | int]] = [(n, n) for n in loose]
        entries += [(groups[g].members[0], g) for g in self._children.get(group, ())]
        for _, entry in sorted(entries, key=lambda e: e[0]):
            if isinstance(entry, int):
                node = graph.calls[entry]
                name = graph.name(entry)
                item = QTreeWidgetItem(
                    [graph.label_with_name([entry]), node_shapes(node), "", name]
                )
                item.setToolTip(0, plain_tip(name))
                item.setData(0, Qt.ItemDataRole.UserRole, entry)
                for operator in graph.nodes[graph.node_of[entry]]:
                    self._items[operator] = item
                self._label(item, entry)
            else:
                scope = groups[entry]
                item = QTreeWidgetItem(
                    [scope.label, counted(graph.count_nodes(scope.members), "node"), "", ""]
                )
                item.setData(0, Qt.ItemDataRole.UserRole, entry)
                item.setChildIndicatorPolicy(QTreeWidgetItem.ChildIndicatorPolicy.ShowIndicator)
            parent.addChild(item)

    def _fill(self, item: QTreeWidgetItem) -> None:
        """Make the children of a scope when it is opened: 10,000 items are never needed at once."""
        entry = item.data(0, Qt.ItemDataRole.UserRole)
        if not isinstance(entry, str) or item.childCount():
            return
        scope = self.document.scopes[entry]
        inner = {m for g in self._children.get(entry, ()) for m in self.document.scopes[g].members}
        graph = self.document.operators
        assert graph is not None
        firsts = {graph.nodes[graph.node_of[n]][0] for n in scope.members if n not in inner}
        self._add(item, entry, sorted(firsts))

    def _label(self, item: QTreeWidgetItem, operator: int) -> None:
        partition = self.document.placement.partition_of(operator)
        item.setText(TOOLCHAIN, toolchain_title(partition.toolchain) if partition else "")
        if partition:
            item.setIcon(0, toolchain_icon(partition.toolchain))

    def _label_all(self) -> None:
        for operator, item in self._items.items():
            self._label(item, operator)

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
        if self._quiet or self.document.operators is None:
            return
        self._quiet = True
        self.clearSelection()
        chosen = self.document.selection.operators
        if chosen and len(chosen) <= MOST_SHOWN:
            for operator in sorted(chosen):
                item = self._reveal(operator)
                if item is not None:
                    item.setSelected(True)
                    if operator == self.document.selection.primary:
                        self.scrollToItem(item)
        self._quiet = False

    def _reveal(self, operator: int) -> QTreeWidgetItem | None:
        if operator not in self._items:
            path = sorted(
                (g for g in self.document.scopes.values() if operator in g.members),
                key=lambda g: -len(g.members),
            )
            at = self.invisibleRootItem()
            for group in path:
                for number in range(at.childCount()):
                    child = at.child(number)
                    if child is not None and child.data(0, Qt.ItemDataRole.UserRole) == group.id:
                        at = child
                        self._fill(at)
                        at.setExpanded(True)
                        break
        return self._items.get(operator)
