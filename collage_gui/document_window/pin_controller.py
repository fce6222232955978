"""Carries out the actions that pin the selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from collage_engine.records.pin import PinKind
from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording.amounts import elide
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import (
    make_pin,
    measure_text,
    pin_prices,
    with_pin,
    without_nodes,
)
from collage_gui.graph_view.view import GraphView
from collage_gui.panels.tables import toolchain_icon
from collage_gui.theme import COLUMN_LETTERS
from collage_gui.widgets import plain_tip


class ToolchainMenu(QMenu):
    """Lists the toolchains that can be chosen."""

    def __init__(
        self, title: str, toolchains: Sequence[str], pin: Callable[[str], None], parent: QWidget
    ) -> None:
        """Make the menu.

        Args:
            title: Its title.
            toolchains: Names of the toolchains that can be chosen.
            pin: Called with the toolchain that is chosen.
            parent: The widget that owns the menu.
        """
        super().__init__(title, parent)
        self.by_name: dict[str, QAction] = {}
        for name in toolchains:
            self.by_name[name] = self.addAction(toolchain_icon(name), toolchain_title(name))
            self.by_name[name].triggered.connect(lambda _=False, name=name: pin(name))
        if not toolchains:
            self.addAction("The engine has not named its toolchains yet.").setEnabled(False)


class PinMenu(ToolchainMenu):
    """Shows what each toolchain would cost, or why it cannot; follows the engine's answers."""

    def __init__(
        self,
        document: Document,
        toolchains: Sequence[str],
        pin: Callable[[str], None],
        parent: QWidget,
    ) -> None:
        super().__init__("Pin to", toolchains, pin, parent)
        self.setToolTipsVisible(True)
        self._document = document
        self._line = self.addSeparator()
        self._measure = self.addAction("")
        execution, answered = document.execution, document.questions.explanation_changed
        self._measure.triggered.connect(
            lambda _=False: execution.measure_now(document.selection.operators)
        )
        # The engine's answers are followed until the menu closes.
        self.aboutToShow.connect(lambda: answered.connect(self.refresh))
        self.aboutToShow.connect(self.refresh)
        self.aboutToHide.connect(lambda: answered.disconnect(self.refresh))
        self.refresh()

    def refresh(self) -> None:
        """Show the prices that are known now."""
        for price in pin_prices(self._document, self.by_name):
            action, title = self.by_name[price.toolchain], toolchain_title(price.toolchain)
            text = elide(price.text, COLUMN_LETTERS)  # the tip has all of it
            action.setText(f"{title}\t{text}" if text else title)
            action.setToolTip(plain_tip(price.text or title))
            action.setEnabled(not price.reason)
        self._measure.setText(measure_text(self._document) if self.by_name else "")
        for action in (self._line, self._measure):
            action.setVisible(bool(self._measure.text()))


@dataclass(eq=False)
class PinController:
    """The actions that turn the selection into pins, undoably."""

    document: Document
    view: GraphView
    toolchains: tuple[str, ...] = ()

    def show_toolchains(self, states: Iterable[ToolchainState]) -> None:
        """Take the toolchains that the menus offer: those that are available."""
        self.toolchains = tuple(state.name for state in states if state.available)

    # -- menus -------------------------------------------------------------------------

    def pin_to_menu(self) -> QMenu:
        """Return a menu of the toolchains to pin to, with their prices."""
        return PinMenu(self.document, self.toolchains, self.pin_to, self.view)

    def never_on_menu(self) -> QMenu:
        """Return a menu of the toolchains to forbid."""
        return ToolchainMenu("Never on", self.toolchains, self.pin_never, self.view)

    def open(self, menu: QMenu) -> None:
        """Open a menu below the primary operator, or in the middle of the view."""
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self.view.below_primary())
        if menu.actions():
            menu.setActiveAction(menu.actions()[0])

    # -- pins --------------------------------------------------------------------------

    def pin_to(self, toolchain: str) -> None:
        """Demands a toolchain for the selection."""
        self.pin("on", f"Pin to {toolchain_title(toolchain)}", toolchain)

    def pin_never(self, toolchain: str) -> None:
        """Forbids a toolchain for the selection."""
        self.pin("never", f"Never on {toolchain_title(toolchain)}", toolchain)

    def keep_partition(self) -> None:
        """Pin the partition of the primary operator as it is now."""
        partition = self.document.placement.partition_of(self.document.selection.primary)
        if partition is not None:
            pin = make_pin(self.document, "exactly", partition.nodes, partition.toolchain)
            self.document.pins.edit(with_pin(self.document, pin), "Keep this partition")

    def pin_all(self) -> None:
        """Pin every partition of the shown placement as it is now."""
        shown = self.document.placement.shown
        if shown is not None:
            parts = shown.placement.partitions
            pins = (make_pin(self.document, "exactly", p.nodes, p.toolchain) for p in parts)
            self.document.pins.edit(pins, "Pin all as now")

    def free_selection(self) -> None:
        """Take the selected operators out of all pins."""
        operators = self.document.selection.operators
        self.document.pins.edit(without_nodes(self.document, operators), "Unpin")

    def pin(self, kind: PinKind, text: str, toolchain: str | None = None) -> None:
        """Demand something for the selection; the menu calls the edit by ``text``."""
        operators = self.document.selection.operators
        if operators:
            pin = make_pin(self.document, kind, operators, toolchain)
            self.document.pins.edit(with_pin(self.document, pin), text)
