"""Makes the toolbar: open, run and its settings, what is compared, colouring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QComboBox, QMenu, QToolBar, QToolButton

from collage_engine.drawing.box_styles import MODES
from collage_engine.support.text import counted
from collage_engine.wording.amounts import duration_text
from collage_engine.wording.titles import baseline_title
from collage_gui.document.comparison import Reference
from collage_gui.widgets import keep_from_wheel, named

if TYPE_CHECKING:
    from collage_gui.document.document import Document
    from collage_gui.document_window.window import DocumentWindow


CHOICE_LETTERS = 15
"""Letters that the list of references shows: those of "Against: Best baseline"."""


class Toolbar(QToolBar):
    """The toolbar, which acts on the current page."""

    def __init__(self, actions: Mapping[str, QAction], colours: QMenu) -> None:
        """Make the toolbar.

        Args:
            actions: The window's actions by id.
            colours: The menu of what a graph can be coloured by.
        """
        super().__init__("Toolbar")
        self._page: DocumentWindow | None = None
        self.setObjectName("toolbar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.addAction(actions["open"])
        actions["run"].setIconText("▶  Run")
        self.addAction(actions["run"])
        self.widgetForAction(actions["run"]).setObjectName("runButton")
        self.settings = actions["run_settings"]
        self.addAction(self.settings)
        self.addSeparator()
        title = "Compared with"
        self.reference = named(QComboBox(), "baseline", title, title)
        policy = QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        self.reference.setSizeAdjustPolicy(policy)  # the width does not follow the entries
        self.reference.setMinimumContentsLength(CHOICE_LETTERS)
        self.reference.view().setTextElideMode(Qt.TextElideMode.ElideNone)
        self.reference.activated.connect(self._reference_chosen)
        self.addWidget(self.reference)
        self.colour = named(QToolButton(), "colourBy", "Colour by", "Colour by")
        self.colour.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.colour.setMenu(colours)
        self.addWidget(self.colour)
        keep_from_wheel(self)

    def show_page(self, page: DocumentWindow | None) -> None:
        """Show the state of a page, and act on it from now on."""
        self._page = page
        document = page.document if page is not None else None
        graph = document is not None and document.is_open
        self.settings.setIconText(f"{_settings_text(page)} ▾")
        self.colour.setEnabled(graph)
        mode = page.picture.mode if page is not None else next(iter(MODES))
        self.colour.setText(f"Colour: {MODES[mode]} ▾")
        self._list_references(document)

    def _list_references(self, document: Document | None) -> None:
        """List the best baseline, every measured baseline of the shown run, and every other run."""
        entries = [("Best baseline", Reference())]
        run = document.runs.shown_or_last() if document is not None else None
        if document is not None and run is not None:
            shown = document.placement.shown and document.placement.shown.run
            entries += [
                (baseline_title(baseline), Reference("baseline", baseline.name))
                for baseline in run.baselines
                if baseline.measured_us is not None
            ]
            entries += [
                (document.runs.title_of(each), Reference("run", each.id))
                for each in document.runs.visible
                if each.id != shown or document.comparison.reference == Reference("run", each.id)
            ]
        self.reference.clear()
        for label, reference in entries:
            self.reference.addItem(f"Against: {label}", (reference.kind, reference.name))
            if document is not None and reference == document.comparison.reference:
                self.reference.setCurrentIndex(self.reference.count() - 1)
        self.reference.setEnabled(self.reference.count() > 1)

    # -- acting ------------------------------------------------------------------------

    def _reference_chosen(self) -> None:
        if self._page is not None:
            kind, name = self.reference.currentData()
            self._page.document.comparison.set_reference(Reference(kind, name))


def _settings_text(page: DocumentWindow | None) -> str:
    """Return what the next run takes, in short: ``auto threads, 10 min``."""
    if page is None:
        return "Settings"
    settings = page.panels.run_settings
    threads, budget_s = settings.threads.value(), settings.budget.value()
    return f"{counted(threads, 'thread') if threads else 'auto threads'}, {duration_text(budget_s)}"
