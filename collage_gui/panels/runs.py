"""Runs and baselines: bars, the name and note of a run, and pages that tell more of it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.placement import Run
from collage_gui.panels.changes import ChangesPage
from collage_gui.panels.charts import BarChart
from collage_gui.panels.facts import FactsTable
from collage_gui.panels.in_place import InPlaceTable
from collage_gui.panels.run_bars import run_bars
from collage_gui.panels.run_headline import detail, headline
from collage_gui.panels.transitions import TransitionsPage
from collage_gui.session import Document, Reference
from collage_gui.theme import Theme


class RunsPanel(QWidget):
    changes_wanted = Signal()
    """Show the differences with the reference in the graph."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("runsPanel")
        self.chart = BarChart(
            theme,
            "runsChart",
            "Latency of runs and baselines",
            "Runs and baselines appear here: how fast the placement is, and what you could have "
            "without it.",
        )
        self.chart.chosen.connect(self._bar_chosen)
        self.headline = QLabel(wordWrap=True)
        self.headline.setObjectName("headline")
        self.headline.setProperty("heading", True)
        self.detail = QLabel(wordWrap=True)
        self.detail.setProperty("quiet", True)
        self.name = QLineEdit(placeholderText="Name of the run")
        self.name.setObjectName("runName")
        self.name.setAccessibleName("Name of the run")
        self.name.editingFinished.connect(self._rename)
        self.note = QLineEdit(placeholderText="Note")
        self.note.setObjectName("runNote")
        self.note.setAccessibleName("Note on the run")
        self.note.editingFinished.connect(self._annotate)
        self.delete = QPushButton("Delete run")
        self.delete.setObjectName("deleteRun")
        self.delete.clicked.connect(self._delete)
        self.changes = ChangesPage(document, theme)
        self.changes.wanted_in_graph.connect(self.changes_wanted)
        self.in_place = InPlaceTable(document, theme)
        self.transitions = TransitionsPage(document, self.in_place.iconSize())
        self.facts = FactsTable(document)
        self.tabs = QTabWidget()
        self.tabs.setObjectName("compareTabs")
        for page, title in (
            (self.changes, "Changes"),
            (self.in_place, "In place"),
            (self.transitions, "Transitions"),
            (self.facts, "Facts"),
        ):
            self.tabs.addTab(page, title)

        box = QHBoxLayout(self)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(0)
        box.addWidget(self._bars_page(), 1)
        box.addWidget(self.tabs, 1)
        for signal in (
            document.runs_changed,
            document.placement_changed,
            document.reference_changed,
            document.comparison_changed,
            document.pins_changed,
        ):
            signal.connect(self.refresh)
        self.refresh()

    def _bars_page(self) -> QScrollArea:
        left = QWidget()
        column = QVBoxLayout(left)
        column.setContentsMargins(12, 8, 12, 8)
        column.setSpacing(6)
        column.addWidget(self.headline)
        column.addWidget(self.detail)
        column.addWidget(self.chart)
        edit = QHBoxLayout()
        edit.addWidget(self.name)
        edit.addWidget(self.note, 1)
        edit.addWidget(self.delete)
        column.addLayout(edit)
        column.addStretch()
        scroll = QScrollArea(widgetResizable=True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(left)
        return scroll

    # -- content -----------------------------------------------------------------------

    def _run(self) -> Run | None:
        document = self.document
        run = document.run_of(document.shown.run) if document.shown else None
        return run or (document.visible_runs[-1] if document.visible_runs else None)

    def refresh(self) -> None:
        document, run = self.document, self._run()
        self.chart.show_bars(run_bars(document, run, self.theme.colours.text), limit=14)
        self.headline.setText(headline(document))
        self.detail.setText(detail(document, run))
        self._fields(run)
        self.changes.refresh(run)
        self.in_place.refresh(run)
        self.transitions.refresh()
        self.facts.show_facts(run)

    def _fields(self, run: Run | None) -> None:
        for widget in (self.name, self.note, self.delete):
            widget.setVisible(run is not None)
        if run is not None and self.document.shown is not None:
            self.name.setPlaceholderText(self.document.run_title(run))
            for field, value in ((self.name, run.name), (self.note, run.note)):
                if not field.hasFocus():
                    field.setText(value)

    def _bar_chosen(self, key: str) -> None:
        kind, _, name = key.partition(":")
        if kind == "run":
            self.document.show_run(name)
        else:
            self.document.set_reference(Reference("baseline", name))

    # -- editing -----------------------------------------------------------------------

    def _rename(self) -> None:
        run = self._run()
        if run is not None and self.name.text().strip():
            self.document.rename_run(run.id, self.name.text().strip())

    def _annotate(self) -> None:
        run = self._run()
        if run is not None:
            self.document.note_run(run.id, self.note.text())

    def _delete(self) -> None:
        run = self._run()
        if run is not None:
            self.document.delete_run(run.id)
            left = self.document.visible_runs
            if left:
                self.document.show_run(left[-1].id)
