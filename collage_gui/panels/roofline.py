"""Shows the rates that partitions achieve, and how far they are below the best ones seen."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from collage_engine.drawing.palette import toolchain_title
from collage_engine.drawing.roofline import PartitionRoof, partition_roofs, roofline_sentence
from collage_engine.wording.runs import (
    ABOUT_EFFICIENCY,
    ABOUT_EXPECTED,
    ABOUT_GBPS,
    ABOUT_GFLOPS,
    ABOUT_LEFT,
    ABOUT_ROOF,
)
from collage_gui import words
from collage_gui.document.document import Document
from collage_gui.elided_label import plain
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme

LEFT_COLUMN = 2


class RooflinePage(QWidget):
    """A table of the partitions of the shown placement, the most to win first."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.model = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.partition.instance,
                    toolchain=lambda r: r.partition.toolchain,
                    text=lambda r: toolchain_title(r.partition.instance),
                    width=112,
                ),
                Column("Operators", self._operators, width=96, stretches=True, beside=1),
                Column(words.LEFT_TO_WIN, lambda r: r.left_us, "time", width=104, about=ABOUT_LEFT),
                Column(
                    "Time",
                    lambda r: r.us,
                    "time",
                    width=86,
                    about=words.time_of_last_run_or(ABOUT_EXPECTED),
                ),
                Column("GFLOP/s", lambda r: r.gflops, "number", width=86, about=ABOUT_GFLOPS),
                Column("GB/s", lambda r: r.gigabytes_per_s, "number", width=86, about=ABOUT_GBPS),
                Column("Roof", lambda r: r.roof_us, "time", width=86, about=ABOUT_ROOF),
                Column(
                    words.OF_THE_ROOFLINE,
                    lambda r: None if r.efficiency is None else 100 * r.efficiency,
                    "share",
                    width=118,
                    about=ABOUT_EFFICIENCY,
                ),
            ]
        )
        self.table = Table(self.model, "rooflineTable", words.ROOFLINE_TITLE, theme)
        self.table.selectionModel().selectionChanged.connect(self._select)
        self.table.sortByColumn(LEFT_COLUMN, Qt.SortOrder.DescendingOrder)
        self.summary = plain(QLabel(wordWrap=True))
        self.summary.setObjectName("rooflineSummary")
        self.summary.setProperty("quiet", True)
        page = QVBoxLayout(self)
        page.setContentsMargins(8, 8, 8, 4)
        page.addWidget(self.summary)
        page.addWidget(self.table, 1)

    def refresh(self) -> None:
        """Show the partitions of the shown placement."""
        shown = self.document.placement.shown
        graph = self.document.graph
        if shown is None or graph is None:
            self.model.set_rows([])
            self.summary.setText(words.NO_PLACEMENT)
            return
        candidates = self.document.costs.candidates.values()
        roofs = partition_roofs(graph, shown.placement, candidates)
        self.model.set_rows(roofs)
        self.summary.setText(roofline_sentence(roofs))

    def _operators(self, roof: PartitionRoof) -> str:
        graph = self.document.operators
        return graph.label_with_name(roof.partition.nodes) if graph is not None else ""

    def _select(self) -> None:
        nodes = [node for row in self.table.chosen() for node in row.partition.nodes]
        if nodes:
            self.document.selection.select(nodes)
