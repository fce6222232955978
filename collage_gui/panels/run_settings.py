"""Edits what a run will do: toolchains, threads, budgets, sizes, inputs, limits."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from PySide6.QtCore import QMargins, QSignalBlocker, QSize, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QAbstractItemView,
    QAbstractSpinBox,
    QCheckBox,
    QComboBox,
    QDoubleSpinBox,
    QFileDialog,
    QFormLayout,
    QHBoxLayout,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QPushButton,
    QScrollArea,
    QSpinBox,
    QStyle,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.precision import (
    BFLOAT16,
    DEVICE_ONLY,
    FLOAT16,
    FLOAT32,
    INT8,
    TF32,
    short,
)
from collage_engine.records.settings import RunSettings, option_table
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.text import counted
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.panels.tables import toolchain_icon
from collage_gui.preferences import Preferences
from collage_gui.widgets import (
    DurationField,
    W,
    action_button,
    form_row,
    keep_from_wheel,
    lay_out,
    named,
    pad_spin_boxes,
    plain_tip,
    push_button,
    show_words,
    text_label,
)

ABOUT_CHOOSING_SHAPES = "Sizes of the dimensions that the model names, such as its batch"
CHOOSE_SHAPES = "Choose shapes…"
ABOUT_UNCHECKED = (
    "Where all outputs are NaN or infinite on every input there is nothing to compare. What such "
    "a run finds is exported only if this was chosen before: a wrong result would not be noticed."
)
ANY_OF_THE_TOOLCHAINS = "any of the toolchains above"
Ways = tuple[Callable[[], Any], Callable[[Any], None]]
"""How a setting is read from its field, and shown in it."""
RANDOM_INPUTS = "Random inputs…"
MEGABYTE = 1_000_000
"""Bytes of the unit in which the artifact's size and the memory are limited."""
MEANINGS = {
    FLOAT32: "float32 everywhere",
    TF32: "products on tensor cores, operands rounded to ten bits of mantissa",
    FLOAT16: "operands of products rounded to half precision, where that is faster",
    BFLOAT16: "operands of products rounded to bfloat16, where that is faster",
    INT8: "for models that mark themselves what is rounded to 8 bits (QDQ)",
}
"""Precisions in the order in which they are offered, and what they mean."""
NO_BFLOAT16 = "No toolchain here multiplies in bfloat16: the processor has no AVX512_BF16 or AMX"


class PrecisionChoice(QComboBox):
    """Lists the precisions that mean something for the target."""

    def __init__(self) -> None:
        super().__init__()
        self._no_bfloat16 = False
        self._kind = "cpu"
        self.show_target("cpu")

    def show_states(self, states: Sequence[ToolchainState]) -> None:
        """Disable bfloat16 where every toolchain says that this processor has none."""
        answers = [state.bfloat16 for state in states if state.available and state.serves("cpu")]
        self._no_bfloat16 = bool(answers) and all(answer is False for answer in answers)
        self.show_target(self._kind)

    def show_target(self, kind: str) -> None:
        """List the precisions for a kind of device, cpu or cuda; keep the choice if possible."""
        chosen, self._kind = self.precision(), kind
        self.clear()
        for at, precision in enumerate(
            p for p in MEANINGS if kind == "cuda" or p not in DEVICE_ONLY
        ):
            self.addItem(short(precision), precision)
            self.setItemData(at, MEANINGS[precision], Qt.ItemDataRole.ToolTipRole)
            if precision == BFLOAT16 and kind == "cpu" and self._no_bfloat16:
                self.setItemText(at, f"{short(precision)}: not on this processor")
                self.setItemData(at, NO_BFLOAT16, Qt.ItemDataRole.ToolTipRole)
                # A combo box asks for the flags of its entries under the role before the first.
                self.setItemData(at, 0, Qt.ItemDataRole.UserRole - 1)
        self.choose(chosen)

    def precision(self) -> str:
        """Return the chosen precision."""
        return self.currentData() or FLOAT32

    def choose(self, precision: str) -> None:
        """Choose a precision; float32 where it is not listed."""
        self.setCurrentIndex(max(0, self.findData(precision)))


