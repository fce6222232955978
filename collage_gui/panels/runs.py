"""Shows how fast the shown placement is, runs and baselines as bars, and pages about a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Literal

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QFrame,
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
from collage_engine.records.shapes import ShapeChoice, ShapeRow
from collage_engine.support.text import counted
from collage_engine.wording import figures
from collage_engine.wording.amounts import DASH, moment_text, signed_time, time_text
from collage_engine.wording.facts import (
    Fact,
    accuracy_facts,
    changed_facts,
    limit_facts,
    pin_facts,
    placement_facts,
    run_facts,
)
from collage_engine.wording.latencies import shape_cells, sharing_sentences
from collage_engine.wording.sentences import RUN_GOES_ON
from collage_engine.wording.titles import baseline_title, toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.bar_chart import NEUTRAL, Bar, BarChart
from collage_gui.panels.tables import Column, RowsModel, Table, toolchain_column
from collage_gui.theme import Theme
from collage_gui.widgets import (
    ElidedLabel,
    Panel,
    SideWindow,
    action_button,
    lay_out,
    named,
    push_button,
    text_label,
    tool_button,
)

TIED_WITH_EXPORTED = "tied with what is exported"
EXPORTED = "exported"


def against_text(document: Document) -> str:
    """Return what the figures beside the bars are against; empty where there is nothing."""
    name, us = document.comparison.reference_time()
    return "" if us is None else f"Per cent: against {name} ({time_text(us)})"


def run_bars(document: Document, run: Run | None) -> list[Bar]:
    """Return the bars of an estimate, of runs, of the best placement found, of baselines.

    Args:
        document: The document; what it shows without a run is an estimate.
        run: The run whose baselines are shown.
    """
    bars = [*_shown_bars(document), *_own_bars(document, run)]
    if run is not None:
        bars += [*_found_bars(document, run), *_baseline_bars(document, run)]
    return bars


def _against(document: Document, timed: Placement | Baseline) -> list[str]:
    """Return the difference from the reference, as far as rounds that both had can tell."""
    delta = document.comparison.difference(timed)
    return [delta.text] if delta is not None and delta.state not in ("apart", "same") else []


def _shown_bars(document: Document) -> list[Bar]:
    """Return what is shown without being a run's placement: an estimate of a search."""
    shown = document.placement.shown
    if shown is None or shown.run is not None or shown.found_by is not None:
        return []
    title = "Now (expected)" if shown.estimated else shown.title
    note = ", ".join(_against(document, shown.placement))
    return [Bar(title, figures.latency_us(shown.placement), strong=True, note=note)]


def _bar_of(
    timed: Placement | Baseline,
    label: str,
    key: str,
    note: str,
    strong: bool = False,
    colour: str = NEUTRAL,
) -> Bar:
    """Return the bar of a placement or a baseline, with its whisker."""
    us = figures.latency_us(timed) if isinstance(timed, Placement) else timed.measured_us
    low, high = timed.spread_us or (None, None)
    return Bar(label, us, low, high, colour, note, key, strong)


def _own_bars(document: Document, shown: Run | None) -> list[Bar]:
    current = document.placement.shown.run if document.placement.shown else None
    bars = []
    newest = reversed(document.runs.visible[-AT_A_GLANCE:])
    for run in filter(None, [document.runs.provisional, *newest]):
        placement = run.placement
        if placement is None:
            continue
        # The figure first: a narrow panel cuts the end.
        notes = _against(document, placement)
        notes += [figures.winner_title(run)] if run.winner != "collage" else []
        notes += ["expected"] if placement.measured_us is None else []
        if shown is not None and run is not shown:
            same = run.threads == shown.threads
            notes += [
                figures.drift_text(run, shown, "") if same else counted(run.threads, "thread")
            ]
        note, strong = ", ".join(filter(None, notes)), run.id == current
        title = document.runs.title_of(run)
        bars.append(_bar_of(placement, title, f"run:{run.id}", note, strong))
    return bars


