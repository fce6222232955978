"""Shows the table of shapes that a model is placed for; its rows switch the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from collage_engine.records.shapes import ShapeChoice, ShapeRow
from collage_engine.wording.amounts import time_text
from collage_engine.wording.latencies import sharing_sentences
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.tables import Column, RowsModel, Table
from collage_gui.theme import Theme
from collage_gui.widgets import action_button, lay_out, text_label

Line = tuple[ShapeChoice, ShapeRow | None]
"""A shape, and what its newest run found out; None before the first."""

ABOUT_GAIN = (
    "How much longer the placement takes than the fastest toolchain that runs the whole model "
    "alone; negative when it is faster"
)


class ShapesPage(QWidget):
    """The page with the shapes: latency, items per second, toolchains, gain over the best alone."""

    def __init__(self, document: Document, theme: Theme, actions: Mapping[str, QAction]) -> None:
        super().__init__()
        self.document = document
        self.model = RowsModel(
            [
                Column("Shape", lambda line: line[0].text, width=140),
                Column("Latency", _figure("latency_us"), "time"),
                Column("Items per second", _figure("items_per_s"), "number"),
                Column("Toolchains", lambda line: _toolchains(line[1]), width=170),
                Column("Best single toolchain", lambda line: _best_single(line[1]), width=170),
                Column("Against it", _gain, "percent", ABOUT_GAIN),
                Column("Partitions", _figure("partitions"), "number"),
            ]
        )
        self.model.bold = lambda line: line[0] == self._shown()
        self.table = Table(self.model, "shapesTable", "Shapes", theme)
        self.table.selectionModel().selectionChanged.connect(self._picked)
        self.hint = text_label(look="quiet")
        self.choose = action_button(actions["shapes"], name="chooseShapes")
        self.shared = text_label(look="quiet", name="shapesShared")
        top = lay_out(QHBoxLayout(), (self.hint, 1), self.choose)
        lay_out(QVBoxLayout(self), top, (self.table, 1), self.shared, edge=1)
        document.shapes.changed.connect(self.refresh)

    def refresh(self) -> None:
        """Show the shapes as they are now, with the one that is shown in the graph chosen."""
        shapes = self.document.shapes
        run = self.document.runs.shown_or_last()
        self.model.set_rows(self._lines())
        shown = self._shown()
        self.table.show_rows(lambda line: line[0] == shown)
        if not shapes.several:
            hint = "This run was one of several; the others have graphs in sessions of their own."
        elif self.document.running:
            hint = "The graph shows the shape whose run is under way."
        else:
            hint = "The graph shows the shape whose row is selected. A run places all of them."
        self.hint.setText(hint)
        shared = sharing_sentences(len(shapes.rows(run)), run.sharing if run is not None else None)
        self.shared.setText(" ".join(f"{text[:1].upper()}{text[1:]}." for text in shared))
        self.shared.setVisible(bool(shared))

    def _lines(self) -> list[Line]:
        shapes = self.document.shapes
        if shapes.several:
            return [(entry.choice, entry.row) for entry in shapes.entries]
        return [(row.choice, row) for row in shapes.rows(self.document.runs.shown_or_last())]

    def _shown(self) -> ShapeChoice | None:
        entry = self.document.shapes.shown
        if entry is not None:
            return entry.choice
        run = self.document.runs.shown_or_last()
        rows = run.shapes if run is not None else []
        return next((row.choice for row in rows if run is not None and row.run == run.id), None)

    def _picked(self) -> None:
        choices = [choice for choice, _ in self.table.chosen()]
        for entry in self.document.shapes.entries:
            if choices[:1] == [entry.choice]:
                self.document.shapes.show(entry)


def _figure(name: str) -> Callable[[Line], float | None]:
    """Return the value of a field of a line's row; None before the first run."""

    def value(line: Line) -> float | None:
        return getattr(line[1], name) if line[1] is not None else None

    return value


def _toolchains(row: ShapeRow | None) -> str | None:
    return ", ".join(map(toolchain_title, row.toolchains)) if row is not None else None


def _best_single(row: ShapeRow | None) -> str | None:
    if row is None or not row.best_single:
        return None
    return f"{toolchain_title(row.best_single)}, {time_text(row.best_single_us)}"


def _gain(line: Line) -> float | None:
    """Return how much longer the placement takes than the best single toolchain, in percent."""
    row = line[1]
    if row is None or row.latency_us is None or not row.best_single_us:
        return None
    return 100 * (row.latency_us / row.best_single_us - 1)
