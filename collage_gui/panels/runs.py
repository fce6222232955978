"""Shows runs and baselines as bars, the name and note of a run, and pages about it."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QPoint
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLineEdit,
    QScrollArea,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.placement import Run
from collage_gui.document.document import Document
from collage_gui.panels.bar_chart import BarChart
from collage_gui.panels.run_bars import against_text, run_bars
from collage_gui.panels.run_headline import detail, remark
from collage_gui.panels.run_pages import AllRunsPage, ChangesPage, FactsPage
from collage_gui.panels.shapes import ShapesPage
from collage_gui.theme import Theme
from collage_gui.widgets import SideWindow, lay_out, named, push_button, text_label


class RunsPanel(QWidget):
    """Compares the shown run with all runs and baselines, and tells more of it on pages."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName("runsPanel")
        self.chart = BarChart(
            theme,
            "runsChart",
            "Latency of runs and baselines",
            (
                "Runs and baselines appear here: how fast the placement is, and what you could "
                "have without it."
            ),
        )
        self.chart.chosen.connect(self._bar_chosen)
        self.against = text_label(look="quiet", name="runsAgainst")
        self.detail = text_label(look="quiet")
        self.remark = text_label(name="runRemark")
        self.name = named(
            QLineEdit(placeholderText="Name of the run"), "runName", "Name of the run"
        )
        self.name.editingFinished.connect(self._rename)
        self.note = named(QLineEdit(placeholderText="Note"), "runNote", "Note on the run")
        self.note.editingFinished.connect(self._annotate)
        self.delete = push_button("Delete run", "deleteRun", self._delete)
        self.changes = ChangesPage(document, theme, actions)
        self.all_runs = AllRunsPage(document, theme)
        self.shapes = ShapesPage(document, theme, actions)
        self.facts = FactsPage(document, theme)
        self.facts_window = SideWindow("Details of the run", self.facts, self)
        self.details = push_button(
            "Details…",
            "runDetails",
            lambda: self.facts_window.open_at(QPoint(0, 0)),
            "Accuracy, memory, limits, formats and tuning",
        )
        self.tabs = named(QTabWidget(), "compareTabs")
        self.tabs.setUsesScrollButtons(True)
        self.tabs.addTab(self._bars_page(), "Latency")
        self.tabs.addTab(self.changes, "Changes")
        self.tabs.addTab(self.all_runs, "All runs")
        self.tabs.addTab(self.shapes, "Shapes")
        document.shapes.changed.connect(self._offer_shapes)
        lay_out(QVBoxLayout(self), self.tabs, edge=0)
        for signal in (
            document.runs.changed,
            document.placement.changed,
            document.comparison.reference_changed,
            document.comparison.changed,
            document.pins.changed,
            document.execution.running_changed,
        ):
            signal.connect(self.refresh)
        self.refresh()

    def _bars_page(self) -> QScrollArea:
        left = QWidget()
        edit = lay_out(QHBoxLayout(), self.name, (self.note, 1), self.details, self.delete)
        parts = (self.remark, self.against, self.chart, self.detail, edit, None)
        lay_out(QVBoxLayout(left), *parts, edge=1)
        scroll = QScrollArea(widgetResizable=True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(left)
        return scroll

    # -- content -----------------------------------------------------------------------

    def refresh(self) -> None:
        """Show the runs, and the shown one in every page."""
        document = self.document
        run = document.runs.shown_or_last()
        self.chart.show_bars(run_bars(document, run))
        self.against.setText(against_text(document))
        self.detail.setText(detail(document, run))
        self.remark.setText(remark(document, run))
        self.remark.setVisible(bool(self.remark.text()))
        self._fields(run)
        self.changes.refresh()
        self.all_runs.refresh()
        self.shapes.refresh()
        self._offer_shapes()
        self.facts.show_facts(run)

    def _offer_shapes(self) -> None:
        """Give the table of shapes a tab where there is one to show."""
        has_rows = bool(self.shapes.model.rows)
        self.tabs.setTabVisible(self.tabs.indexOf(self.shapes), has_rows)

    def _fields(self, run: Run | None) -> None:
        for widget in (self.name, self.note, self.details, self.delete):
            widget.setVisible(run is not None and run is not self.document.runs.provisional)
        if run is not None and self.document.placement.shown is not None:
            self.name.setPlaceholderText(self.document.runs.title_of(run))
            for field, value in ((self.name, run.name), (self.note, run.note)):
                if not field.hasFocus():
                    field.setText(value)
                    field.setCursorPosition(0)

    def _bar_chosen(self, key: str) -> None:
        """Show the placement of a bar; a baseline's is shown beside another, by *Compare*."""
        kind, _, name = key.partition(":")
        if kind == "run":
            self.document.runs.show(name)
        elif kind == "found":
            self.document.runs.show(name, found=True)

    # -- editing -----------------------------------------------------------------------

    def _rename(self) -> None:
        run = self.document.runs.shown_or_last()
        if run is not None and self.name.text().strip():
            self.document.runs.edit(run, "name", self.name.text().strip())

    def _annotate(self) -> None:
        run = self.document.runs.shown_or_last()
        if run is not None:
            self.document.runs.edit(run, "note", self.note.text())

    def _delete(self) -> None:
        run = self.document.runs.shown_or_last()
        if run is not None:
            self.document.runs.delete(run.id)
            left = self.document.runs.visible
            if left:
                self.document.runs.show(left[-1].id)