def _found_bars(document: Document, run: Run) -> list[Bar]:
    """Return the best placement that the search found, where a run exports something else."""
    found = run.best_found()
    if found is None or run.winner == "collage":
        return []
    notes = _against(document, found)
    if found.measured_us is None:
        notes = ["expected, not measured"]
    elif "collage" in run.tied:
        notes += [TIED_WITH_EXPORTED]
    note = ", ".join([*notes, counted(len(found.partitions), "partition")])
    shown = document.placement.shown
    strong = shown is not None and shown.found_by == run.id
    return [_bar_of(found, "Best of the search", f"found:{run.id}", note, strong)]


def _baseline_bars(document: Document, run: Run) -> list[Bar]:
    bars = []
    # A quick confirmation says once that it times few of them, and not beside each.
    quick = figures.was_wanted_quickly(run)
    shown = [b for b in run.baselines if b.measured_us is not None or not quick]
    # What the run exports has the bar of the run, unless it takes another time where users run it.
    ours = run.placement.measured_us if run.placement is not None else None
    shown = [b for b in shown if b.name != run.winner or b.measured_us != ours]
    for each in sorted(shown, key=lambda b: b.measured_us or float("inf")):
        title, key = baseline_title(each), f"baseline:{each.name}"
        colour = toolchain_look(each.name).colour if each.kind == "whole-model" else NEUTRAL
        notes = _against(document, each) if each.measured_us is not None else []
        note = ", ".join(filter(None, [*notes, _baseline_note(run, each)]))
        bars.append(_bar_of(each, title, key, note, colour=colour))
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


class RunsPanel(Panel):
    """Compares the shown run with all runs and baselines, and tells more of it on pages."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme, "runsPanel")
        self.chart = BarChart(theme)
        self.chart.chosen.connect(self._bar_chosen)
        self.against = text_label(look="quiet", name="runsAgainst")
        self.detail = text_label(look="quiet")
        self.remark = text_label(name="runRemark")
        self.name = named(
            QLineEdit(placeholderText="Name of the run"), "runName", "Name of the run"
        )
        self.note = named(QLineEdit(placeholderText="Note"), "runNote", "Note on the run")
        self.name.editingFinished.connect(lambda: self._edit("name", self.name.text().strip()))
        self.note.editingFinished.connect(lambda: self._edit("note", self.note.text()))
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
        lay_out(QVBoxLayout(self), self.tabs, edge=0)
        for signal in (
            document.runs.changed,
            document.placement.changed,
            document.comparison.reference_changed,
            document.pins.changed,
            document.shapes.changed,
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
        self.tabs.setTabVisible(self.tabs.indexOf(self.shapes), bool(self.shapes.model.rows))
        self.facts.show_facts(run)

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

    def _edit(self, field: Literal["name", "note"], value: str) -> None:
        """Give the shown run another name, which is never empty, or another note."""
        run = self.document.runs.shown_or_last()
        if run is not None and (value or field == "note"):
            self.document.runs.edit(run, field, value)

    def _delete(self) -> None:
        run = self.document.runs.shown_or_last()
        if run is not None:
            self.document.runs.delete(run.id)
            left = self.document.runs.visible
            if left:
                self.document.runs.show(left[-1].id)


ABOUT_AGAINST = (
    "Compared in the rounds of a run that timed both placements: a quick confirmation times that "
    "of the run before again. The machine has another speed in other runs."
)
ABOUT_DRIFT = (
    "How much slower the baselines were than in the shown run: the median over those that both "
    "runs timed. It is the machine's doing, not the placement's."
)


class AllRunsPage(Panel):
    """A table of the runs; the shown run is what the others are compared with."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme)
        self.model = RowsModel(
            [
                Column("Run", document.runs.title_of, width=120),
                Column("Latency", lambda r: figures.latency_us(r.placement), "time"),
                Column("Against shown", self._against, about=ABOUT_AGAINST, width=110),
                Column("Drift", self._drift, "percent", ABOUT_DRIFT),
                Column("Expected", lambda r: r.placement and r.placement.estimated_us, "time"),
                Column(
                    "Partitions", lambda r: r.placement and len(r.placement.partitions), "number"
                ),
                Column("Exported", figures.winner_title, width=140),
                Column("Threads", lambda r: r.threads, "number"),
                Column("Started", lambda r: moment_text(r.started_at), width=170),
                Column("Note", lambda r: r.note, width=160),
            ]
        )
        self.model.bold = lambda r: r is document.runs.shown_or_last()
        self.table = Table(self.model, "allRunsTable", "All runs", theme)
        shown = self.table.doubleClicked
        shown.connect(lambda index: document.runs.show(self.model.row(index).id))
        hint = text_label("Each run against the shown one. A double click shows a run.", "quiet")
        lay_out(QVBoxLayout(self), hint, (self.table, 1), edge=1)

    def refresh(self) -> None:
        """Show the runs as they are now."""
        self.model.set_rows(self.document.runs.visible)

    def _against(self, run: Run) -> str:
        """Return by how much a run is slower where one run has timed both, or why not."""
        other = self.document.runs.shown_or_last()
        if other is None or other is run:
            return ""
        delta = figures.difference(run.placement, run, other.placement, other)
        return delta.text if delta is not None else DASH

    def _drift(self, run: Run) -> float | None:
        other = self.document.runs.shown_or_last()
        if other is None or other is run:
            return None
        drift = figures.baseline_drift(run, other)
        return None if drift is None else 100 * drift


