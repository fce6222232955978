"""Pinning, running and comparing one document."""

from __future__ import annotations

import os
from collections.abc import Callable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import (
    QMenu,
)

from collage_engine.drawing.palette import toolchain_title
from collage_engine.drawing.words import counted
from collage_engine.records.errors import UsageError
from collage_engine.records.files import write_atomically
from collage_gui import pins_file
from collage_gui.document_look import LookActions
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.tables import chip
from collage_gui.pinning import make_pin, pins_as_now, with_pin, without_nodes


class PinActions(LookActions):
    """Pins, runs, comparisons: what goes through the document to the engine."""

    run_settings: RunSettingsPanel
    _toolchains: tuple[str, ...]

    def show_toolchains(self, states) -> None:
        self._toolchains = tuple(s.name for s in states if s.available)
        self.run_settings.show_toolchains(states)

    def _toolchain_menu(self, title: str, do: Callable[[str], None]) -> QMenu:
        menu = QMenu(title, self)
        offered = {c.instance.toolchain for c in self.document.explained}
        for name in self._toolchains:
            label = toolchain_title(name)
            if self.document.explained and name not in offered:
                label += "  (offers nothing here)"
            action = menu.addAction(chip(name), label)
            action.triggered.connect(lambda _=False, n=name: do(n))
        if not self._toolchains:
            menu.addAction("The engine has not said which toolchains there are").setEnabled(False)
        return menu

    def _popup(self, menu: QMenu) -> None:
        at = self.view.viewport().rect().center()
        if self.picture is not None and self.view.marks.primary is not None:
            corner = self.view.to_view(
                self.picture.rectangles[self.view.marks.primary].bottomLeft()
            )
            if self.view.viewport().rect().contains(corner.toPoint()):
                at = corner.toPoint()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self.view.viewport().mapToGlobal(at))
        if menu.actions():
            menu.setActiveAction(menu.actions()[0])

    def pin_menu(self) -> None:
        self._popup(self._toolchain_menu("Pin to", self.pin_to))

    def never_menu(self) -> None:
        self._popup(self._toolchain_menu("Never on", self.pin_never))

    def _pin(self, kind, text: str, toolchain: str | None = None) -> None:
        if self.document.selection:
            pin = make_pin(self.document, kind, self.document.selection, toolchain)
            self.document.edit_pins(with_pin(self.document, pin), text)

    def pin_to(self, toolchain: str) -> None:
        self._pin("on", f"Pin to {toolchain_title(toolchain)}", toolchain)

    def pin_never(self, toolchain: str) -> None:
        self._pin("never", f"Never on {toolchain_title(toolchain)}", toolchain)

    def pin_exactly(self) -> None:
        self._pin("exactly", "As exactly one partition")

    def pin_together(self) -> None:
        self._pin("together", "Together")

    def keep_partition(self) -> None:
        partition = self.document.partition_of(self.document.primary)
        if partition is not None:
            pin = make_pin(self.document, "exactly", partition.nodes, partition.toolchain)
            self.document.edit_pins(with_pin(self.document, pin), "Keep this partition")

    def pin_all(self) -> None:
        if self.document.shown is not None:
            placement = self.document.shown.placement
            self.document.edit_pins(pins_as_now(self.document, placement), "Pin all as now")

    def free_selection(self) -> None:
        self.document.edit_pins(without_nodes(self.document, self.document.selection), "Free")

    def free_all(self) -> None:
        self.document.edit_pins((), "Free all")

    def save_pins(self) -> None:
        document = self.document
        if document.operators is None:
            return
        path = self.ask_save("Save pins and placement", "pins.json", "Pins (*.json)")
        if path:
            placement = document.shown.placement if document.shown else None
            content = pins_file.to_text(
                document.operators, document.pins, placement, os.path.basename(document.path)
            )
            self._write(lambda: write_atomically(path, content), path)

    def load_pins(self) -> None:
        path = self.ask_open("Apply pins from a file", "Pins (*.json)")
        if path:
            self.apply_pins(path)

    def apply_pins(self, path: str) -> None:
        document = self.document
        if document.operators is None:
            return
        try:
            with open(path, "rb") as file:
                applied = pins_file.apply(document.operators, file.read())
        except (OSError, UsageError) as error:
            self.banner.say(f"{os.path.basename(path)}: {error}", "error")
            return
        pins = tuple(
            make_pin(document, p.kind, p.nodes, p.toolchain, p.device) for p in applied.pins
        )
        document.edit_pins(pins, f"Apply {os.path.basename(path)}")
        if applied.placement:
            document.own_placements = (*document.own_placements, applied.placement)
            document.add_log("info", "the file's placement becomes a baseline of the next run")
        for problem in applied.problems:
            document.add_log("warning", problem)
        if applied.problems:
            text = f"{counted(len(pins), 'pin')} applied; " + "; ".join(applied.problems[:3])
            if len(applied.problems) > 3:
                text += f"; and {len(applied.problems) - 3} more, in the log"
            self.banner.say(text, "warning")
        else:
            self.banner.say(f"{counted(len(pins), 'pin')} applied, all of them match", "info")
