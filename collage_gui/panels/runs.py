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

from collage_engine.drawing.layout import AT_A_GLANCE
from collage_engine.drawing.palette import toolchain_look
from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.support.text import counted
from collage_engine.wording.amounts import time_text
from collage_engine.wording.figures import (
    drift_text,
    latency_us,
    was_wanted_quickly,
    winner_title,
)
from collage_engine.wording.titles import baseline_title
from collage_gui.document.document import Document
from collage_gui.panels.bar_chart import NEUTRAL, Bar, BarChart
from collage_gui.panels.run_headline import detail, remark
from collage_gui.panels.run_pages import AllRunsPage, ChangesPage, FactsPage
from collage_gui.panels.shapes import ShapesPage
from collage_gui.theme import Theme
from collage_gui.widgets import SideWindow, lay_out, named, push_button, text_label

TIED_WITH_EXPORTED = "tied with what is exported"
EXPORTED = "exported"


def against_text(document: Document) -> str:
    """Return what the figures beside the bars are against; empty where there is nothing."""
    baseline, (name, us) = (
        document.comparison.reference_baseline(),
        document.comparison.reference_time(),
    )
    name = name if baseline is None else baseline_title(baseline)
    return "" if us is None else f"Per cent: against {name} ({time_text(us)})"


def run_bars(document: Document, run: Run | None) -> list[Bar]:
    """Return the bars of an estimate, of runs, of the best placement found, of baselines.

    Args:
        document: The document; what it shows without a run is an estimate.
        run: The run whose baselines are shown.
    """
    return [
        *_shown_bars(document),
        *_own_bars(document, run),
        *_found_bars(document, run),
        *_baseline_bars(document, run),
    ]


def _against(document: Document, timed: Placement | Baseline | None) -> list[str]:
    """Return the difference from the reference, as far as rounds that both had can tell."""
    delta = document.comparison.difference(timed) if timed is not None else None
    return [delta.text] if delta is not None and delta.state not in ("apart", "same") else []


def _shown_bars(document: Document) -> list[Bar]:
    """Return what is shown without being a run's placement: an estimate of a search."""
    shown = document.placement.shown
    if shown is None or shown.run is not None or shown.found_by is not None:
        return []
    title = "Now (expected)" if shown.estimated else shown.title
    note = ", ".join(_against(document, shown.placement))
    return [Bar(title, latency_us(shown.placement), strong=True, note=note)]


def _bar_of(placement: Placement, label: str, key: str, note: str, strong: bool) -> Bar:
    """Return the bar of a placement, with its whisker."""
    low, high = placement.spread_us or (None, None)
    return Bar(label, latency_us(placement), low, high, note=note, key=key, strong=strong)


def _own_bars(document: Document, shown: Run | None) -> list[Bar]:
    current = document.placement.shown.run if document.placement.shown else None
    bars = []
    under_way = document.runs.provisional
    runs = list(reversed(document.runs.visible[-AT_A_GLANCE:]))
    for run in [under_way, *runs] if under_way is not None else runs:
        placement = run.placement
        if placement is None:
            continue
        # The figure first: a narrow panel cuts the end.
        notes = _against(document, placement)
        notes += [winner_title(run)] if run.winner != "collage" else []
        notes += ["expected"] if placement.measured_us is None else []
        if shown is not None and run is not shown:
            same = run.threads == shown.threads
            notes += [drift_text(run, shown, "") if same else counted(run.threads, "thread")]
        note, strong = ", ".join(filter(None, notes)), run.id == current
        title = document.runs.title_of(run)
        bars.append(_bar_of(placement, title, f"run:{run.id}", note, strong))
    return bars


def _found_bars(document: Document, run: Run | None) -> list[Bar]:
    """Return the best placement that the search found, where a run exports something else."""
    bars = run.best_found() if run is not None else None
    if run is None or bars is None or run.winner == "collage":
        return []
    notes = _against(document, bars)
    if bars.measured_us is None:
        notes = ["expected, not measured"]
    elif "collage" in run.tied:
        notes += [TIED_WITH_EXPORTED]
    note = ", ".join([*notes, counted(len(bars.partitions), "partition")])
    shown = document.placement.shown
    strong = shown is not None and shown.found_by == run.id
    return [_bar_of(bars, "Best of the search", f"found:{run.id}", note, strong)]


def _baseline_bars(document: Document, run: Run | None) -> list[Bar]:
    if run is None:
        return []
    bars = []
    # A quick confirmation says once that it times few of them, and not beside each.
    quick = was_wanted_quickly(run)
    shown = [b for b in run.baselines if b.measured_us is not None or not quick]
    # What the run exports has the bar of the run, unless it takes another time where users run it.
    ours = run.placement.measured_us if run.placement is not None else None
    shown = [b for b in shown if b.name != run.winner or b.measured_us != ours]
    for each in sorted(shown, key=lambda b: b.measured_us or float("inf")):
        low, high = each.spread_us or (None, None)
        single = each.kind == "whole-model"
        notes = _against(document, each) if each.measured_us is not None else []
        bars.append(
            Bar(
                baseline_title(each),
                each.measured_us,
                low,
                high,
                colour=toolchain_look(each.name).colour if single else NEUTRAL,
                note=", ".join(filter(None, [*notes, _baseline_note(run, each)])),
                key=f"baseline:{each.name}",
            )
        )
    return bars


def _baseline_note(run: Run, baseline: Baseline) -> str:
    """Says why a baseline has no time, or is not exported; that it is, or is as fast as what is."""
    if baseline.measured_us is None:
        return baseline.reason or ""
    if baseline.barred is not None:
        return baseline.barred
    if baseline.name == run.winner:
        return "best so far" if run.provisional else EXPORTED
    if baseline.name in run.tied:
        return TIED_WITH_EXPORTED
    return ""


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