class RuntimesChoice(QPushButton):
    """A button with a menu of the toolchains that are available, any number of which is checked."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed: tuple[str, ...] = ()
        """The checked toolchains; none means that any is allowed."""
        self.setMenu(named(QMenu(self), "allowRuntimesMenu"))
        self.allow(())

    def show_states(self, states: Sequence[ToolchainState]) -> None:
        """List the toolchains that are available."""
        self.menu().clear()
        for state in filter(lambda state: state.available, states):
            icon, title = toolchain_icon(state.name), toolchain_title(state.name)
            action = self.menu().addAction(icon, title, self._chosen)
            action.setCheckable(True)
            action.setData(state.name)
        self.allow(self.allowed)

    def allow(self, names: tuple[str, ...]) -> None:
        """Check these toolchains, also those that are listed later."""
        self.allowed = names
        self.setText(", ".join(map(toolchain_title, names)) or ANY_OF_THE_TOOLCHAINS)
        for action in self.menu().actions():
            action.setChecked(action.data() in names)

    def _chosen(self) -> None:
        self.allow(tuple(a.data() for a in self.menu().actions() if a.isChecked()))


def _ways(field: QWidget) -> Ways:
    """Return how the setting of a field is read and shown."""
    if isinstance(field, QSpinBox | QDoubleSpinBox | DurationField):
        return field.value, field.setValue
    if isinstance(field, QCheckBox):
        return field.isChecked, field.setChecked
    if isinstance(field, QComboBox):
        return field.currentData, lambda data: field.setCurrentIndex(max(0, field.findData(data)))
    if isinstance(field, RuntimesChoice):
        return lambda: field.allowed, field.allow
    assert isinstance(field, QLineEdit)
    return lambda: field.text().strip() or field.placeholderText(), field.setText


class RunSettingsPanel(QWidget):
    """The panel with the fields of the next run's settings."""

    def __init__(
        self, document: Document, preferences: Preferences, actions: Mapping[str, QAction]
    ) -> None:
        super().__init__()
        self.document = document
        self.setObjectName("runSettingsPanel")
        self._inputs: bytes | None = None
        self._states: tuple[ToolchainState, ...] = ()
        """The toolchains of the engine's machine."""
        self._fields: dict[str, Ways] = {}
        """How each of the ``RunSettings`` that has a field is read and shown, in the order of
        showing: the target comes before what depends on it."""
        self.toolchains = ToolchainList()
        self.error = text_label()
        self.error.hide()
        inner = QWidget()
        order = "The order decides greedy partitioning and exact ties; drag to reorder."
        run = action_button(actions["run"], "Run", "runFromSettings")
        lay_out(
            QVBoxLayout(inner),
            text_label("Toolchains", "heading"),
            text_label(order, "small"),
            self.toolchains,
            self._run_form(actions),
            text_label("Limits on what is deployed", "heading"),
            self._limits_form(),
            None,
            edge=1,
        )
        self._inner = inner
        scroll = QScrollArea(widgetResizable=True)
        scroll.setFrameShape(QScrollArea.Shape.NoFrame)
        scroll.setWidget(inner)
        # What is wrong with a field is seen wherever the fields are scrolled to.
        self._footer = QWidget()
        buttons = lay_out(QHBoxLayout(), run, None)
        lay_out(QVBoxLayout(self._footer), self.error, buttons, edge=1)
        lay_out(QVBoxLayout(self), (scroll, 1), self._footer, edge=0)
        pad_spin_boxes(self)
        keep_from_wheel(self)
        threads, budget_s = preferences.last_run()
        self._show(RunSettings(threads=threads, budget_s=budget_s))
        document.shapes.changed.connect(self._show_shapes)
        document.execution.running_changed.connect(self._show_shapes)
        document.graph_changed.connect(self._show_shapes)
        document.execution.settings_restored.connect(self._restored)
        self._show_shapes()

    def sizeHint(self) -> QSize:
        """Return the size at which all fields are seen without scrolling."""
        bar = self.style().pixelMetric(QStyle.PixelMetric.PM_ScrollBarExtent)
        footer = self._footer.sizeHint().height()
        return self._inner.sizeHint().grownBy(QMargins(0, 0, bar, footer))

    def _run_form(self, actions: Mapping[str, QAction]) -> QFormLayout:
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        self.target = self._row(form, "target", QLineEdit("cpu", placeholderText="cpu"))
        self.target.textChanged.connect(self._show_target)
        self.threads = self._row(form, "threads", QSpinBox(maximum=256))
        show_words(self.threads, "auto")
        self.budget = self._row(form, "budget_s", DurationField())
        self.in_place = self._row(form, "in_place", QCheckBox("Measure in the model"))
        self.tune = self._row(form, "tune_budget_s", DurationField("no tuning"))
        for duration in (self.budget, self.tune):
            duration.refused.connect(self._show_error)
        self.precision = self._row(form, "precision", PrecisionChoice())
        field = QDoubleSpinBox(decimals=3, maximum=100.0, singleStep=0.1, suffix=" %")
        show_words(field, "by precision")
        self.tolerance = self._row(form, "tolerance", field)
        self._fields["tolerance"] = (
            lambda: self.tolerance.value() / 100 or None,
            lambda tolerance: self.tolerance.setValue(100 * (tolerance or 0.0)),
        )
        box = QCheckBox("Export what cannot be checked")
        self.unchecked = self._row(form, "unchecked", box)
        form.addRow("", text_label(ABOUT_UNCHECKED, "small"))
        self.strict_nan = self._row(form, "strict_nan", QCheckBox("Hand on NaN everywhere"))
        choose = action_button(actions["shapes"])
        self.dimensions = form_row(form, "Shapes", choose, "dimensions", ABOUT_CHOOSING_SHAPES)
        choose = push_button(RANDOM_INPUTS, "", self._choose_inputs)
        tip = "Choose an .npz file of representative inputs, keyed by input name"
        self.inputs = form_row(form, "Inputs", choose, "inputs", tip)
        return form

    def _limits_form(self) -> QFormLayout:
        """Return the fields of the limits; each limit gets a verdict and a price."""
        form = QFormLayout()
        self.runtimes = self._row(form, "allow_runtimes", RuntimesChoice())
        self.most = self._row(form, "max_runtimes", QSpinBox(maximum=16))
        show_words(self.most, "any number")
        self.largest = self._size(form, "max_artifact_bytes", "any size")
        self.memory = self._size(form, "max_memory_bytes", "any amount")
        field = QLineEdit(placeholderText="any")
        self.licences = self._row(form, "licences", field)
        self._fields["licences"] = (
            lambda: tuple(dict.fromkeys(filter(None, map(str.strip, field.text().split(","))))),
            lambda licences: field.setText(", ".join(licences)),
        )
        return form

    def _row(self, form: QFormLayout, setting: str, field: W) -> W:
        """Add the field of a setting, which is read and shown as fields of its kind are."""
        declared = option_table()[setting]
        self._fields[setting] = _ways(field)
        form_row(form, declared.option.row, field, setting, declared.help)
        if isinstance(field, QCheckBox):
            field.setAccessibleName(field.text())
        return field

    def _size(self, form: QFormLayout, setting: str, none: str) -> QDoubleSpinBox:
        """Add a field for a number of bytes; 0 is none."""
        field = QDoubleSpinBox(decimals=1, maximum=1e6, singleStep=10.0, suffix=" MB")
        show_words(field, none)
        self._row(form, setting, field)
        self._fields[setting] = (
            lambda: round(field.value() * MEGABYTE),
            lambda size: field.setValue(size / MEGABYTE),
        )
        return field

    # -- toolchains --------------------------------------------------------------------

    def show_toolchains(self, states: tuple[ToolchainState, ...]) -> None:
        """List the engine's toolchains; missing ones say what installs them."""
        self._states = states
        self.toolchains.show_states(states, self.document.execution.settings.toolchains)
        self.runtimes.show_states(states)
        self.precision.show_states(states)
        licences = ", ".join(sorted({s.licence for s in states if s.available and s.licence}))
        self.licences.setToolTip(
            f"{option_table()['licences'].help}.\nThose of the toolchains here: {licences}"
        )

    def _show_target(self, text: str) -> None:
        """List what there is for a target; names that are half typed change nothing."""
        kind = {"llvm": "cpu", "": "cpu"}.get(name := text.strip().partition(":")[0], name)
        if kind in ("cpu", "cuda"):
            self.toolchains.show_target(kind)
            self.precision.show_target(kind)

    # -- settings ----------------------------------------------------------------------

    def settings(self) -> RunSettings:
        """Return the settings of the fields; what has no field stays as in the document.

        A field that is being typed in is read as far as it is typed.
        """
        for spin in self.findChildren(QAbstractSpinBox):
            spin.interpretText()
        for duration in (self.budget, self.tune):
            duration.read()
        return msgspec.structs.replace(
            self.document.execution.settings,
            toolchains=self.toolchains.names(),
            inputs_npz=self._inputs,
            **{name: read() for name, (read, _) in self._fields.items()},
        )

    def _show(self, settings: RunSettings) -> None:
        for name, (_, show) in self._fields.items():
            show(getattr(settings, name))

    def _restored(self) -> None:
        """Show the settings of an opened session, as near as the fields allow."""
        self._show(self.document.execution.settings)
        self.show_toolchains(self._states)

    def _show_shapes(self) -> None:
        """Name the shapes that the next run places, where there are several."""
        shapes = self.document.shapes
        names = [entry.choice.text for entry in shapes.entries] if shapes.several else []
        text = f"{counted(len(names), 'shape')}…" if names else CHOOSE_SHAPES
        self.dimensions.setText(text)
        self.dimensions.setToolTip(plain_tip(", ".join(names) or ABOUT_CHOOSING_SHAPES))

    def _choose_inputs(self) -> None:
        path, _ = QFileDialog.getOpenFileName(self, "Representative inputs", "", "NumPy (*.npz)")
        self.load_inputs(path)

    def _show_error(self, text: str) -> None:
        """Say what is wrong with a field; an empty text takes that back."""
        self.error.setText(text)
        self.error.setVisible(bool(text))

    def load_inputs(self, path: str) -> None:
        """Take the bytes of an .npz file; an empty path goes back to random inputs."""
        self._inputs, refusal = None, ""
        if path:
            try:
                content = Path(path).read_bytes()
            except OSError as error:
                refusal = f"{path}: {error.strerror}"
            else:
                self._inputs = content if content.startswith(b"PK") else None
                refusal = "" if self._inputs else f"{os.path.basename(path)} is not an .npz file"
        self._show_error(refusal)
        self.inputs.setText(os.path.basename(path) if self._inputs else RANDOM_INPUTS)