class ChangesPage(Panel):
    """The page with what to compare with, and the nodes that moved to another toolchain since."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme)
        in_graph = action_button(actions["colour_changes"], "Show in graph", "showChanges")
        self.note = text_label(look="quiet")
        self.model = RowsModel(
            [
                Column(
                    "Node", lambda r: document.operators.names[r.node], width=76, stretches=True
                ),
                Column("Change", lambda r: r.change, width=80),
                toolchain_column("Before", lambda r: r.before),
                toolchain_column("After", lambda r: r.after),
                Column("Difference", lambda r: r.delta_us, "signed-time"),
            ]
        )
        self.table = Table(self.model, "changesTable", "Changed nodes", theme)
        self.table.select_nodes(lambda row: [row.node], document.selection.select)

        button = (in_graph, 0, Qt.AlignmentFlag.AlignTop)
        head = lay_out(QHBoxLayout(), (self.note, 1), button)
        lay_out(QVBoxLayout(self), head, (self.table, 1), None, edge=1)

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
            is_measured = comparison.delta_us is not None
            us = f"{signed_time(comparison.delta_us)}, " if is_measured else ""
            return (
                f"Against {before}: {counts['moved']} moved, {counts['regrouped']} regrouped, "
                f"{counts['same']} same · {us}{comparison.against} · partitions: {per}"
            )
        if self.document.comparison.reference.kind == "run":
            return "Show another run to compare it with this one."
        return (
            "Choose a run in “Against” in the toolbar, to see which nodes moved between toolchains."
        )


ABOUT_GAIN = (
    "How much longer the placement takes than the fastest toolchain that runs the whole model "
    "alone; negative when it is faster"
)


class ShapesPage(Panel):
    """The page with the shapes: latency, items per second, toolchains, gain over the best alone."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme)
        self.model = RowsModel(
            [
                Column("Shape", lambda r: r.choice.text, width=140),
                Column("Latency", lambda r: r.latency_us, "time"),
                Column("Items per second", lambda r: r.items_per_s, "number"),
                Column("Toolchains", _cell("toolchains"), width=170),
                Column("Best single toolchain", _cell("best single toolchain"), width=170),
                Column(
                    "Against it", lambda r: r.gain and 100 / r.gain - 100, "percent", ABOUT_GAIN
                ),
                Column("Partitions", lambda r: r.partitions or None, "number"),
            ]
        )
        self.model.bold = lambda row: row.choice == self._shown()
        self.table = Table(self.model, "shapesTable", "Shapes", theme)
        self.table.selectionModel().selectionChanged.connect(self._picked)
        self.hint = text_label(look="quiet")
        self.choose = action_button(actions["shapes"], name="chooseShapes")
        self.shared = text_label(look="quiet", name="shapesShared")
        top = lay_out(QHBoxLayout(), (self.hint, 1), self.choose)
        lay_out(QVBoxLayout(self), top, (self.table, 1), self.shared, edge=1)

    def refresh(self) -> None:
        """Show the shapes as they are now, with the one that is shown in the graph chosen."""
        shapes = self.document.shapes
        run = self.document.runs.shown_or_last()
        rows, shown = shapes.rows(run), self._shown()
        self.model.set_rows(rows)
        self.table.show_rows(lambda row: row.choice == shown)
        if not shapes.several:
            hint = "This run was one of several; the others have graphs in sessions of their own."
        elif self.document.running:
            hint = "The graph shows the shape whose run is under way."
        else:
            hint = "The graph shows the shape whose row is selected. A run places all of them."
        self.hint.setText(hint)
        placed = sum(bool(row.run) for row in rows)
        shared = sharing_sentences(placed, run.sharing if run is not None else None)
        self.shared.setText(" ".join(f"{text[:1].upper()}{text[1:]}." for text in shared))
        self.shared.setVisible(bool(shared))

    def _shown(self) -> ShapeChoice | None:
        entry = self.document.shapes.shown
        if entry is not None:
            return entry.choice
        run = self.document.runs.shown_or_last()
        rows = run.shapes if run is not None else []
        return next((row.choice for row in rows if run is not None and row.run == run.id), None)

    def _picked(self) -> None:
        choices = [row.choice for row in self.table.chosen()]
        for entry in self.document.shapes.entries:
            if choices[:1] == [entry.choice]:
                self.document.shapes.show(entry)


