"""Carries out the actions that find, zoom, walk and select in the graph."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication

from collage_gui.design_units import KEPT
from collage_gui.document.document import Document
from collage_gui.document_window.find_bar import FindBar
from collage_gui.document_window.picture_controller import PictureController
from collage_gui.graph_view.view import GraphView


class Navigation:
    """Changes what is seen and selected, and nothing of the document."""

    def __init__(
        self, document: Document, view: GraphView, picture: PictureController, find_bar: FindBar
    ) -> None:
        self._document, self._view = document, view
        self._picture = picture
        document.graph_changed.connect(self._graph_changed)
        find_bar.results.connect(picture.highlight)
        find_bar.stepped.connect(picture.go_to)
        find_bar.closed.connect(view.setFocus)
        self._visited: list[tuple[frozenset[int], int | None]] = []
        self._at = -1
        """Place of the selection in ``_visited``."""
        document.selection.changed.connect(self._remember)

    def _graph_changed(self) -> None:
        self._visited, self._at = [], -1

    def _remember(self) -> None:
        selection = self._document.selection
        now = (selection.operators, selection.primary)
        if selection.operators and (self._at < 0 or self._visited[self._at] != now):
            self._visited = [*self._visited[: self._at + 1][-KEPT:], now]
            self._at = len(self._visited) - 1

    def back(self) -> None:
        """Select what was selected before, e.g. the other end of an edge that was followed."""
        self._revisit(self._at - 1)

    def forward(self) -> None:
        """Select again what ``back`` left."""
        self._revisit(self._at + 1)

    def _revisit(self, at: int) -> None:
        if 0 <= at < len(self._visited):
            self._at = at
            operators, primary = self._visited[at]
            if primary is not None:
                self._picture.show_operator(primary)
            self._document.selection.select(operators, primary)

    def select_partition(self) -> None:
        """Select the partition that holds the primary operator."""
        primary = self._document.selection.primary
        partition = self._document.placement.partition_of(primary)
        if partition is not None:
            self._document.selection.select(partition.nodes, primary)

    def select_nothing(self) -> None:
        """Take away selection and highlights."""
        self._picture.highlight([])
        self._document.selection.select(())

    def copy_names(self) -> None:
        """Copy the names of the selected nodes, one a line."""
        operators = sorted(self._document.selection.operators)
        names = map(self._document.operators.name, operators)
        QGuiApplication.clipboard().setText("\n".join(names))

    def zoom_to_selection(self) -> None:
        """Show the selected operators as large as they fit."""
        if self._picture.drawn is not None:
            operators = self._document.selection.operators
            self._view.zoom_to_boxes(self._picture.drawn.scene.boxes_of(operators))
