"""Edits what a run will do: toolchains, threads, budgets, sizes, inputs, limits."""

from __future__ import annotations

import os

import msgspec
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import (
    QAbstractSpinBox,
    QApplication,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLineEdit,
    QScrollArea,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.formatting import counted, duration_text, number_text
from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records.answers import PreflightAnswer
from collage_engine.records.counted import NAMED
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.document.document import Document
from collage_gui.elided_label import plain_tip
from collage_gui.fields import ABOUT_BUDGET, ABOUT_THREADS, DurationField, keep_from_wheel
from collage_gui.panels.input_sizes import parse_shapes
from collage_gui.panels.limits_form import LimitsForm
from collage_gui.panels.precision_choice import PrecisionChoice
from collage_gui.panels.toolchain_list import ToolchainList
from collage_gui.preferences import Preferences
from collage_gui.theme import pad_spin_boxes
from collage_gui.widgets import form_row, lay_out, push_button, text_label

ABOUT_CHOOSING_SHAPES = "Sizes of the dimensions that the model names, such as its batch"
CHOOSE_SHAPES = "Choose shapes…"
ABOUT_UNCHECKED = (
    "Where all outputs are NaN or infinite on every input there is nothing to compare. What such "
    "a run finds is exported only if this was chosen before: a wrong result would not be noticed."
)


class RunSettingsPanel(QWidget):
    """The panel with the fields of the next run's settings."""

    run_wanted = Signal()
    reopen_wanted = Signal(object)
    """Other input sizes: the model must be imported anew."""
    toolchains_shown = Signal(object)
    """Which toolchains a run can have: those of the engine's machine."""
    shapes_wanted = Signal()
    """Choose sizes of the dimensions that the model names."""

    def __init__(self, document: Document, preferences: Preferences) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("runSettingsPanel")
        self._inputs: bytes | None = None
        self._states: tuple[ToolchainState, ...] = ()
        """The toolchains of the engine's machine."""
        self.toolchains = ToolchainList()
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self.device = form_row(form, "Device", text_label("no engine"), "")
        tip = "cpu, cuda (this machine's device), or cuda:sm_80 for another"
        self.target = form_row(form, "Target", QLineEdit("cpu"), "target", tip)
        self.target.textChanged.connect(self._show_target)
        self.target.editingFinished.connect(self._target_edited)
        self.threads = QSpinBox(minimum=0, maximum=256, value=preferences.get("threads"))
        self.threads.setSpecialValueText("auto")
        form_row(form, "Threads", self.threads, "threads", ABOUT_THREADS)
        budget = DurationField(preferences.get("budget_s"))
        self.budget = form_row(form, "Budget", budget, "budget", ABOUT_BUDGET)
        self.measure = form_row(form, "Measure", QComboBox(), "measureWhat")
        self.measure.addItem("candidates that can matter", "needed")
        self.measure.addItem("every candidate", "all")
        self.in_place = QCheckBox("Measure in the model")
        self.in_place.setChecked(True)
        form_row(
            form,
            "Costs",
            self.in_place,
            "inPlace",
            "Run the best placements, take what their partitions cost in the model, predict the "
            "other costs from it, and search again.\nOtherwise the search uses isolated costs.",
        )
        self.in_place.setAccessibleName(self.in_place.text())
        tuning = DurationField(0, least=0, none="no tuning")
        self.tune = form_row(form, "Tuning", tuning, "tuneBudget")
        tip = "The lowest that candidates may compute in, within the tolerance"
        self.precision = form_row(form, "Precision", PrecisionChoice(), "precision", tip)
        self.tolerance = QDoubleSpinBox(decimals=3, maximum=100.0, singleStep=0.1, suffix=" %")
        self.tolerance.setSpecialValueText("by precision")
        tip = "Largest error of the whole model, relative to its largest output"
        form_row(form, "Tolerance", self.tolerance, "tolerance", tip)
        self.unchecked = QCheckBox("Export what cannot be checked")
        form_row(form, "Outputs", self.unchecked, "unchecked")
        self.unchecked.setAccessibleName(self.unchecked.text())
        form.addRow("", text_label(ABOUT_UNCHECKED, "small"))
        sizes = QLineEdit(placeholderText="NAME=1,3,224,224")
        self.shapes = form_row(form, "Input sizes", sizes, "shapes")
        self.shapes.editingFinished.connect(self._shapes_edited)
        choose = push_button(CHOOSE_SHAPES, "", self.shapes_wanted)
        self.dimensions = form_row(
            form, "Shapes", choose, "chooseDimensions", ABOUT_CHOOSING_SHAPES
        )
        choose = push_button("Random inputs…", "", self._choose_inputs)
        tip = "Choose an .npz file of representative inputs, keyed by input name"
        self.inputs = form_row(form, "Inputs", choose, "inputs", tip)
        name = QLineEdit(placeholderText="Name of the run")
        self.name = form_row(form, "Name", name, "newRunName")
        self.limits = LimitsForm()
        tip = "What a run would do, without measuring anything"
        self.check = push_button("Check before running", "preflight", self.preflight, tip)
        self.run = push_button("Run", "runFromSettings", self.run_wanted)
        self.error = text_label()
        self.error.hide()

        inner = QWidget()
        order = "The order decides greedy partitioning and exact ties; drag to reorder."
        lay_out(
            QVBoxLayout(inner),
            text_label("Toolchains", "heading"),
            text_label(order, "small"),
            self.toolchains,
            form,
            text_label("Limits on what is deployed", "heading"),
            self.limits,
            self.error,
            lay_out(QHBoxLayout(), self.check, self.run, None),
            None,
            margins=(12, 10, 12, 10),
            spacing=8,
        )
        scroll = QScrollArea(widgetResizable=True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(inner)
        lay_out(QVBoxLayout(self), scroll, margins=(0, 0, 0, 0))
        pad_spin_boxes(self)
        keep_from_wheel(self)
        document.shapes.changed.connect(self._show_shapes)
        document.execution.running_changed.connect(self._enable)
        document.graph_changed.connect(self._opened)
        document.execution.settings_restored.connect(self._restored)
        document.costs.changed.connect(self._enable)
        self._enable()

    # -- toolchains --------------------------------------------------------------------

    def show_toolchains(self, states: tuple[ToolchainState, ...]) -> None:
        """List the engine's toolchains; missing ones say what installs them."""
        self._states = states
        self._list_toolchains()

    def _list_toolchains(self) -> None:
        """List the toolchains with those checked that the document's settings name."""
        self.toolchains.show_states(self._states, self.document.execution.settings.toolchains)
        self.limits.show_states(self._states)
        self.toolchains_shown.emit(self._states)

    def show_device(self, text: str) -> None:
        """Show the name of the engine's device."""
        self.device.setText(text)

    def _show_target(self, text: str) -> None:
        """List what there is for a target; names that are half typed change nothing."""
        kind = {"llvm": "cpu"}.get(name := text.strip().partition(":")[0], name)
        if kind in ("cpu", "cuda"):
            self.toolchains.show_target(kind)
            self.precision.show_target(kind)

    def _target_edited(self) -> None:
        if not self.target.text().strip():
            self.target.setText("cpu")

    # -- settings ----------------------------------------------------------------------

    def settings(self) -> RunSettings:
        """Returns the settings of the fields; what has no field stays as in the document.

        A field that is being typed in is read as far as it is typed.
        """
        for field in (QApplication.focusWidget(), *self.findChildren(QAbstractSpinBox)):
            if isinstance(field, QAbstractSpinBox):
                field.interpretText()
        return msgspec.structs.replace(
            self.document.execution.settings,
            toolchains=self.toolchains.names(),
            target=self.target.text().strip() or "cpu",
            threads=self.threads.value(),
            budget_s=float(self.budget.value()),
            tune_budget_s=float(self.tune.value()),
            in_place=self.in_place.isChecked(),
            precision=self.precision.precision(),
            tolerance=self.tolerance.value() / 100 or None,
            unchecked=self.unchecked.isChecked(),
            inputs_npz=self._inputs,
            name=self.name.text().strip(),
            measure=self.measure.currentData(),
            **self.limits.settings(),
        )

    def choose(self, toolchains: tuple[str, ...]) -> list[str]:
        """Check exactly these toolchains; return the names that are unknown or missing."""
        return self.toolchains.choose(toolchains)

    def _opened(self) -> None:
        shapes = self.document.execution.settings.shapes
        self.shapes.setText("; ".join(f"{n}={','.join(map(str, s))}" for n, s in shapes.items()))
        self._enable()

    def _restored(self) -> None:
        """Show the settings of an opened session, as near as the fields allow."""
        settings = self.document.execution.settings
        self.target.setText(settings.target)  # before what depends on it
        self._list_toolchains()
        self.threads.setValue(settings.threads)
        self.budget.setValue(max(1, round(settings.budget_s)))
        self.tune.setValue(round(settings.tune_budget_s))
        self.in_place.setChecked(settings.in_place)
        self.precision.choose(settings.precision)
        self.tolerance.setValue(100 * (settings.tolerance or 0.0))
        self.unchecked.setChecked(settings.unchecked)
        self.measure.setCurrentIndex(max(0, self.measure.findData(settings.measure)))
        self.limits.restore(settings)
        self._opened()

    def _show_shapes(self) -> None:
        """Name the shapes that the next run places, where there are several."""
        shapes = self.document.shapes
        names = [each.choice.text for each in shapes.entries] if shapes.several else []
        text = f"{counted(len(names), 'shape')}…" if names else CHOOSE_SHAPES
        self.dimensions.setText(text)
        self.dimensions.setToolTip(plain_tip(", ".join(names) or ABOUT_CHOOSING_SHAPES))
        self._enable()

    def _shapes_edited(self) -> None:
        try:
            shapes = parse_shapes(self.shapes.text())
        except ValueError as error:
            self.error.setText(str(error))
            self.error.show()
            return
        self.error.hide()
        if shapes != dict(self.document.execution.settings.shapes) and self.document.path:
            self.reopen_wanted.emit(shapes)

    def _choose_inputs(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Representative inputs", "", "NumPy (*.npz)")
        self.load_inputs(path)

    def load_inputs(self, path: str) -> None:
        """Take the bytes of an .npz file; an empty path goes back to random inputs."""
        self._inputs = None
        self.error.hide()
        if path:
            try:
                with open(path, "rb") as file:
                    content = file.read()
            except OSError as error:
                content = b""
                self.error.setText(f"{path}: {error.strerror}")
            if content.startswith(b"PK"):
                self._inputs = content
            elif content:
                self.error.setText(f"{os.path.basename(path)} is not an .npz file")
            self.error.setVisible(self._inputs is None)
        self.inputs.setText(os.path.basename(path) if self._inputs else "Random inputs…")

    # -- pre-flight --------------------------------------------------------------------

    def preflight(self) -> None:
        """Ask what a run with these settings would do."""
        self.document.execution.ask_preflight(self.settings())

    def _enable(self) -> None:
        free = bool(self.document.handle) and not self.document.running
        self.run.setEnabled(free)
        self.check.setEnabled(free)
        self.shapes.setEnabled(free and not self.document.shapes.several)
        self.dimensions.setEnabled(free)


def preflight_sentence(preflight: PreflightAnswer, graph: OperatorGraph) -> str:
    """Says what a run would do: how many candidates, how many are stored, how long it takes.

    Args:
        preflight: The engine's answer.
        graph: The operators, for the names of those that no toolchain takes.
    """
    if preflight.uncovered:
        names = [graph.name(n) for n in preflight.uncovered[:NAMED]]
        left = len(preflight.uncovered) - len(names)
        more = f" and {left} more" if left else ""
        listed = ", ".join(names)
        return f"A run would fail: no chosen toolchain has a candidate for {listed}{more}."
    candidates, distinct = counted(preflight.candidates, "candidate"), preflight.distinct
    return (
        f"{candidates}, {number_text(distinct)} of them distinct and "
        f"{number_text(preflight.stored)} measured already. "
        f"Expected: {duration_text(preflight.expected_s)}."
    )
