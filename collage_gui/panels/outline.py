"""All partitions as a table, and the graph as a tree for the keyboard and screen readers."""

from __future__ import annotations

from PySide6.QtCore import QItemSelectionModel, Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QLabel,
    QLineEdit,
    QTreeWidget,
    QTreeWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.accuracy import precision_text
from collage_engine.drawing.palette import toolchain_title
from collage_engine.drawing.words import counted, node_shapes, short_operator, time_text
from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition
from collage_engine.records.precision import FLOAT32, short
from collage_gui.panels.copying import Copying
from collage_gui.panels.cost_words import DIFFERENCE, ESTIMATED, IN_PLACE, cost_tip
from collage_gui.panels.tables import Column, RowsModel, Table, chip
from collage_gui.session import Document
from collage_gui.theme import Theme

PRECISION, FORMATS = 4, 5
"""Columns that are shown where a partition differs from the plain float32 ones."""
LAZY = 400
"""Children of a tree item are made when it is opened, beyond this many."""


class PartitionsTable(QWidget):
    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("partitionsPanel")
        self._reference: dict[str, float] = {}
        self.model = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.instance,
                    toolchain=lambda r: r.toolchain,
                    text=lambda r: toolchain_title(r.instance),
                    width=146,
                    tip=lambda r: toolchain_title(r.instance),
                ),
                Column(
                    "Cost",
                    lambda r: r.estimated_us,
                    "time",
                    width=74,
                    about=ESTIMATED,
                    tip=lambda r: cost_tip(document.cost(r.candidate)),
                ),
                Column(
                    "Operators",
                    self._label,
                    width=124,
                    tip=lambda r: "\n".join(
                        [*filter(None, [border_words(r.takes, r.gives)]), *r.onnx_nodes[:20]]
                    ),
                ),
                Column("№", lambda r: len(r.nodes), "number", width=40),
                Column(
                    "Precision",
                    lambda r: short(r.precision),
                    width=84,
                    tip=lambda r: precision_text(r.precision, r.max_rel_error),
                ),
                Column("Formats", lambda r: border_words(r.takes, r.gives), width=136),
                Column("In place", lambda r: r.in_place_us, "time", width=96, about=IN_PLACE),
                Column("Δ", self._difference, "signed-time", width=78, about=DIFFERENCE),
                Column(
                    "Baseline",
                    lambda r: self._reference.get(r.id),
                    "time",
                    width=100,
                    tip=lambda r: "The same operators in what is compared with",
                ),
                Column(
                    "Next",
                    self._regret,
                    "signed-time",
                    width=80,
                    tip=lambda r: "Regret of the best rival on the same operators",
                ),
            ]
        )
        self.table = Table(self.model, "partitionsTable", "Partitions", theme)
        self.table.selectionModel().selectionChanged.connect(self._picked)
        self.summary = QLabel(wordWrap=True)
        self.summary.setProperty("quiet", True)
        self.filter = QLineEdit(placeholderText="Filter partitions", clearButtonEnabled=True)
        self.filter.setObjectName("partitionsFilter")
        self.filter.setAccessibleName("Filter partitions")
        self.filter.textChanged.connect(lambda text: self.model.set_filter(text))
        box = QVBoxLayout(self)
        box.setContentsMargins(8, 8, 8, 0)
        box.setSpacing(6)
        box.addWidget(self.summary)
        box.addWidget(self.filter)
        box.addWidget(self.table, 1)
        document.placement_changed.connect(self.refresh)
        document.graph_changed.connect(self.refresh)
        document.reference_changed.connect(self._recompare)
        document.candidates_changed.connect(self._recompare)
        document.explanation_changed.connect(self.model.refresh)
        document.selection_changed.connect(self._show_selection)
        self.refresh()

    def _label(self, row: Partition) -> str:
        graph = self.document.operators
        return row.id if graph is None else graph.label(row.nodes)

    def _difference(self, row: Partition) -> float | None:
        if row.in_place_us is None or row.estimated_us is None:
            return None
        return row.in_place_us - row.estimated_us

    def _regret(self, row: Partition) -> float | None:
        document = self.document
        found = [
            regret
            for id_ in self._rivals.get(row.nodes, ())
            if id_ != row.candidate and (regret := document.regrets.get(id_)) is not None
        ]
        return min(found, default=None)

    def refresh(self) -> None:
        shown = self.document.shown
        self._index()
        parts = shown.placement.partitions if shown else ()
        self.model.set_rows(parts)
        self.table.setColumnHidden(PRECISION, all(p.precision == FLOAT32 for p in parts))
        self.table.setColumnHidden(FORMATS, not any(p.takes or p.gives for p in parts))
        if shown is None:
            self.summary.setText(
                "No placement yet. Run to see which toolchain takes which part, and at what cost."
                if self.document.graph is not None
                else "Open a model to begin."
            )
        else:
            placement = shown.placement
            total = sum(p.estimated_us or 0 for p in placement.partitions)
            text = f"{counted(len(placement.partitions), 'partition')} · sum {time_text(total)}"
            if placement.conversions:
                times = [each.us for each in placement.conversions if each.us is not None]
                converted = counted(len(placement.conversions), "value")
                text += f" · {converted} converted once, {time_text(sum(times))}"
            if placement.estimated_us is not None:
                text += f" · with hand-overs {time_text(placement.estimated_us)}"
            if placement.measured_us is not None:
                text += f" · measured {time_text(placement.measured_us)}"
            self.summary.setText(text)
        self.filter.setVisible(shown is not None)
        self._show_selection()

    def _index(self) -> None:
        self._rivals: dict[tuple[int, ...], list[str]] = {}
        for candidate in self.document.candidates.values():
            self._rivals.setdefault(candidate.nodes, []).append(candidate.id)
        self._reference = self.document.reference_partitions()

    def _recompare(self) -> None:
        self._index()
        self.model.refresh()

    def _picked(self) -> None:
        nodes = [n for row in self.table.chosen() for n in row.nodes]
        if nodes:
            self.document.select(nodes)

    def _show_selection(self) -> None:
        """Mark the partitions that the selection touches, without selecting in turn."""
        selection = self.table.selectionModel()
        chosen = self.document.selection
        owners = self.document.partitions
        wanted = {owners[n].id for n in chosen if n in owners} if len(chosen) < 2000 else set()
        if wanted and {row.id for row in self.table.chosen()} == wanted:
            return  # chosen here, maybe by a single cell: that cell stays selected
        selection.blockSignals(True)
        selection.clearSelection()
        first = None
        if wanted:
            for place in range(self.model.rowCount()):
                index = self.model.index(place, 0)
                if self.model.row(index).id in wanted:
                    flags = QItemSelectionModel.SelectionFlag
                    selection.select(index, flags.Select | flags.Rows)
                    first = first or index
        selection.blockSignals(False)
        if first is not None:
            self.table.scrollTo(first)
        self.table.viewport().update()


