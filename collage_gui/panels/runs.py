"""Runs and baselines: bars, the list of runs, differences, conversions, transitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QComboBox,
    QHBoxLayout,
    QLabel,
    QLineEdit,
    QPushButton,
    QScrollArea,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.accuracy import accuracy_words
from collage_engine.drawing.palette import toolchain_look, toolchain_title
from collage_engine.drawing.words import (
    DASH,
    counted,
    gain_text,
    signed_time,
    time_text,
)
from collage_engine.records.placement import Baseline, Run
from collage_gui.panels.charts import Bar, BarChart
from collage_gui.panels.cost_words import DIFFERENCE, ESTIMATED, IN_PLACE
from collage_gui.panels.facts import FactsTable
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.panels.transitions import TransitionMatrix
from collage_gui.session import Document, Reference
from collage_gui.theme import Theme

NEUTRAL = "#8a9199"


def baseline_title(baseline: Baseline) -> str:
    """What a baseline is called for people: ``ONNX Runtime alone``, ``greedy oneDNN → TVM``."""
    words = [toolchain_title(word) if toolchain_look(word).title != word else word
             for word in baseline.name.split()]  # fmt: skip
    name = " ".join(words)
    if baseline.kind == "whole-model":
        return f"{toolchain_title(baseline.name)} alone"
    if baseline.kind == "fuseops":
        return "TVM FuseOps"
    if baseline.kind == "user":
        return f"own placement {name}" if "placement" not in name else name
    return name if name.startswith("greedy") else f"greedy {name}"


@dataclass(frozen=True)
class _Difference:
    """A row of the comparison: a partition in place, or a kernel outside every partition."""

    name: str
    toolchain: str | None
    estimated_us: float | None
    in_place_us: float | None
    nodes: tuple[int, ...] = ()

    @property
    def delta(self) -> float | None:
        if self.in_place_us is None:
            return None
        return self.in_place_us - (self.estimated_us or 0.0)


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
        self.reference = QComboBox()
        self.reference.setObjectName("referenceRun")
        self.reference.setAccessibleName("Compare with")
        self.reference.activated.connect(self._reference_chosen)
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
        self.changes = QPushButton("Show changes in graph")
        self.changes.setObjectName("showChanges")
        self.changes.clicked.connect(self.changes_wanted)

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

        self.partitions_model = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.toolchain or "",
                    toolchain=lambda r: r.toolchain,
                    text=lambda r: toolchain_title(r.toolchain) if r.toolchain else "outside",
                    width=156,
                ),
                Column("Partition", lambda r: r.name, width=120),
                Column("Estimated", lambda r: r.estimated_us, "time", width=108, about=ESTIMATED),
                Column("In place", lambda r: r.in_place_us, "time", width=90, about=IN_PLACE),
                Column("Difference", lambda r: r.delta, "signed-time", width=116, about=DIFFERENCE),
            ]
        )
        self.partitions = Table(self.partitions_model, "inPlaceTable", "Partitions in place", theme)
        self.partitions.selectionModel().selectionChanged.connect(
            lambda: self._select(self.partitions)
        )
        self.changes_model = RowsModel(
            [
                Column("Node", lambda r: self._node_name(r.node), width=200),
                Column("Change", lambda r: r.change, width=90),
                Column("Before", lambda r: r.before or "", toolchain=lambda r: r.before,
                       text=lambda r: toolchain_title(r.before), width=130),
                Column("After", lambda r: r.after or "", toolchain=lambda r: r.after,
                       text=lambda r: toolchain_title(r.after), width=130),
                Column("Δ", lambda r: r.delta_us, "signed-time", width=90),
            ]
        )  # fmt: skip
        self.changed = Table(self.changes_model, "changesTable", "Changed nodes", theme)
        self.changed.selectionModel().selectionChanged.connect(lambda: self._select(self.changed))
        self.changes_note = QLabel(wordWrap=True)
        self.changes_note.setProperty("quiet", True)
        change_page = QWidget()
        page = QVBoxLayout(change_page)
        page.setContentsMargins(8, 8, 8, 4)
        head = QHBoxLayout()
        head.addWidget(QLabel("Compare with"))
        head.addWidget(self.reference, 1)
        head.addWidget(self.changes)
        page.addLayout(head)
        page.addWidget(self.changes_note)
        page.addWidget(self.changed, 1)
        page.addStretch(0)
        self.matrix = TransitionMatrix(self.partitions.iconSize())
        matrix_page = QWidget()
        page = QVBoxLayout(matrix_page)
        page.setContentsMargins(8, 8, 8, 4)
        hint = QLabel("Values handed over, from the row's toolchain to the column's; within one "
                      "toolchain: between two of its partitions.", wordWrap=True)  # fmt: skip
        hint.setProperty("quiet", True)
        page.addWidget(hint)
        page.addWidget(self.matrix, 1)
        self.tabs = QTabWidget()
        self.tabs.setObjectName("compareTabs")
        self.tabs.addTab(change_page, "Changes")
        self.tabs.addTab(self.partitions, "In place")
        self.tabs.addTab(matrix_page, "Transitions")
        self.facts = FactsTable(document)
        self.tabs.addTab(self.facts, "Facts")

        box = QHBoxLayout(self)
        box.setContentsMargins(0, 0, 0, 0)
        box.setSpacing(0)
        box.addWidget(scroll, 1)
        box.addWidget(self.tabs, 1)
        for signal in (document.runs_changed, document.placement_changed,
                       document.reference_changed, document.comparison_changed,
                       document.pins_changed):  # fmt: skip
            signal.connect(self.refresh)
        self.refresh()

    # -- content -----------------------------------------------------------------------

    def _run(self) -> Run | None:
        document = self.document
        run = document.run_of(document.shown.run) if document.shown else None
        return run or (document.visible_runs[-1] if document.visible_runs else None)

    def refresh(self) -> None:
        self._bars()
        self._headline()
        self._references()
        self._partitions()
        self._changes()
        self._matrix()
        self.facts.show_facts(self._run())

    def _bars(self) -> None:
        document = self.document
        run = self._run()
        current = document.shown.run if document.shown else None
        bars: list[Bar] = []
        _, against = document.reference_time()
        if document.shown is not None and document.shown.run is None:
            estimate = document.shown.placement.estimated_us
            bars.append(
                Bar("Now (estimated)", estimate, colour=NEUTRAL, pattern="rising", strong=True,
                    note=gain_text(estimate, against) if against is not None else "")
            )  # fmt: skip
        for each in reversed(document.visible_runs[-6:]):
            placement = each.placement
            if placement is None:
                continue
            value = placement.measured_us or placement.estimated_us
            low, high = placement.spread_us or (None, None)
            note = gain_text(value, against) if each.id == current else ""
            if placement.measured_us is None:
                note += " estimated"
            bars.append(
                Bar(
                    document.run_title(each),
                    value,
                    low,
                    high,
                    self.theme.colours.text if each.id == current else NEUTRAL,
                    note=note.strip(),
                    key=f"run:{each.id}",
                    strong=each.id == current,
                    second=placement.estimated_us if placement.measured_us is not None else None,
                )
            )
        for baseline in (
            sorted(run.baselines, key=lambda b: b.measured_us or float("inf")) if run else ()
        ):
            low, high = baseline.spread_us or (None, None)
            look = toolchain_look(
                baseline.name.split()[-1] if baseline.kind == "greedy" else baseline.name
            )
            known = baseline.kind == "whole-model"
            bars.append(
                Bar(baseline_title(baseline), baseline.measured_us, low, high,
                    look.colour if known else NEUTRAL, look.pattern if known else "dots",
                    self._baseline_note(run, baseline),
                    key=f"baseline:{baseline.name}")
            )  # fmt: skip
        self.chart.show_bars(bars, limit=14)

    def _baseline_note(self, run: Run | None, baseline: Baseline) -> str:
        """Why it has no time, or that it is as fast as what was chosen."""
        if baseline.measured_us is None:
            return baseline.reason or ""
        return "= tied with the chosen one" if run and baseline.name in run.tied else ""

    def _headline(self) -> None:
        document, run = self.document, self._run()
        name, against = document.reference_time()
        baseline = document.reference_baseline()
        if baseline is not None:
            name = baseline_title(baseline)
        shown = document.shown
        has = run is not None
        for widget in (self.name, self.note, self.delete):
            widget.setVisible(has)
        if shown is None:
            self.headline.setText("No run yet")
            self.detail.setText("A run measures the candidates, searches the fastest cover and "
                                "confirms it end to end against every baseline.")  # fmt: skip
            return
        placement = shown.placement
        now = placement.measured_us if placement.measured_us is not None else placement.estimated_us
        kind = "measured" if placement.measured_us is not None else "estimated"
        text = f"{time_text(now)} {kind}"
        if against is not None:
            text += f"  {gain_text(now, against)} against {name}"
        self.headline.setText(text)
        parts = [shown.title, counted(len(placement.partitions), "partition")]
        if placement.measured_us is not None:
            total = sum(p.estimated_us or 0 for p in placement.partitions)
            parts.append(f"the partitions' estimates add up to {time_text(total)}")
            parts.append(
                f"with hand-overs {time_text(placement.estimated_us)}, "
                f"off by {signed_time(placement.additive_error_us)}"
            )
        if run is not None and shown.run == run.id:
            if run.winner != "collage":
                parts.append(self._winner_words(run))
            if run.lower_bound_us is not None:
                parts.append(f"no cover is estimated below {time_text(run.lower_bound_us)}")
            parts += accuracy_words(run)[1:]
            counts = run.candidates
            if counts.skipped:
                parts.append(f"{counted(counts.skipped, 'candidate')} left unmeasured")
            parts += [limit.reason or limit.text for limit in run.limits]
        self.detail.setText(" · ".join(parts))
        if run is not None:
            self.name.setPlaceholderText(document.run_title(run))
            for field, value in ((self.name, run.name), (self.note, run.note)):
                if not field.hasFocus():
                    field.setText(value)

    def _winner_words(self, run: Run) -> str:
        won = next((b for b in run.baselines if b.name == run.winner), None)
        name = baseline_title(won) if won else run.winner
        return f"the winner is {name}: it is what is exported"

    def _references(self) -> None:
        document = self.document
        run = self._run()
        entries: list[tuple[str, Reference]] = [("Best baseline", Reference())]
        entries += [
            (baseline_title(baseline), Reference("baseline", baseline.name))
            for baseline in (run.baselines if run else ())
            if baseline.measured_us is not None
        ]
        entries += [
            (document.run_title(each), Reference("run", each.id)) for each in document.visible_runs
        ]
        self.reference.blockSignals(True)
        self.reference.clear()
        for label, reference in entries:
            self.reference.addItem(label, (reference.kind, reference.name))
            if reference == document.reference:
                self.reference.setCurrentIndex(self.reference.count() - 1)
        self.reference.blockSignals(False)

    def _reference_chosen(self) -> None:
        kind, name = self.reference.currentData()
        self.document.set_reference(Reference(kind, name))

    def _bar_chosen(self, key: str) -> None:
        kind, _, name = key.partition(":")
        if kind == "run":
            self.document.show_run(name)
        else:
            self.document.set_reference(Reference("baseline", name))

    def _partitions(self) -> None:
        shown, run = self.document.shown, self._run()
        rows: list[_Difference] = []
        if shown is not None:
            rows += [
                _Difference(p.id, p.instance, p.estimated_us, p.in_place_us, p.nodes)
                for p in shown.placement.partitions
            ]
            if run is not None and shown.run == run.id:
                for r in run.residual:
                    title = r.name if r.calls == 1 else f"{r.name} ×{r.calls}"
                    rows.append(_Difference(title, None, None, r.us))
        self.partitions_model.set_rows(rows)
        if any(row.in_place_us is not None for row in rows):
            self.partitions.sortByColumn(4, Qt.SortOrder.DescendingOrder)

    def _changes(self) -> None:
        document = self.document
        comparison = document.comparison
        rows = [] if comparison is None else [n for n in comparison.nodes if n.change != "same"]
        self.changes_model.set_rows(rows)
        self.changes.setEnabled(comparison is not None)
        if comparison is not None:
            counts = Counter(node.change for node in comparison.nodes)
            per = ", ".join(
                f"{toolchain_title(t)} {a} → {b}" for t, (a, b) in comparison.by_toolchain.items()
            )
            self.changes_note.setText(
                f"{counts['moved']} moved, {counts['regrouped']} regrouped, "
                f"{counts['same']} same · "
                f"{signed_time(comparison.delta_us)} · partitions: {per}"
            )
        elif document.reference.kind == "run":
            self.changes_note.setText("Show another run to compare it with this one.")
        else:
            self.changes_note.setText(
                "Choose a run to compare with, to see which nodes moved between toolchains."
            )
        self.changed.setVisible(comparison is not None)

    def _node_name(self, node: int) -> str:
        graph = self.document.operators
        return graph.name(node) if graph is not None and node < graph.count else DASH

    def _select(self, table: Table) -> None:
        nodes: list[int] = []
        for row in table.chosen():
            nodes += row.nodes if isinstance(row, _Difference) else [row.node]
        if nodes:
            self.document.select(nodes)

    def _matrix(self) -> None:
        shown = self.document.shown
        self.matrix.show_transitions(
            self.document.operators, None if shown is None else shown.placement
        )

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
