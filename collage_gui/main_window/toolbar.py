"""Makes the toolbar: open, run, threads, budget, what is compared, colouring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from PySide6.QtCore import QSize, Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import QComboBox, QMenu, QSpinBox, QToolBar, QToolButton

from collage_engine.drawing.box_styles import MODES
from collage_gui.document.reference import Reference
from collage_gui.fields import ABOUT_BUDGET, ABOUT_THREADS, DurationField, keep_from_wheel
from collage_gui.panels.references import fill_references
from collage_gui.preferences import Preferences
from collage_gui.theme import pad_spin_boxes
from collage_gui.widgets import named, tool_button

if TYPE_CHECKING:
    from collage_gui.document_window.window import DocumentWindow


CHOICE_LETTERS = 14
"""Letters that the lists of the toolbar show; chosen, so that the toolbar fits 1024 pixels."""
AROUND_TEXT = 2.0
"""Width of a field's margins and arrows, in lines of its text; chosen: it grows with the text."""

RUN, KEEP, CANCEL = "▶  Run", "■  Stop and keep", "■  Cancel"


class Toolbar(QToolBar):
    """The toolbar, which acts on the current page."""

    def __init__(
        self, actions: Mapping[str, QAction], preferences: Preferences, colours: QMenu
    ) -> None:
        """Makes the toolbar.

        Args:
            actions: The window's actions by id.
            preferences: Threads and budget without a document.
            colours: The menu of what a graph can be coloured by.
        """
        super().__init__("Toolbar")
        self._preferences = preferences
        self._page: DocumentWindow | None = None
        self.setObjectName("toolbar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.addAction(actions["open"])
        self.run_button = tool_button("", "runButton", self._start_or_cancel)
        self.addWidget(self.run_button)
        actions["run_settings"].setIconText("▾")
        self.addAction(actions["run_settings"])
        self.addSeparator()
        self._add_run_fields()
        self.addSeparator()
        self._add_views(colours)
        keep_from_wheel(self)

    def _fit_fields(self) -> None:
        """Give the fields the width of their longest texts, at the size that text has now."""
        metrics = self.threads.fontMetrics()
        around = round(AROUND_TEXT * metrics.height())
        longest = max(map(metrics.horizontalAdvance, ("Threads: auto", "Threads: 256")))
        self.threads.setFixedWidth(longest + around)
        self.budget.setMinimumWidth(metrics.horizontalAdvance("Budget: 59 min 30 s") + around)
        self.budget.setMaximumWidth(self.budget.minimumWidth() + around)
        titles = (f"Colour: {title} ▾" for title in MODES.values())
        self.colour.setMinimumWidth(max(map(metrics.horizontalAdvance, titles)) + around)

    def _keep_run_button_wide(self) -> None:
        """Give the button the width of its longest text, so that nothing beside it moves."""
        button = self.run_button
        metrics = button.fontMetrics()
        around = button.sizeHint().width() - metrics.horizontalAdvance(button.text())
        button.setMinimumWidth(around + max(map(metrics.horizontalAdvance, (RUN, KEEP))))

    def _add_run_fields(self) -> None:
        self.threads = QSpinBox(minimum=0, maximum=256, prefix="Threads: ")
        self.threads.setSpecialValueText("Threads: auto")
        named(self.threads, "toolbarThreads", "Threads", ABOUT_THREADS)
        self.threads.valueChanged.connect(self._threads_changed)
        self.budget = DurationField(600, prefix="Budget: ")
        named(self.budget, "toolbarBudget", "Budget", ABOUT_BUDGET)
        self.budget.valueChanged.connect(self._budget_changed)
        self.budget.refused.connect(self._budget_refused)
        for field in (self.threads, self.budget):
            self.addWidget(field)
            pad_spin_boxes(field)

    def _add_views(self, colours: QMenu) -> None:
        self.reference = _choice("baseline", "Compared with")
        self.reference.setMinimumContentsLength(CHOICE_LETTERS + 1)  # "Against: Best baseline"
        self.reference.activated.connect(self._reference_chosen)
        self.colour = named(QToolButton(), "colourBy", "Colour by", "Colour by")
        self.colour.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.colour.setMenu(colours)
        for widget in (self.reference, self.colour):
            self.addWidget(widget)

    # -- showing -----------------------------------------------------------------------

    def show_page(self, page: DocumentWindow | None) -> None:
        """Show the state of a page, and act on it from now on."""
        self._page = page
        document = page.document if page is not None else None
        graph = document is not None and document.operators is not None
        running = document is not None and document.running
        keeps = document is not None and document.execution.provisional is not None
        doing = KEEP if keeps else CANCEL
        self.run_button.setText(doing if running else RUN)
        self._keep_run_button_wide()
        self._fit_fields()
        self.run_button.setEnabled(running or bool(graph and document and document.handle))
        self.run_button.setAccessibleName(self.run_button.text()[1:].strip())
        settings = page.panels.run_settings if page is not None else None
        threads, budget = (
            (settings.threads.value(), settings.budget.value())
            if settings is not None
            else (self._preferences.get("threads"), self._preferences.get("budget_s"))
        )
        for field, value in ((self.threads, threads), (self.budget, budget)):
            field.setEnabled(graph)
            if field.value() != value:  # setting the same value would replace what is being typed
                field.blockSignals(True)
                field.setValue(value)
                field.blockSignals(False)
        self.colour.setEnabled(graph)
        mode = page.picture.mode if page is not None else next(iter(MODES))
        self.colour.setText(f"Colour: {MODES[mode]} ▾")
        fill_references(self.reference, document, prefix="Against: ")
        self.reference.setEnabled(self.reference.count() > 1)

    # -- acting ------------------------------------------------------------------------

    def _start_or_cancel(self) -> None:
        if self._page is not None:
            self._page.runs.start_or_stop()

    def _threads_changed(self, value: int) -> None:
        if self._page is not None:
            self._page.panels.run_settings.threads.setValue(value)

    def _budget_changed(self, value: int) -> None:
        if self._page is not None:
            self._page.panels.run_settings.budget.setValue(value)

    def _budget_refused(self, reason: str) -> None:
        if self._page is not None:
            self._page.runs.show_refusal(reason)

    def _reference_chosen(self) -> None:
        if self._page is not None:
            kind, name = self.reference.currentData()
            self._page.document.comparison.set_reference(Reference(kind, name))


def _choice(name: str, title: str) -> QComboBox:
    """Returns a list whose width does not follow its entries."""
    combo = named(QComboBox(), name, title, title)
    combo.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
    combo.setMinimumContentsLength(CHOICE_LETTERS)
    combo.view().setTextElideMode(Qt.TextElideMode.ElideNone)
    return combo
