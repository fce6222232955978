"""Carries out the actions that find, zoom, walk and select in the graph."""

from __future__ import annotations

from PySide6.QtGui import QGuiApplication

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
        find_bar.results.connect(picture.highlight)
        find_bar.stepped.connect(picture.go_to)
        find_bar.closed.connect(view.setFocus)

    def select_partition(self) -> None:
        """Select the partition that holds the primary operator."""
        primary = self._document.selection.primary
        partition = self._document.placement.partition_of(primary)
        if partition is not None:
            self._document.selection.select(partition.nodes, primary)

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
