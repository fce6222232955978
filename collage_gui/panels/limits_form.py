"""Edits the limits on what is deployed: runtimes, their number, size, memory and licences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QDoubleSpinBox,
    QFormLayout,
    QLineEdit,
    QMenu,
    QPushButton,
    QSpinBox,
    QWidget,
)

from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainState
from collage_gui.panels.tables import toolchain_icon
from collage_gui.widgets import form_row, named

ANY_OF_THE_TOOLCHAINS = "any of the toolchains above"

MEGABYTE = 1_000_000
"""Bytes of the unit in which the artifact's size and the memory are limited."""


class LimitsForm(QWidget):
    """The fields of ``RunSettings`` that limit the search; each gets a verdict and a price."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("limitsForm")
        form = QFormLayout(self)
        form.setContentsMargins(0, 0, 0, 0)
        self.runtimes = form_row(
            form,
            "Runtimes",
            QPushButton(ANY_OF_THE_TOOLCHAINS),
            "allowRuntimes",
            "Partitions of these toolchains only. Unlike a toolchain that is not checked above, "
            "the others are measured all the same, so that the limit's price is known.",
        )
        self._menu = named(QMenu(self), "allowRuntimesMenu")
        self._menu.setToolTipsVisible(True)
        self.runtimes.setMenu(self._menu)
        self._allowed: tuple[str, ...] = ()
        self.most = QSpinBox(minimum=0, maximum=16)
        self.most.setSpecialValueText("any number")
        tip = "Partitions of at most so many different toolchains"
        form_row(form, "At most", self.most, "maxRuntimes", tip)
        self.largest = QDoubleSpinBox(decimals=1, maximum=1e6, singleStep=10.0, suffix=" MB")
        self.largest.setSpecialValueText("any size")
        tip = "Weights and runtime libraries together, in millions of bytes"
        form_row(form, "Artifact", self.largest, "maxArtifactSize", tip)
        self.memory = QDoubleSpinBox(decimals=0, maximum=1e6, singleStep=100.0, suffix=" MB")
        self.memory.setSpecialValueText("any amount")
        form_row(
            form,
            "Memory",
            self.memory,
            "maxMemory",
            "Resident memory of the process while it runs, in millions of bytes. What takes more "
            "is measured, so that the limit's price is known, and cannot win.",
        )
        self.licences = form_row(form, "Licences", QLineEdit(placeholderText="any"), "licences")
        self._show_licences(())

    def show_states(self, states: Sequence[ToolchainState]) -> None:
        """List the toolchains that are available."""
        self._menu.clear()
        for state in states:
            if state.available:
                action = QAction(
                    toolchain_icon(state.name), toolchain_title(state.name), self._menu
                )
                action.setCheckable(True)
                action.setData(state.name)
                action.setChecked(state.name in self._allowed)
                action.setToolTip(state.licence or "")
                action.toggled.connect(lambda _: self._toggled())
                self._menu.addAction(action)
        self._show_licences(states)

    def _show_licences(self, states: Sequence[ToolchainState]) -> None:
        known = ", ".join(sorted({s.licence for s in states if s.available and s.licence}))
        text = (
            "Runtime libraries under these licences only, by their SPDX names, separated by "
            "commas; BSD means all BSD ones."
        )
        here = f"\nThe toolchains here have: {known}" if known else ""
        self.licences.setToolTip(text + here)

    def settings(self) -> dict[str, Any]:
        """Returns the limits as fields of ``RunSettings``."""
        licences = (text.strip() for text in self.licences.text().split(","))
        return {
            "allow_runtimes": self._allowed,
            "max_runtimes": self.most.value(),
            "max_artifact_bytes": round(self.largest.value() * MEGABYTE),
            "max_memory_bytes": round(self.memory.value() * MEGABYTE),
            "licences": tuple(dict.fromkeys(filter(None, licences))),
        }

    def restore(self, settings: RunSettings) -> None:
        """Show the limits of some settings."""
        self._allow(settings.allow_runtimes)
        for action in self._menu.actions():
            action.blockSignals(True)
            action.setChecked(action.data() in self._allowed)
            action.blockSignals(False)
        self.most.setValue(settings.max_runtimes)
        self.largest.setValue(settings.max_artifact_bytes / MEGABYTE)
        self.memory.setValue(settings.max_memory_bytes / MEGABYTE)
        self.licences.setText(", ".join(settings.licences))

    def _toggled(self) -> None:
        self._allow(tuple(a.data() for a in self._menu.actions() if a.isChecked()))

    def _allow(self, names: tuple[str, ...]) -> None:
        self._allowed = names
        self.runtimes.setText(", ".join(map(toolchain_title, names)) or ANY_OF_THE_TOOLCHAINS)