def _cell(title: str) -> Callable[[ShapeRow], str]:
    """Return what gives a shape's text in a column of the command line's table."""
    return lambda row: shape_cells(row)[title]


NONE = "No facts are known of this placement: a run tells those of what it exports."


class FactsPage(Panel):
    """Lists limits, pins, accuracy, memory, formats and tuning; differences are bold."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme, "factsPage")
        self.model = RowsModel(
            [
                Column("Subject", lambda r: r[0].group, width=88),
                Column("Fact", lambda r: r[0].name, width=240),
                Column("Here", lambda r: r[2] or DASH, tip=_tip, width=190),
                Column("In the run compared with", lambda r: r[1], tip=_tip, optional=True),
            ]
        )
        self.table = Table(self.model, "factsTable", "Facts of the run", theme)
        self.table.setSizeAdjustPolicy(Table.SizeAdjustPolicy.AdjustToContents)
        self.none = text_label(NONE, "quiet")
        lay_out(QVBoxLayout(self), self.none, (self.table, 1))

    def show_facts(self, run: Run | None) -> None:
        """Show the facts of a run, or of a search when the shown placement comes from one."""
        document, pins = self.document, self.document.pins
        shown = document.placement.shown
        other: Run | None = None
        if shown is not None and shown.run is None:
            facts = [*limit_facts(document.execution.limits)]
            facts += pin_facts(pins.verdicts, pins.together_us)
            facts += placement_facts(shown.placement)
        else:
            facts = run_facts(run) if run is not None else []
            if run is not None and run is not document.comparison.run:
                other = document.comparison.run
        before = run_facts(other) if other is not None else []
        self.model.bold = lambda row: other is not None and row[1] != (row[2] or DASH)
        self.model.set_rows(
            [
                (fact, (then or DASH) if other is not None else None, now)
                for fact, then, now in changed_facts(before, facts)
            ]
        )
        self.none.setVisible(not facts)
        self.table.setVisible(bool(facts))


def _tip(row: tuple[Fact, str | None, str]) -> str:
    return row[0].tip or row[2]


def headline(document: Document) -> str:
    """Return latency and gain as a text: ``441 µs measured · 12 % faster than TVM only (…)``."""
    if document.placement.shown is None:
        return ""
    placement = document.placement.shown.placement
    comparison, run = document.comparison, document.runs.shown_or_last()
    if run is not None and run.of_profile:
        return figures.verdict_sentence(run)
    if comparison.reference.kind == "best":
        return figures.answer_text(
            placement, run, [each for each in document.runs.visible if each is not run]
        )
    (name, _), delta = comparison.reference_time(), comparison.difference()
    if delta is None or comparison.is_itself():
        return figures.latency_text(placement)
    other = f"{name} ({time_text(delta.other_us)})"
    return f"{figures.latency_text(placement)} · {figures.speed_text(delta, other)}"


def detail(document: Document, run: Run | None) -> str:
    """Return partitions, estimate, winner, lower bound, accuracy, what is missing, limits."""
    shown = document.placement.shown
    if shown is None:
        return (
            "A run measures the candidates, searches for the fastest placement and confirms it end "
            "to end against every baseline."
        )
    parts = [
        shown.title,
        figures.toolchains_text(shown.placement),
        figures.partition_sum_text(shown.placement),
    ]
    if shown.placement.measured_us is not None:
        parts.append(figures.estimate_text(shown.placement))
    if run is not None and shown.run == run.id:
        parts += _run_texts(document, run)
    return " · ".join(filter(None, parts))


def _run_texts(document: Document, run: Run) -> list[str]:
    if run is document.runs.provisional or run.of_profile:
        return []
    parts = []
    if run.winner != "collage":
        parts.append(f"{figures.winner_title(run)} is exported")
    parts.append(figures.bound_text(run))
    if run.accuracy is not None:
        parts += [f"{fact.name} {fact.value}" for fact in accuracy_facts(run)]
    parts += [limit.reason or limit.text for limit in run.limits]
    other = document.comparison.run
    if other is not None and other is not run:
        parts.append(figures.drift_text(run, other, document.runs.title_of(other)))
    return parts


def remark(document: Document, run: Run | None) -> str:
    """Return what a reader must know of a run's figures: too few measured, or no mix."""
    shown = document.placement.shown
    if run is None or shown is None or shown.run != run.id:
        return ""
    if run is document.runs.provisional:
        return (
            RUN_GOES_ON
            if run.provisional
            else (
                "The run was cancelled. This is the best placement that it had found: it was timed "
                "once and is not kept in the session."
            )
        )
    sentences = [*figures.ending_sentences(run), figures.why_not_found(run)]
    return " ".join(filter(None, sentences))


