"""Shows what is known of the shown run beside its times, next to the reference run."""

from __future__ import annotations

from PySide6.QtWidgets import QVBoxLayout, QWidget

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
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme
from collage_gui.widgets import lay_out, text_label

NONE = "No facts are known of this placement: a run tells those of what it exports."


class FactsPage(QWidget):
    """Lists limits, pins, accuracy, memory, formats and tuning; differences are bold."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("factsPage")
        self.model = RowsModel(
            [
                Column("Subject", lambda r: r[0].group),
                Column("Fact", lambda r: r[0].name, width=170),
                Column("Here", lambda r: r[2] or DASH, tip=_tip, width=190),
                Column("In the run compared with", lambda r: r[1], tip=_tip, optional=True),
            ]
        )
        self.table = Table(self.model, "factsTable", "Facts of the run", theme)
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
