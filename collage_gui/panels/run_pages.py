"""Shows the pages about runs: all of them, what changed between two, and facts of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from collage_engine.records.placement import Run
from collage_engine.wording.amounts import DASH, moment_text, signed_time
from collage_engine.wording.facts import (
    Fact,
    changed_facts,
    limit_facts,
    pin_facts,
    placement_facts,
    run_facts,
)
from collage_engine.wording.figures import (
    baseline_drift,
    difference,
    latency_us,
    winner_title,
)
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.tables import Column, RowsModel, Table, toolchain_column
from collage_gui.theme import Theme
from collage_gui.widgets import action_button, lay_out, text_label

ABOUT_AGAINST = (
    "Compared in the rounds of a run that timed both placements: a quick confirmation times that "
    "of the run before again. The machine has another speed in other runs."
)
ABOUT_DRIFT = (
    "How much slower the baselines were than in the shown run: the median over those that both "
    "runs timed. It is the machine's doing, not the placement's."
)


class AllRunsPage(QWidget):
    """A table of the runs; the shown run is what the others are compared with."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.model = RowsModel(
            [
                Column("Run", document.runs.title_of, width=120),
                Column("Latency", lambda r: latency_us(r.placement), "time"),
                Column("Against shown", self._against, about=ABOUT_AGAINST, width=110),
                Column("Drift", self._drift, "percent", ABOUT_DRIFT),
                Column("Expected", lambda r: r.placement and r.placement.estimated_us, "time"),
                Column(
                    "Partitions", lambda r: r.placement and len(r.placement.partitions), "number"
                ),
                Column("Exported", winner_title, width=140),
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

    def _other(self, run: Run) -> Run | None:
        """Return the run that a run is compared with; None for the shown run itself."""
        shown = self.document.runs.shown_or_last()
        return None if shown is None or shown is run else shown

    def _against(self, run: Run) -> str:
        """Return by how much a run is slower where one run has timed both, or why not."""
        other = self._other(run)
        if other is None:
            return ""
        delta = difference(run.placement, run, other.placement, other)
        return delta.text if delta is not None else DASH

    def _drift(self, run: Run) -> float | None:
        other = self._other(run)
        drift = baseline_drift(run, other) if other is not None else None
        return None if drift is None else 100 * drift


class ChangesPage(QWidget):
    """The page with what to compare with, and the nodes that moved to another toolchain since."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self.document = document
        in_graph = action_button(actions["colour_changes"], "Show in graph", "showChanges")
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

    def _node_name(self, node: int) -> str:
        graph = self.document.operators
        return graph.name(node) if node < graph.count else DASH

    def _select(self) -> None:
        nodes = [row.node for row in self.table.chosen()]
        if nodes:
            self.document.selection.select(nodes)


NONE = "No facts are known of this placement: a run tells those of what it exports."


class FactsPage(QWidget):
    """Lists limits, pins, accuracy, memory, formats and tuning; differences are bold."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("factsPage")
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
