"""Carries out the actions that pin the selection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
    pins_as_now,
    with_pin,
    without_nodes,
)
from collage_gui.graph_view.view import GraphView
from collage_gui.panels.tables import toolchain_icon
from collage_gui.theme import COLUMN_LETTERS
from collage_gui.widgets import plain_tip


class PinMenu(QMenu):
    """Shows what each toolchain would cost, or why it cannot; follows the engine's answers."""

    def __init__(
        self,
        document: Document,
        toolchains: Sequence[str],
        pin: Callable[[str], None],
        measure: Callable[[], None],
        parent: QWidget,
    ) -> None:
        """Make the menu.

        Args:
            document: The document, with its selection.
            toolchains: Names of the toolchains that can be chosen.
            pin: Called with the toolchain that is chosen.
            measure: Measures what is unmeasured here.
            parent: The widget that owns the menu.
        """
        super().__init__("Pin to", parent)
        self.setToolTipsVisible(True)
        self._document, self._toolchains = document, tuple(toolchains)
        self._actions: dict[str, QAction] = {}
        for name in self._toolchains:
            action = self.addAction(toolchain_icon(name), toolchain_title(name))
            action.triggered.connect(lambda _=False, name=name: pin(name))
            self._actions[name] = action
        self._line = self.addSeparator()
        self._measure = self.addAction("")
        self._measure.triggered.connect(lambda _=False: measure())
        self.aboutToShow.connect(self._listen)
        self.aboutToHide.connect(self._listen_no_more)
        self.refresh()

    def _listen(self) -> None:
        """Follow the engine's answers, from now on until the menu closes."""
        self._document.questions.explanation_changed.connect(self.refresh)
        self.refresh()

    def _listen_no_more(self) -> None:
        self._document.questions.explanation_changed.disconnect(self.refresh)

    def refresh(self) -> None:
        """Show the prices that are known now."""
        for price in pin_prices(self._document, self._toolchains):
            action, title = self._actions[price.toolchain], toolchain_title(price.toolchain)
            text = elide(price.text, COLUMN_LETTERS)  # the tip has all of it
            action.setText(f"{title}\t{text}" if text else title)
            action.setToolTip(plain_tip(price.text or title))
            action.setEnabled(not price.reason)
        self._measure.setText(measure_text(self._document))
        for action in (self._line, self._measure):
            action.setVisible(bool(self._measure.text()))


class PinController:
    """The actions that turn the selection into pins, undoably."""

    def __init__(self, document: Document, view: GraphView) -> None:
        self._document, self._view = document, view
        self._toolchains: tuple[str, ...] = ()

    def show_toolchains(self, states: Iterable[ToolchainState]) -> None:
        """Take the toolchains that the menus offer: those that are available."""
        self._toolchains = tuple(state.name for state in states if state.available)

    # -- menus -------------------------------------------------------------------------

    def pin_to_menu(self) -> QMenu:
        """Return a menu of the toolchains to pin to, with their prices."""
        if not self._toolchains:
            return self._without_toolchains("Pin to")
        return PinMenu(
            self._document, self._toolchains, self.pin_to, self._measure_selection, self._view
        )

    def never_on_menu(self) -> QMenu:
        """Return a menu of the toolchains to forbid."""
        if not self._toolchains:
            return self._without_toolchains("Never on")
        menu = QMenu("Never on", self._view)
        for name in self._toolchains:
            action = menu.addAction(toolchain_icon(name), toolchain_title(name))
            action.triggered.connect(lambda _=False, name=name: self.pin_never(name))
        return menu

    def _without_toolchains(self, title: str) -> QMenu:
        menu = QMenu(title, self._view)
        menu.addAction("The engine has not named its toolchains yet.").setEnabled(False)
        return menu

    def _measure_selection(self) -> None:
        self._document.execution.measure_now(self._document.selection.operators)

    def open(self, menu: QMenu) -> None:
        """Open a menu below the primary operator, or in the middle of the view."""
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self._view.below_primary())
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
        partition = self._document.placement.partition_of(self._document.selection.primary)
        if partition is not None:
            pin = make_pin(self._document, "exactly", partition.nodes, partition.toolchain)
            self._document.pins.edit(with_pin(self._document, pin), "Keep this partition")

    def pin_all(self) -> None:
        """Pin every partition of the shown placement as it is now."""
        shown = self._document.placement.shown
        if shown is not None:
            pins = pins_as_now(self._document, shown.placement)
            self._document.pins.edit(pins, "Pin all as now")

    def free_selection(self) -> None:
        """Take the selected operators out of all pins."""
        operators = self._document.selection.operators
        self._document.pins.edit(without_nodes(self._document, operators), "Unpin")

    def pin(self, kind: PinKind, text: str, toolchain: str | None = None) -> None:
        """Demand something for the selection; the menu calls the edit by ``text``."""
        operators = self._document.selection.operators
        if operators:
            pin = make_pin(self._document, kind, operators, toolchain)
            self._document.pins.edit(with_pin(self._document, pin), text)
