"""Shows all partitions of the shown placement as a table."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout

from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition, Placement
from collage_engine.records.precision import FLOAT32, short
from collage_engine.support.text import counted
from collage_engine.wording.amounts import time_text
from collage_engine.wording.facts import precision_text
from collage_engine.wording.figures import (
    latency_text,
    partition_sum_text,
    partition_sum_us,
    partition_us,
)
from collage_engine.wording.layers import PartitionFigures, by_layer, outside_us, partition_figures
from collage_engine.wording.sentences import (
    ABOUT_EXPECTED,
)
from collage_gui.document.document import Document
from collage_gui.panels.candidates import cost_tip
from collage_gui.panels.tables import Column, RowsModel, Table, border_text, toolchain_column
from collage_gui.theme import Theme
from collage_gui.widgets import Panel, filter_field, lay_out, text_label

ABOUT_TIME = f"Its part of the confirmed run where its layers were timed. Else: {ABOUT_EXPECTED}"
ABOUT_GFLOPS = "Operations of convolutions and matrix products, computed directly, by the time"
ABOUT_GIGABYTES = "Bytes of inputs, weights and outputs, by the time"
ABOUT_WEIGHTS = "Bytes of the constants that these operators read, as the model stores them"
ABOUT_INPUTS = "Bytes of the values that the partition takes from other partitions or inputs"
ABOUT_OUTPUTS = "Bytes of the values that it hands over or that leave the model"
ABOUT_INSIDE = (
    "Bytes of the values between its own operators, each once; fused kernels never write most of "
    "them"
)


NO_PLACEMENT = (
    "There is no placement yet. A run says which toolchain takes which part, and at what cost."
)


class PartitionsPanel(Panel):
    """The panel that lists all partitions of the shown placement, with a summary."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__(document, theme, "partitionsPanel")
        self._figures: dict[str, PartitionFigures] = {}
        self._rows = Placement(partitions=(), estimated_us=None)
        """The shown placement; where one partition is all of it, by its layers."""
        self.model = RowsModel(
            [
                toolchain_column("Toolchain", lambda r: r.instance),
                Column("Time", self._us, "time", ABOUT_TIME, self._cost_tip),
                Column("Operators", self._label, tip=_operators_tip, width=90, stretches=True),
                Column("Nodes", self._nodes, "number", "ONNX nodes"),
                Column("Precision", _precision, tip=_precision_tip, optional=True),
                Column("Expected", lambda r: r.estimated_us, "time", ABOUT_EXPECTED, extra=True),
                Column("Formats", border_text, width=100, extra=True),
                *self._extra_columns(),
            ]
        )
        self.table = Table(self.model, "partitionsTable", "Partitions", theme)
        # Types come first in the names of operators; the tool tip has all of a name.
        self.table.setTextElideMode(Qt.TextElideMode.ElideRight)
        self.columns = self.table.column_button("partitionsColumns")
        self.table.select_nodes(lambda row: row.nodes, document.selection.select)
        self.summary = text_label(look="quiet")
        self.summary.setAlignment(Qt.AlignmentFlag.AlignTop)
        self.filter = filter_field("partitionsFilter", "Filter partitions", self.model.set_filter)
        head = lay_out(QHBoxLayout(), (self.filter, 1), self.columns)
        parts = (self.summary, head, (self.table, 1))
        lay_out(QVBoxLayout(self), *parts, edge=1)
        document.placement.changed.connect(self.refresh)
        document.graph_changed.connect(self.refresh)
        document.selection.changed.connect(self._show_selection)
        self.refresh()

    def _extra_columns(self) -> list[Column]:
        """Return the columns of rates and bytes."""

        def figure(name: str) -> Callable[[Partition], float | None]:
            return lambda row: getattr(self._figures_of(row), name, None)

        return [
            Column("GFLOP/s", figure("gflops"), "number", ABOUT_GFLOPS, extra=True),
            Column("GB/s", figure("gigabytes_per_s"), "number", ABOUT_GIGABYTES, extra=True),
            Column("Weights", figure("weights"), "bytes", ABOUT_WEIGHTS, extra=True),
            Column("Inputs", figure("inputs"), "bytes", ABOUT_INPUTS, extra=True),
            Column("Outputs", figure("outputs"), "bytes", ABOUT_OUTPUTS, extra=True),
            Column("Inside", figure("inside"), "bytes", ABOUT_INSIDE, extra=True),
        ]

    def _figures_of(self, row: Partition) -> PartitionFigures | None:
        """Return the figures of a partition; those of all are made when one is first shown."""
        graph = self.document.graph
        if not self._figures and graph is not None:
            figures = partition_figures(graph, self._rows)
            self._figures = {figure.partition.id: figure for figure in figures}
        return self._figures.get(row.id)

    def _cost_tip(self, row: Partition) -> str:
        return cost_tip(self.document.costs.of(row.candidate))

    def _us(self, row: Partition) -> float | None:
        return partition_us(self._rows, row)

    def _nodes(self, row: Partition) -> int:
        return self.document.operators.count_nodes(row.nodes)

    def _label(self, row: Partition) -> str:
        return self.document.operators.label_with_name(row.nodes)

    def refresh(self) -> None:
        """Show the partitions of the shown placement."""
        shown = self.document.placement.shown
        self._figures = {}
        self._rows = shown.placement if shown else Placement(partitions=(), estimated_us=None)
        if len(self._rows.partitions) == 1:
            self._rows = by_layer(self._rows)
        self.model.set_rows(self._rows.partitions)
        if shown is None:
            self.summary.setText(NO_PLACEMENT)
        else:
            placement = shown.placement
            texts = [counted(len(placement.partitions), "partition")]
            rest_us = outside_us(placement) if placement.layers else None
            if placement.measured_us is not None:
                rest = f", {time_text(rest_us)} of it outside of partitions" if rest_us else ""
                texts.append(latency_text(placement) + rest)
            if len(placement.partitions) == 1 and placement.measured_us is not None:
                layers = counted(len(placement.layers), "layer") + self._without_row_text(placement)
                texts.append(layers if rest_us is not None else "its layers were not timed")
            else:
                texts.append(_expected_text(placement))
            self.summary.setText(" · ".join(filter(None, texts)))
        self.filter.setVisible(shown is not None)
        self.columns.setVisible(shown is not None)
        self.table.setVisible(shown is not None)
        self._show_selection()

    def _without_row_text(self, placement: Placement) -> str:
        """Return ``, 0.270 µs in 1 without a node``: what :func:`by_layer` gives no row."""
        inside = [layer for layer in placement.layers if layer.partition is not None]
        inserted_us = [layer.us for layer in inside if not layer.operators]
        if len(self._rows.partitions) == 1 or not inserted_us:
            return ""
        return f", {time_text(sum(inserted_us))} in {len(inserted_us)} without a node"

    def _show_selection(self) -> None:
        """Mark the partitions that the selection touches, without selecting in turn."""
        chosen = self.document.selection.operators
        owners = {n: row for row in self._rows.partitions for n in row.nodes}
        wanted = {owners[n].id for n in chosen if n in owners} if len(chosen) < 2000 else set()
        if wanted and {row.id for row in self.table.chosen()} == wanted:
            return
        self.table.show_rows(lambda row: row.id in wanted)


def _operators_tip(row: Partition) -> str:
    """Return the formats of what a partition takes and gives, and its nodes in the file."""
    return "\n".join([*filter(None, [border_words(row.takes, row.gives)]), *row.onnx_nodes[:20]])


def _precision(row: Partition) -> str | None:
    """Return a precision below that of the model."""
    return None if row.precision == FLOAT32 else short(row.precision)


def _precision_tip(row: Partition) -> str:
    return precision_text(row.precision, row.max_rel_error)


def _expected_text(placement: Placement) -> str:
    """Return ``17.6 µs expected: 16.6 µs in the partitions, 0.974 µs converting 1 value``."""
    total_us, us = partition_sum_us(placement), placement.estimated_us
    if us is None or total_us is None:
        return partition_sum_text(placement)
    parts = [f"{time_text(total_us)} in the partitions"]
    if placement.conversions:
        spent_us = sum(each.us for each in placement.conversions if each.us is not None)
        values = counted(len(placement.conversions), "value")
        parts.append(f"{time_text(spent_us)} converting {values}")
    elif time_text(total_us) == time_text(us):
        return f"{time_text(us)} expected"
    return f"{time_text(us)} expected: {', '.join(parts)}"
