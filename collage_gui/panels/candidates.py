"""Shows every candidate that contains the selection, as a table, and what its costs are."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.answers import Alternative
from collage_engine.records.candidate import CandidateRecord, Cost
from collage_engine.records.placement import Partition, Placement
from collage_engine.support.text import NAMED, counted
from collage_engine.wording.amounts import DASH, time_text
from collage_engine.wording.figures import isolated_us, partition_us, price_known
from collage_engine.wording.sentences import (
    ABOUT_EXPECTED,
    ABOUT_PRICE,
    EXPECTED,
    ISOLATED,
    LAST_RUN,
    status_text,
)
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import measure_text
from collage_gui.panels.tables import Column, RowsModel, Table, border_text, toolchain_column
from collage_gui.theme import Theme
from collage_gui.widgets import Panel, action_button, filter_field, lay_out, text_label


def cost_tip(cost: Cost) -> str:
    """Return everything that is known of a cost, one fact a line."""
    if cost.state == "invalid":
        return f"Invalid: {cost.reason}"
    if cost.state == "unknown":
        return "Not measured yet"
    lines = []
    if cost.in_model:
        source = (
            "measured in whole placements" if cost.in_model == "seen" else "predicted from them"
        )
        lines.append(f"{time_text(cost.in_model_us)} {EXPECTED}, {source}")
    if cost.median_us is not None:
        repeats = counted(cost.count, "repeat")
        lines.append(f"{time_text(cost.median_us)} {ISOLATED}, the median of {repeats}")
    if cost.low_us is not None and cost.high_us is not None:
        lines.append(f"20th–80th percentile {time_text(cost.low_us)} – {time_text(cost.high_us)}")
    if cost.max_rel_error is not None:
        lines.append(f"Largest relative error {cost.max_rel_error:.1e}")
    if cost.measured_at:
        store = ", from the store" if cost.from_store else ""
        lines.append(f"Measured {cost.measured_at}{store}")
    return "\n".join(lines)


def partition_text(placement: Placement, partition: Partition, cost: Cost) -> str:
    """Return a partition's time: ``126 µs expected in this model (111 µs isolated)``.

    Args:
        placement: A placement.
        partition: A partition of it. Where it is the whole placement, its time is what was measured
            end to end, and nothing else is told.
        cost: The cost of its candidate; one that changed since the placement was made is left
            out.

    Returns:
        The times that are known; empty where none is.
    """
    us, alone_us = partition_us(placement, partition), isolated_us(cost)
    if us is None:
        return ""
    if us == placement.measured_us:
        return f"{time_text(us)} measured"
    if placement.layers:
        return f"{time_text(us)} in the {LAST_RUN}"
    text = f"{time_text(us)} {EXPECTED}"
    if alone_us is not None and cost.in_model and cost.us == us:
        return f"{text} ({time_text(alone_us)} {ISOLATED})"
    return text


MEASURE_NOW = "Measure now"
ABOUT_ISOLATED = (
    "Measured by itself, over and over, so that its weights and code are in the nearest caches. In "
    "the model, where everything else runs in between, it takes longer."
)

PRICE_COLUMN = 2


def operators_tip(record: CandidateRecord, graph: OperatorGraph) -> str:
    """Return a candidate's nodes in the file, its inner name, and its library calls."""
    names = graph.onnx_names(record.nodes)
    left = len(names) - NAMED
    lines = [*names[:NAMED], *([f"and {left} more"] if left > 0 else [])]
    lines.append(f"internally {record.label}")
    if record.composites:
        lines.append("Library calls: " + ", ".join(graph.label(of) for _, of in record.composites))
    return "\n".join(lines)


def _rule_tip(record: CandidateRecord) -> str:
    return f"{toolchain_title(record.instance.id)}\nrule {record.rule or DASH}"


NOTHING_MEASURED = (
    "Nothing is measured yet. A run finds every sub-graph that a toolchain could take, measures "
    "each, and searches for the fastest placement."
)


