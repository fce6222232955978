"""Shows the menu of toolchains that a selection can be pinned to, with the price of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from collage_engine.drawing.formatting import elide
from collage_engine.drawing.palette import toolchain_title
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import measure_text, pin_prices
from collage_gui.panels.tables import toolchain_icon
from collage_gui.widgets import plain_tip

TEXT_LENGTH = 60
"""Letters of a price or a reason that the menu shows; its tip has all of it. Chosen."""


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
        """Makes the menu.

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
        document.questions.explanation_changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the prices that are known now."""
        for price in pin_prices(self._document, self._toolchains):
            action, title = self._actions[price.toolchain], toolchain_title(price.toolchain)
            text = elide(price.text, TEXT_LENGTH)
            action.setText(f"{title}\t{text}" if text else title)
            action.setToolTip(plain_tip(price.text or title))
            action.setEnabled(not price.reason)
        self._measure.setText(measure_text(self._document))
        for action in (self._line, self._measure):
            action.setVisible(bool(self._measure.text()))
