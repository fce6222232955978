"""Has the user choose the shapes that a model is placed for."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QCheckBox,
    QDialog,
    QDialogButtonBox,
    QFormLayout,
    QLineEdit,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.shapes import MOST_ELEMENTS, OpenSizes, ShapeChoice, combined
from collage_engine.support.errors import UsageError
from collage_engine.support.text import counted, listed
from collage_engine.wording.amounts import as_sentence
from collage_gui.document.document import Document
from collage_gui.messages import Messages
from collage_gui.widgets import form_row, lay_out, named, plain_tip, text_label

ABOUT_COMBINATIONS = (
    "The model leaves these sizes open. Each combination of the values is placed by a run of its "
    "own, and one artifact holds them all."
)
ABOUT_INPUTS = "The model leaves sizes of these inputs open. Give all sizes of each."
ABOUT_INPUT = "All sizes of this input, of which the model leaves some open without naming them"


class ShapesDialog(QDialog):
    """One field for each dimension, of whose values the combinations are the shapes.

    An input whose open sizes have no names has a field of all its sizes, which are those of every
    shape.
    """

    def __init__(
        self,
        left_open: OpenSizes,
        choices: Sequence[ShapeChoice],
        others: bool,
        parent: QWidget,
    ) -> None:
        """Fill the fields with the shapes that are open.

        Args:
            left_open: What the model leaves open.
            choices: The shapes that are open; without any, each open size begins with 1.
            others: Whether an artifact takes any other shape, too.
            parent: The window.
        """
        super().__init__(parent)
        self.setObjectName("shapesDialog")
        self.setWindowTitle("Shapes")
        self.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        form = QFormLayout()
        self.fields: dict[str, QLineEdit] = {}
        for name, inputs in left_open.dimensions.items():
            sizes = dict.fromkeys(
                str(choice.dims[name]) for choice in choices if name in choice.dims
            )
            field = QLineEdit(", ".join(sizes) or "1", placeholderText="1, 4, 16")
            tip = plain_tip(f"A dimension of {', '.join(inputs)}")
            self.fields[name] = form_row(form, name, field, f"dimension-{name}", tip)
            field.textChanged.connect(self._check)
        self.inputs: dict[str, QLineEdit] = {}
        for name, example in left_open.inputs.items():
            now = next(
                (choice.shapes[name] for choice in choices if name in choice.shapes), example
            )
            field = QLineEdit(", ".join(map(str, now)), placeholderText="1, 3, 224, 224")
            self.inputs[name] = form_row(form, name, field, f"input-{name}", ABOUT_INPUT)
            field.textChanged.connect(self._check)
        self.others = named(
            QCheckBox("Take any other size, too"),
            "others",
            tip="The exported artifact then holds the model's own file, which ONNX Runtime or "
            "OpenVINO runs at sizes that were not placed.",
        )
        self.others.setChecked(others)
        self.summary = text_label(look="quiet", name="shapesSummary")
        # The longest text has two lines: the dialog does not jump while somebody types.
        self.summary.setMinimumHeight(2 * self.summary.fontMetrics().lineSpacing())
        self.summary.setAlignment(Qt.AlignmentFlag.AlignTop)
        buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel
        )
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        self._ok = buttons.button(QDialogButtonBox.StandardButton.Ok)
        self._ok.setText("Open")
        about = text_label(ABOUT_COMBINATIONS if self.fields else ABOUT_INPUTS)
        self.others.setVisible(bool(self.fields))
        parts = (about, form, self.others, self.summary, buttons)
        lay_out(QVBoxLayout(self), *parts, edge=2)
        self.choices: tuple[ShapeChoice, ...] = ()
        """What the fields say; empty while they say nothing that can be opened."""
        self._check()

    def _check(self) -> None:
        """Say which shapes the fields make, or what is wrong with them."""
        self.choices = ()
        try:
            dims = {
                name: tuple(dict.fromkeys(parse_sizes(name, field.text())))
                for name, field in self.fields.items()
            }
            shapes = {name: parse_sizes(name, field.text()) for name, field in self.inputs.items()}
            self.choices = combined(dims, shapes)
        except (ValueError, UsageError) as error:
            self.summary.setText(as_sentence(str(error).removeprefix("--dim: ")))
        else:
            names = [choice.text for choice in self.choices]
            self.summary.setText(f"{counted(len(names), 'shape')}: {listed(names)}")
        self._ok.setEnabled(bool(self.choices))
        self.others.setEnabled(bool(self.choices))


def parse_sizes(name: str, text: str) -> tuple[int, ...]:
    """Read the sizes of a dimension or of an input.

    Args:
        name: The dimension or input, for messages.
        text: E.g. ``1, 4, 16``.

    Returns:
        The sizes in the user's order.

    Raises:
        ValueError: One sentence, without its full stop, about the first that cannot be read.
    """
    sizes: list[int] = []
    for part in text.replace(";", ",").split(","):
        word = part.strip()
        if not word:
            continue
        if not word.isdecimal() or int(word) > MOST_ELEMENTS:
            raise ValueError(f"{name}: {word!r} is no size; sizes are written 1, 4, 16")
        sizes.append(int(word))
    if not sizes:
        raise ValueError(f"{name} has no size yet; sizes are written 1, 4, 16")
    return tuple(sizes)


class ShapesController:
    """Asks for the sizes that the model leaves open, and opens the model for them."""

    def __init__(self, document: Document, messages: Messages, parent: QWidget) -> None:
        self._document, self._messages, self._parent = document, messages, parent
        self.dialog: ShapesDialog | None = None
        """The dialog while it is open."""
        document.sizes_wanted.connect(self._ask)

    def choose(self) -> None:
        """Ask for other shapes of the open model."""
        document = self._document

        def arrived(left_open: OpenSizes) -> None:
            if left_open.dimensions or left_open.inputs:
                self._ask(left_open, "")
                return
            text = "All sizes of the model's inputs are fixed."
            self._messages.show_message(text, "info", topic="shapes")

        document.ask_open_sizes(arrived, document.failed.emit)

    def _ask(self, left_open: OpenSizes, refusal: str) -> None:
        """Ask for sizes.

        Args:
            left_open: What the model leaves open.
            refusal: What the user is told who gives none; empty where there is no need of them.
        """
        shapes = self._document.shapes
        choices = [entry.choice for entry in shapes.entries]
        dialog = self.dialog = ShapesDialog(left_open, choices, shapes.others, self._parent)

        def accepted() -> None:
            shapes.others = dialog.others.isChecked()
            self._document.open_shapes(dialog.choices)

        def closed() -> None:
            self.dialog = None

        dialog.accepted.connect(accepted)
        if refusal:
            dialog.rejected.connect(lambda: self._document.failed.emit(refusal))
        dialog.finished.connect(closed)
        dialog.open()
