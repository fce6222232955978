"""Shows what is known of the shown run beside its times, next to the reference run."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QAbstractItemView, QHeaderView, QTreeWidget, QTreeWidgetItem

from collage_engine.drawing.facts import (
    Fact,
    changed_facts,
    limit_facts,
    pin_facts,
    placement_facts,
    run_facts,
)
from collage_engine.drawing.formatting import DASH
from collage_engine.records.placement import Run
from collage_gui.document.document import Document
from collage_gui.panels.copying import allow_copying
from collage_gui.widgets import plain_tip


class FactsTable(QTreeWidget):
    """Lists limits, pins, accuracy, memory, formats and tuning; differences are bold."""

    def __init__(self, document: Document) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("factsTable")
        self.setAccessibleName("Limits, accuracy, memory, formats and tuning of the run")
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setRootIsDecorated(False)
        self.setIndentation(12)
        self.setWordWrap(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        allow_copying(self)

    def show_facts(self, run: Run | None) -> None:
        """Show the facts of a run, or of a search when the shown placement comes from one."""
        document = self.document
        shown = document.placement.shown
        other: Run | None = None
        if shown is not None and shown.run is None:
            facts = [*limit_facts(document.execution.limits), *pin_facts(document.pins.verdicts)]
            facts += placement_facts(shown.placement)
        else:
            facts = run_facts(run) if run is not None else []
            if run is not None and document.comparison.reference.kind == "run":
                other = document.runs.find(document.comparison.reference.name)
                other = None if other is run else other
        title = shown.title if shown is not None else ""
        headers = ["", title] + ([document.runs.title_of(other)] if other is not None else [])
        self.clear()
        self.setColumnCount(len(headers))
        self.setHeaderLabels(headers)
        self._fill(facts, other)
        if shown is not None and not facts:
            none = QTreeWidgetItem(
                self,
                ["No facts are known of this placement: a run tells those of what it exports."],
            )
            none.setFirstColumnSpanned(True)
            none.setFlags(Qt.ItemFlag.NoItemFlags)
        self.expandAll()
        header = self.header()
        header.setStretchLastSection(True)
        header.setSectionResizeMode(0, QHeaderView.ResizeMode.ResizeToContents)
        for at in range(1, len(headers)):
            header.setSectionResizeMode(at, QHeaderView.ResizeMode.Stretch)

    def _fill(self, facts: list[Fact], other: Run | None) -> None:
        groups: dict[str, QTreeWidgetItem] = {}
        for fact, before, now in changed_facts(run_facts(other) if other else [], facts):
            group = groups.get(fact.group)
            if group is None:
                group = groups[fact.group] = QTreeWidgetItem(self, [fact.group])
                group.setFirstColumnSpanned(True)
                group.setFlags(Qt.ItemFlag.ItemIsEnabled)
                _bold(group, 0)
            texts = [fact.name, now or DASH]
            if other is not None:
                texts.append(before or DASH)
            item = QTreeWidgetItem(group, texts)
            for column, text in enumerate(texts):
                item.setToolTip(column, plain_tip(fact.tip or text))
            if other is not None and before != now:
                _bold(item, 1)


def _bold(item: QTreeWidgetItem, column: int) -> None:
    font = item.font(column)
    font.setWeight(QFont.Weight.DemiBold)
    item.setFont(column, font)