class CandidatesPanel(Panel):
    """Linked both ways: selection → candidates; a chosen candidate → its nodes in the graph."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__(document, theme, "candidatesPanel")
        d, of = document, document.costs.of
        self.model = RowsModel(
            [
                toolchain_column("Toolchain", lambda r: r.instance.id, _rule_tip),
                Column("Here", self._here, "time", ABOUT_EXPECTED, self._cost_tip),
                Column(
                    "Price", self._price, "signed-time", ABOUT_PRICE, self._price_tip, optional=True
                ),
                Column("Status", self._status, tip=self._status, width=110),
                Column(
                    "Operators",
                    lambda r: d.operators.label_with_name(r.nodes),
                    tip=lambda r: operators_tip(r, d.operators),
                    width=90,
                    stretches=True,
                ),
                Column(
                    "Isolated", lambda r: isolated_us(of(r.id)), "time", ABOUT_ISOLATED, extra=True
                ),
                Column("Nodes", lambda r: d.operators.count_nodes(r.nodes), "number", extra=True),
                Column("Formats", border_text, width=136, extra=True),
            ]
        )
        self.model.bold = lambda r: r.id in self._chosen_ids()
        self.model.faded = lambda r: not of(r.id).usable
        self.table = Table(self.model, "candidatesTable", "Candidates", theme)
        # Types come first in the names of operators; the tool tip has all of a name.
        self.table.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.table.selectionModel().selectionChanged.connect(self._picked)
        self.table.sortByColumn(PRICE_COLUMN, Qt.SortOrder.AscendingOrder)
        self.filter = filter_field("candidatesFilter", "Filter candidates", self._filter)
        self.count = text_label(look="small", wraps=False)
        self.measure = action_button(actions["measure"], MEASURE_NOW, "measureNow")
        self.hint = text_label(look="quiet")
        top = lay_out(QHBoxLayout(), (self.filter, 1), self.table.column_button())
        buttons = lay_out(QHBoxLayout(), self.measure, None, self.count)
        parts = (top, self.hint, (self.table, 1), buttons)
        lay_out(QVBoxLayout(self), *parts, edge=1)
        document.selection.changed.connect(self.refresh)
        document.questions.explanation_changed.connect(self.refresh)
        document.costs.candidates_changed.connect(self.refresh)
        document.placement.changed.connect(self._recost)
        document.costs.changed.connect(self._recost)
        self.refresh()

    def _cost_tip(self, row: CandidateRecord) -> str:
        return cost_tip(self.document.costs.of(row.id))

    def _alternative(self, row: CandidateRecord) -> Alternative | None:
        """Return what the engine says of a candidate at the primary operator."""
        return self.document.questions.alternatives.get(row.id)

    def _here(self, row: CandidateRecord) -> float | None:
        told = self._alternative(row)
        return self.document.costs.of(row.id).us if told is None else told.here_us

    def _price(self, row: CandidateRecord) -> float | None:
        told = self._alternative(row)
        if told is not None and told.status != "at least":
            return told.whole_us
        price = self.document.costs.prices.get(row.id)
        return None if price is None or price.at_least else price.us

    def _status(self, row: CandidateRecord) -> str:
        """Return what is known of a choice at the primary operator; without one, of its cost."""
        told, cost = self._alternative(row), self.document.costs.of(row.id)
        if told is not None:
            return status_text(told)
        if cost.state == "measured":
            return "stored" if cost.from_store else "measured"
        return f"invalid: {cost.reason}" if cost.state == "invalid" else cost.state

    def _price_tip(self, row: CandidateRecord) -> str:
        """Say what is known of the price, also where there is no amount to show."""
        costs = self.document.costs
        return price_known(costs.prices.get(row.id), measured=costs.of(row.id).usable)

    def _chosen_ids(self) -> set[str]:
        owners = self.document.placement.partitions
        return {owners[n].candidate for n in self.document.selection.operators if n in owners}

    def refresh(self) -> None:
        """Take the candidates of the selection; without one, all of them."""
        document, chosen = self.document, self.document.selection.operators
        rows = list(document.questions.candidates) if chosen else []
        if not rows:
            every = document.costs.candidates.values()
            rows = [c for c in every if not chosen or not chosen.isdisjoint(c.nodes)]
        keep = document.selection.candidate
        if [r.id for r in rows] != [r.id for r in self.model.rows]:
            with QSignalBlocker(self.table.selectionModel()):
                self.model.set_rows(rows)
        else:
            self.model.refresh()
        if keep is not None:
            self.table.show_rows(lambda row: row.id == keep)
        self._recost(refresh=False)

    def _recost(self, refresh: bool = True) -> None:
        if refresh:
            self.model.refresh()
        document = self.document
        total = len(self.model.rows)
        shown = self.model.rowCount()
        measured = sum(document.costs.of(r.id).state != "unknown" for r in self.model.rows)
        self.count.setText(
            f"{shown:,} of {counted(total, 'candidate')} · {measured:,} measured" if total else ""
        )
        hint = "Select a node or a partition to see only its candidates."
        self.hint.setText(hint if document.costs.candidates else NOTHING_MEASURED)
        self.hint.setVisible(not (document.costs.candidates and document.selection.operators))
        self.measure.setText(measure_text(document, short=True) or MEASURE_NOW)
        self.measure.setToolTip(measure_text(document))

    def _filter(self) -> None:
        self.model.set_filter(self.filter.text())
        self._recost(refresh=False)

    def _picked(self) -> None:
        rows = self.table.chosen()
        self.document.selection.pick_candidate(rows[0].id if rows else None)
