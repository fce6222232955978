"""Shows the weights and values of each partition, and what each toolchain holds of weights."""

from __future__ import annotations

from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from collage_engine.drawing.formatting import memory_text
from collage_engine.drawing.memory_figures import (
    PartitionMemory,
    partition_memory,
    toolchain_memory,
)
from collage_engine.drawing.palette import toolchain_title
from collage_engine.wording.runs import (
    ABOUT_INPUTS,
    ABOUT_INSIDE,
    ABOUT_OUTPUTS,
    ABOUT_PACKED,
    ABOUT_STORED,
    ABOUT_WEIGHTS,
)
from collage_gui import words
from collage_gui.document.document import Document
from collage_gui.elided_label import plain
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme

TOOLCHAIN_ROWS = 4
"""Rows of the table of toolchains that are seen without scrolling; chosen."""
HEADER_PX, ROW_PX = 52, 26
"""Heights of a table's header with a scroll bar, and of its rows, in pixels before scaling."""
NOT_MEASURED = "not measured"


class MemoryPage(QWidget):
    """The page that lists the toolchains of the shown placement above, its partitions below."""

    def __init__(self, document: Document, theme: Theme) -> None:
        super().__init__()
        self.document = document
        self.by_toolchain = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.toolchain,
                    toolchain=lambda r: r.toolchain,
                    text=lambda r: toolchain_title(r.toolchain),
                    width=132,
                ),
                Column("Weights", lambda r: r.weights, "bytes", width=96, about=ABOUT_WEIGHTS),
                Column("Held, packed", lambda r: r.packed, "bytes", width=118, about=ABOUT_PACKED),
                Column("Given", lambda r: r.stored, "bytes", width=110, about=ABOUT_STORED),
                Column("Partitions", lambda r: r.partitions, "number", width=86),
            ]
        )
        self.by_toolchain.unknown = NOT_MEASURED
        self.by_partition = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.partition.instance,
                    toolchain=lambda r: r.partition.toolchain,
                    text=lambda r: toolchain_title(r.partition.instance),
                    width=112,
                ),
                Column("Operators", self._operators, width=96, stretches=True, beside=1),
                Column("Weights", lambda r: r.weights, "bytes", width=92, about=ABOUT_WEIGHTS),
                Column("Inputs", lambda r: r.inputs, "bytes", width=92, about=ABOUT_INPUTS),
                Column("Outputs", lambda r: r.outputs, "bytes", width=92, about=ABOUT_OUTPUTS),
                Column("Inside", lambda r: r.inside, "bytes", width=92, about=ABOUT_INSIDE),
            ]
        )
        self.toolchains = Table(
            self.by_toolchain, "memoryByToolchain", words.WEIGHTS_OF_EACH_TOOLCHAIN, theme
        )
        self.theme = theme
        self.partitions = Table(
            self.by_partition, "memoryByPartition", words.BYTES_OF_EACH_PARTITION, theme
        )
        self.partitions.selectionModel().selectionChanged.connect(self._select)
        self.summary = plain(QLabel(wordWrap=True))
        self.summary.setObjectName("memorySummary")
        self.summary.setProperty("quiet", True)
        page = QVBoxLayout(self)
        page.setContentsMargins(8, 8, 8, 4)
        page.addWidget(self.summary)
        page.addWidget(self.toolchains)
        page.addWidget(self.partitions, 1)

    def refresh(self) -> None:
        """Show the memory of the shown placement."""
        document, shown = self.document, self.document.placement.shown
        if shown is None or document.graph is None:
            self.by_toolchain.set_rows([])
            self.by_partition.set_rows([])
            self.summary.setText(words.NO_PLACEMENT)
            return
        run = document.runs.find(shown.run)
        use = run.memory if run is not None else None
        parts = partition_memory(document.graph, shown.placement)
        self.by_partition.set_rows(parts)
        rows = toolchain_memory(parts, use)
        self.by_toolchain.set_rows(rows)
        self.toolchains.setFixedHeight(
            self.theme.scaled(HEADER_PX + ROW_PX * min(len(rows), TOOLCHAIN_ROWS))
        )
        measured = (
            words.measured_memory(memory_text(use))
            if use is not None
            else words.MEMORY_NOT_MEASURED
        )
        self.summary.setText(measured)

    def _operators(self, row: PartitionMemory) -> str:
        graph = self.document.operators
        return graph.label_with_name(row.partition.nodes) if graph is not None else ""

    def _select(self) -> None:
        nodes = [node for row in self.partitions.chosen() for node in row.partition.nodes]
        if nodes:
            self.document.selection.select(nodes)
