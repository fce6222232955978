"""Has the user choose the shapes that a model is placed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtWidgets import QWidget

from collage_gui.document.document import Document
from collage_gui.messages import Messages
from collage_gui.shapes_dialog import ShapesDialog

Dimensions = Mapping[str, Sequence[str]]
"""The inputs that have each dimension that the model names, by the dimension's name."""


class ShapesController:
    """Asks for sizes of the model's named dimensions, and opens the model for them."""

    def __init__(self, document: Document, messages: Messages, parent: QWidget) -> None:
        self._document, self._messages, self._parent = document, messages, parent
        self.dialog: ShapesDialog | None = None
        """The dialog while it is open."""
        document.dimensions_wanted.connect(self._ask_before_opening)

    def choose(self) -> None:
        """Ask for other shapes of the open model."""
        document = self._document
        if document.model is None or document.running:
            return

        def arrived(dimensions: Dimensions) -> None:
            if dimensions:
                self._ask(dimensions, "")
            else:
                self._messages.show_message(
                    (
                        "The model names no dimension: all sizes of its inputs are fixed. "
                        "Other sizes can be given "
                        "under Input sizes."
                    ),
                    "info",
                    topic="shapes",
                )

        document.ask_dimensions(arrived, document.failed.emit)

    def _ask_before_opening(self, dimensions: Dimensions, reason: str) -> None:
        """Ask for the sizes without which the model cannot be opened.

        Args:
            dimensions: What the model leaves open.
            reason: What the user is told who gives none.
        """
        self._ask(dimensions, reason)

    def _ask(self, dimensions: Dimensions, refusal: str) -> None:
        shapes = self._document.shapes
        choices = [each.choice for each in shapes.entries]
        dialog = self.dialog = ShapesDialog(dimensions, choices, shapes.nearest, self._parent)

        def accepted() -> None:
            shapes.nearest = dialog.nearest.isChecked()
            self._document.open_shapes(dialog.choices)

        def closed() -> None:
            self.dialog = None

        dialog.accepted.connect(accepted)
        if refusal:
            dialog.rejected.connect(lambda: self._document.failed.emit(refusal))
        dialog.finished.connect(closed)
        dialog.open()
