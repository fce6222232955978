"""Shows how long the partitions took in the confirmed run, and what ran beside them."""

from __future__ import annotations

from dataclasses import dataclass

from PySide6.QtCore import Qt

from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.placement import Run
from collage_engine.wording.runs import ABOUT_DIFFERENCE, ABOUT_EXPECTED, ABOUT_LAST_RUN
from collage_gui import words
from collage_gui.document.document import Document
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme

_DIFFERENCE_COLUMN = 5


@dataclass(frozen=True)
class _Row:
    """A row is a partition in the model, or a kernel outside every partition."""

    name: str
    toolchain: str | None
    estimated_us: float | None
    in_place_us: float | None
    nodes: tuple[int, ...] = ()
    operators: str = ""

    @property
    def delta(self) -> float | None:
        if self.in_place_us is None:
            return None
        return self.in_place_us - (self.estimated_us or 0.0)


class InModelTable(Table):
    """Compares expected costs with the times of the last run, the largest difference first."""

    def __init__(self, document: Document, theme: Theme) -> None:
        self.document = document
        model = RowsModel(
            [
                Column(
                    "Toolchain",
                    lambda r: r.toolchain or "",
                    toolchain=lambda r: r.toolchain,
                    text=lambda r: toolchain_title(r.toolchain) if r.toolchain else "outside",
                    width=156,
                ),
                Column("Partition", lambda r: r.name, width=88),
                Column("Operators", lambda r: r.operators, width=170, stretches=True),
                Column(
                    "Expected", lambda r: r.estimated_us, "time", width=108, about=ABOUT_EXPECTED
                ),
                Column("Last run", lambda r: r.in_place_us, "time", width=96, about=ABOUT_LAST_RUN),
                Column(
                    "Difference",
                    lambda r: r.delta,
                    "signed-time",
                    width=116,
                    about=ABOUT_DIFFERENCE,
                ),
            ]
        )
        super().__init__(model, "inModelTable", words.PARTITIONS_IN_THE_MODEL, theme)
        self.selectionModel().selectionChanged.connect(self._select)

    def refresh(self, run: Run | None) -> None:
        """Show the partitions of the shown placement.

        Args:
            run: A run; if it is the shown one, its kernels outside every partition are rows too.
        """
        shown = self.document.placement.shown
        rows: list[_Row] = []
        if shown is not None:
            graph = self.document.operators
            rows += [
                _Row(
                    p.id,
                    p.instance,
                    p.estimated_us,
                    p.in_place_us,
                    p.nodes,
                    graph.label_with_name(p.nodes) if graph is not None else "",
                )
                for p in shown.placement.partitions
            ]
            if run is not None and shown.run == run.id:
                for r in run.residual:
                    title = r.name if r.calls == 1 else f"{r.name} ×{r.calls}"
                    rows.append(_Row(title, None, None, r.us))
        self.rows_model.set_rows(rows)
        if any(row.in_place_us is not None for row in rows):
            self.sortByColumn(_DIFFERENCE_COLUMN, Qt.SortOrder.DescendingOrder)

    def _select(self) -> None:
        nodes = [node for row in self.chosen() for node in row.nodes]
        if nodes:
            self.document.selection.select(nodes)