class ModelTree(QTreeWidget):
    """Scopes and operators with the same selection as the graph."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("modelTree")
        self.setAccessibleName("Operators of the model")
        self.setHeaderLabels(["Name", "Operator", "Shape", "Toolchain"])
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setUniformRowHeights(True)
        self.copying = Copying(self)
        self._items: dict[int, QTreeWidgetItem] = {}
        self._quiet = False
        self.itemSelectionChanged.connect(self._picked)
        self.itemExpanded.connect(self._fill)
        document.graph_changed.connect(self.rebuild)
        document.placement_changed.connect(self._label_all)
        document.selection_changed.connect(self._show_selection)
        self.rebuild()

    def rebuild(self) -> None:
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
            self._add(
                self.invisibleRootItem(), None, [n for n in range(graph.count) if n not in inside]
            )
            for at in range(4):
                self.resizeColumnToContents(at)
            self.setColumnWidth(0, min(self.columnWidth(0), 190))
        self._quiet = False

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
                    [
                        name.rsplit("/", 1)[-1] or name,
                        short_operator(node.op),
                        node_shapes(node),
                        "",
                    ]
                )
                item.setToolTip(0, name)
                item.setData(0, Qt.ItemDataRole.UserRole, entry)
                self._items[entry] = item
                self._label(entry)
            else:
                scope = groups[entry]
                item = QTreeWidgetItem(
                    [scope.label, counted(len(scope.members), "operator"), "", ""]
                )
                item.setData(0, Qt.ItemDataRole.UserRole, entry)
                item.setChildIndicatorPolicy(QTreeWidgetItem.ChildIndicatorPolicy.ShowIndicator)
            parent.addChild(item)

    def _fill(self, item: QTreeWidgetItem) -> None:
        """Children are made when their scope is opened: 10,000 items are never needed at once."""
        entry = item.data(0, Qt.ItemDataRole.UserRole)
        if not isinstance(entry, str) or item.childCount():
            return
        scope = self.document.scopes[entry]
        inner = {m for g in self._children.get(entry, ()) for m in self.document.scopes[g].members}
        self._add(item, entry, [n for n in scope.members if n not in inner])

    def _label(self, operator: int) -> None:
        item = self._items[operator]
        partition = self.document.partition_of(operator)
        item.setText(3, toolchain_title(partition.toolchain) if partition else "")
        if partition:
            item.setIcon(0, chip(partition.toolchain))

    def _label_all(self) -> None:
        owners = self.document.partitions
        for operator, item in self._items.items():
            partition = owners.get(operator)
            item.setText(3, toolchain_title(partition.toolchain) if partition else "")
            if partition:
                item.setIcon(0, chip(partition.toolchain))

    def _picked(self) -> None:
        if self._quiet:
            return
        chosen: list[int] = []
        for item in self.selectedItems():
            entry = item.data(0, Qt.ItemDataRole.UserRole)
            chosen += [entry] if isinstance(entry, int) else self.document.scopes[entry].members
        if chosen:
            self._quiet = True
            self.document.select(chosen)
            self._quiet = False

    def _show_selection(self) -> None:
        if self._quiet or self.document.operators is None:
            return
        self._quiet = True
        self.clearSelection()
        chosen = self.document.selection
        if chosen and len(chosen) <= LAZY:
            for operator in sorted(chosen):
                item = self._reveal(operator)
                if item is not None:
                    item.setSelected(True)
                    if operator == self.document.primary:
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


class OutlinePanel:
    """The two views of the outline; the window shows them as tabs."""

    def __init__(self, document: Document, theme: Theme) -> None:
        self.partitions = PartitionsTable(document, theme)
        self.tree = ModelTree(document)
