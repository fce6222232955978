"""Compares all runs of a document side by side, with what the machine's speed did in between."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

from collage_engine.drawing.figures import (
    baseline_drift,
    latency_us,
    winner_title,
    without_drift_us,
)
from collage_engine.drawing.formatting import moment_text
from collage_engine.records.placement import Run
from collage_gui.document.document import Document
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, text_label

ABOUT_DRIFT = (
    "How much slower the baselines were than in the shown run: the median over those that both "
    "runs timed. It is the machine's doing, not the placement's."
)
ABOUT_WITHOUT = "The latency at the speed that the machine had for the shown run"


class AllRunsPage(QWidget):
    """A table of the runs; the shown run is what the others are compared with."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.model = RowsModel(
            [
                Column("Run", document.runs.title_of, width=120),
                Column("Latency", lambda r: latency_us(r.placement), "time"),
                Column("Against shown", self._gain, "percent"),
                Column("Drift", self._drift, "percent", ABOUT_DRIFT),
                Column("Without drift", self._without, "time", ABOUT_WITHOUT),
                Column("Expected", _expected, "time"),
                Column("Partitions", _partitions, "number"),
                Column("Exported", winner_title, width=140),
                Column("Threads", lambda r: r.threads, "number"),
                Column("Started", lambda r: r.started_at, text=_started, width=170),
                Column("Note", lambda r: r.note, width=160),
            ]
        )
        self.model.bold = lambda r: r is document.runs.shown_or_last()
        self.table = Table(self.model, "allRunsTable", "All runs", theme)
        self.table.doubleClicked.connect(lambda index: self._show(self.model.row(index)))
        hint = text_label("Each run against the shown one. A double click shows a run.", "quiet")
        lay_out(QVBoxLayout(self), hint, (self.table, 1), margins=(8, 8, 8, 4))

    def refresh(self) -> None:
        """Show the runs as they are now."""
        self.model.set_rows(self.document.runs.visible)

    def _show(self, run: Run) -> None:
        self.document.runs.show(run.id)

    def _other(self, run: Run) -> Run | None:
        """Returns the run that a run is compared with; None for the shown run itself."""
        shown = self.document.runs.shown_or_last()
        return None if shown is None or shown is run else shown

    def _gain(self, run: Run) -> float | None:
        other = self._other(run)
        ours, reference = latency_us(run.placement), latency_us(other.placement if other else None)
        return 100 * (ours / reference - 1) if ours is not None and reference else None

    def _drift(self, run: Run) -> float | None:
        other = self._other(run)
        drift = baseline_drift(run, other) if other is not None else None
        return None if drift is None else 100 * drift

    def _without(self, run: Run) -> float | None:
        other = self._other(run)
        return latency_us(run.placement) if other is None else without_drift_us(run, other)


def _expected(run: Run) -> float | None:
    return run.placement.estimated_us if run.placement is not None else None


def _partitions(run: Run) -> int | None:
    return len(run.placement.partitions) if run.placement is not None else None


def _started(run: Run) -> str:
    return moment_text(run.started_at)
