"""Shows how many values pass from toolchain to toolchain."""

from __future__ import annotations

from collections import Counter

from PySide6.QtCore import QSize, Qt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QHeaderView,
    QLabel,
    QTableWidget,
    QTableWidgetItem,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.formatting import counted
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.placement import Placement
from collage_gui import words
from collage_gui.document.document import Document
from collage_gui.elided_label import plain_tip
from collage_gui.panels.copying import Copying
from collage_gui.panels.tables import toolchain_icon


def transitions(graph: OperatorGraph, placement: Placement) -> Counter[tuple[str, str]]:
    """Count the values that pass between partitions.

    Args:
        graph: The operators.
        placement: The partitions.

    Returns:
        (toolchain that computes, toolchain that reads) → values.
    """
    owner = {n: p for p in placement.partitions for n in p.nodes}
    seen: set[tuple[int, str]] = set()
    counts: Counter[tuple[str, str]] = Counter()
    for a, b in graph.edges:
        one, two = owner.get(a), owner.get(b)
        if one is None or two is None or one.id == two.id or (a, two.id) in seen:
            continue
        seen.add((a, two.id))
        counts[one.toolchain, two.toolchain] += 1
    return counts


class TransitionMatrix(QTableWidget):
    """Rows compute and columns read; on the diagonal, both are of one toolchain."""

    def __init__(self, icon_size: QSize) -> None:
        super().__init__()
        self.setObjectName("transitionMatrix")
        self.setAccessibleName(words.TRANSITIONS_TITLE)
        self.setEditTriggers(QAbstractItemView.EditTrigger.NoEditTriggers)
        self.setIconSize(icon_size)
        self.copying = Copying(self)

    def show_transitions(self, graph: OperatorGraph | None, placement: Placement | None) -> None:
        """Show the hand-overs of a placement; without one the matrix is empty."""
        self.clear()
        if graph is None or placement is None:
            self.setRowCount(0)
            self.setColumnCount(0)
            return
        counts = transitions(graph, placement)
        names = sorted({p.toolchain for p in placement.partitions})
        self.setRowCount(len(names))
        self.setColumnCount(len(names))
        for at, name in enumerate(names):
            for header in (self.setHorizontalHeaderItem, self.setVerticalHeaderItem):
                header(at, QTableWidgetItem(toolchain_icon(name), toolchain_title(name)))
        for row, a in enumerate(names):
            for column, b in enumerate(names):
                count = counts.get((a, b), 0)
                item = QTableWidgetItem(str(count) if count else "·")
                item.setTextAlignment(Qt.AlignmentFlag.AlignCenter)
                between = f"from {toolchain_title(a)} to {toolchain_title(b)}"
                item.setToolTip(plain_tip(f"{counted(count, 'value')} {between}"))
                self.setItem(row, column, item)
        self.horizontalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.verticalHeader().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)


class TransitionsPage(QWidget):
    """The page with the matrix of the shown placement, and an explanation of its numbers."""

    def __init__(self, document: Document, icon_size: QSize) -> None:
        super().__init__()
        self.document = document
        self.matrix = TransitionMatrix(icon_size)
        hint = QLabel(
            words.ABOUT_TRANSITIONS,
            wordWrap=True,
        )
        hint.setProperty("quiet", True)
        page = QVBoxLayout(self)
        page.setContentsMargins(8, 8, 8, 4)
        page.addWidget(hint)
        page.addWidget(self.matrix, 1)

    def refresh(self) -> None:
        """Show the hand-overs of the shown placement."""
        shown = self.document.placement.shown
        self.matrix.show_transitions(
            self.document.operators, None if shown is None else shown.placement
        )