NAME = Qt.ItemDataRole.UserRole
ON = Qt.ItemDataRole.UserRole + 1
"""Whether an item is to be checked where the target lets it."""
DEVICES = {"cpu": "processors", "cuda": "NVIDIA devices"}


class ToolchainList(QListWidget):
    """Lists all toolchains; the checked ones are used, from top to bottom.

    Missing ones say what installs them. One without its device can be checked, for a run that
    only compiles. One that has nothing for the run's target cannot be checked and is not used;
    its check comes back with the target.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kind = "cpu"
        self._states: dict[str, ToolchainState] = {}
        named(self, "toolchainList", "Toolchains, in the order of greedy partitioning")
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setIconSize(toolchain_icon("").actualSize(self.iconSize()))
        self.setWordWrap(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def show_states(self, states: tuple[ToolchainState, ...], chosen: tuple[str, ...]) -> None:
        """List toolchains, available ones first, in the chosen order.

        Args:
            states: What the engine says of each toolchain.
            chosen: The toolchains of the settings; none means all that are available.
        """
        self._states = {state.name: state for state in states}
        with QSignalBlocker(self):
            self.clear()
            order = {name: at for at, name in enumerate(chosen)}
            for state in sorted(
                states, key=lambda s: (not s.available, not s.builds, order.get(s.name, 99))
            ):
                item = QListWidgetItem(toolchain_icon(state.name), "")
                item.setData(NAME, state.name)
                tip = "\n".join(filter(None, (state.reason, state.install, state.licence)))
                item.setToolTip(plain_tip(tip))
                # What was chosen for one target says nothing about toolchains that are not for it.
                decided = bool(chosen) and state.serves(self._kind)
                item.setData(ON, state.name in chosen if decided else state.available)
                self._show_state(item)
                self.addItem(item)
        self._fit()

    def show_target(self, kind: str) -> None:
        """Let only toolchains be checked that have something for a kind of device."""
        if kind == self._kind:
            return
        for item in self._checkable():
            item.setData(ON, item.checkState() == Qt.CheckState.Checked)
        self._kind = kind
        with QSignalBlocker(self):
            for at in range(self.count()):
                self._show_state(self.item(at))
        self._fit()

    def _show_state(self, item: QListWidgetItem) -> None:
        """Set text, flags and check of an item by its toolchain's state and the target."""
        state = self._states[item.data(NAME)]
        item.setText("\n".join(self._lines(state)))
        flags = Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsDragEnabled
        if state.serves(self._kind) and (state.available or state.builds):
            flags |= Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsUserCheckable
            on = Qt.CheckState.Checked if item.data(ON) else Qt.CheckState.Unchecked
            item.setCheckState(on)
        else:
            item.setData(Qt.ItemDataRole.CheckStateRole, None)
        item.setFlags(flags)

    def _lines(self, state: ToolchainState) -> list[str]:
        title = toolchain_title(state.name)
        if state.available or state.builds:
            title = f"{title}  {state.version or ''}"
        if not state.serves(self._kind):
            return [title, f"only for {' and '.join([DEVICES.get(t, t) for t in state.targets])}"]
        if state.available:
            return [title]
        if state.builds:
            return [title, "no device here: compiles for one, without measuring"]
        return [title, state.reason or "not available", *filter(None, [state.install])]

    def _fit(self) -> None:
        lines = sum(len(self._lines(state)) for state in self._states.values())
        metrics = self.fontMetrics().lineSpacing()
        self.setFixedHeight(min(300, lines * metrics + len(self._states) * 10 + 8))

    def names(self) -> tuple[str, ...]:
        """Return the checked toolchains, in order."""
        return tuple(
            item.data(NAME)
            for item in self._checkable()
            if item.checkState() == Qt.CheckState.Checked
        )

    def _checkable(self) -> list[QListWidgetItem]:
        items = (self.item(at) for at in range(self.count()))
        return [item for item in items if item.flags() & Qt.ItemFlag.ItemIsUserCheckable]