AGAIN = "confirm_quickly"
"""The action that measures again, where measurements do not decide."""
BUTTONS = {
    "try_here": "Try it here",
    AGAIN: "Measure again",
    "save": "Save",
    "artifact": "Export",
    "split": "Compare",
}
"""The actions that belong to an answer, by id, with what their buttons are called there."""


class AnswerLine(QFrame):
    """One line, which stands there before there is an answer: the graph must not move for it."""

    def __init__(self, document: Document, actions: Mapping[str, QAction]) -> None:
        """Listen to what is shown.

        Args:
            document: The document.
            actions: The main window's actions by id.
        """
        super().__init__()
        self._document = document
        self.setObjectName("answerLine")
        self.text = named(ElidedLabel("heading"), "answer")
        self.buttons = {
            name: action_button(actions[name], title, f"{name}Answer", tool_button)
            for name, title in BUTTONS.items()
        }
        self._compare_tip = actions["split"].toolTip()
        parts = ((self.text, 1), *self.buttons.values())
        lay_out(QHBoxLayout(self), *parts, edge=1)
        for changed in (
            document.placement.changed,
            document.runs.changed,
            document.comparison.reference_changed,
            document.execution.running_changed,
        ):
            changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the latency of what is shown now."""
        running = self._document.execution.running
        unknown = "No placement is timed yet" if running else "Run to see how fast the model can be"
        self.text.setText(headline(self._document) or unknown)
        self.buttons[AGAIN].setVisible(not self._document.comparison.is_decided())
        self.buttons["split"].setToolTip(self._document.compare_refusal or self._compare_tip)
