"""The toolbar: run, where the engine runs, threads, budget, reference, colouring, search."""

from __future__ import annotations

from PySide6.QtCore import QSize, Qt, Signal
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QComboBox,
    QLabel,
    QLineEdit,
    QSizePolicy,
    QSpinBox,
    QToolBar,
    QToolButton,
    QWidget,
)

from collage_engine.drawing.box_styles import MODES
from collage_gui.document.comparison import Reference
from collage_gui.document_window.window import DocumentWindow
from collage_gui.panels.references import fill_references
from collage_gui.preferences import Preferences
from collage_gui.theme import pad_spin_boxes

DEVICE_LENGTH = 32
"""Letters of the device's name that its button shows; chosen."""


class Toolbar(QToolBar):
    """Acts on the current page."""

    device_clicked = Signal()
    mode_chosen = Signal()

    def __init__(self, open_action: QAction, preferences: Preferences) -> None:
        super().__init__("Toolbar")
        self._preferences = preferences
        self._page: DocumentWindow | None = None
        self._optional: list[QAction] = []
        """What is left out of a toolbar that is too narrow, in this order; menus and the panel
        of run settings have it all."""
        self.setObjectName("toolbar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.addAction(open_action)
        self.run_button = QToolButton()
        self.run_button.setObjectName("runButton")
        self.run_button.clicked.connect(self._start_or_cancel)
        self.addWidget(self.run_button)
        self.addSeparator()
        self._device = QToolButton()
        self._device.setObjectName("deviceButton")
        self._device.clicked.connect(self.device_clicked)
        self.addWidget(self._device)
        self._add_run_fields()
        self.addSeparator()
        self._add_views()
        self._add_search()

    def _add_run_fields(self) -> None:
        self.threads = QSpinBox(minimum=0, maximum=256)
        self.threads.setSpecialValueText("auto")
        self.threads.setObjectName("toolbarThreads")
        self.threads.setAccessibleName("Threads")
        self.threads.valueChanged.connect(self._threads_changed)
        self.budget = QSpinBox(minimum=1, maximum=600, suffix=" min")
        self.budget.setObjectName("toolbarBudget")
        self.budget.setAccessibleName("Budget")
        self.budget.valueChanged.connect(self._budget_changed)
        for label, field in (("Threads", self.threads), ("Budget", self.budget)):
            self._optional += [self.addWidget(_label(label)), self.addWidget(field)]
            pad_spin_boxes(field)

    def _add_views(self) -> None:
        self.reference = QComboBox()
        self.reference.setObjectName("baseline")
        self.reference.setAccessibleName("Compare with")
        self.reference.setMinimumContentsLength(16)
        self.reference.activated.connect(self._reference_chosen)
        self.colour = QComboBox()
        self.colour.setObjectName("colourBy")
        self.colour.setAccessibleName("Colour by")
        for mode, title in MODES.items():
            self.colour.addItem(title, mode)
        self.colour.activated.connect(self._colour_chosen)
        for label, combo in (("Compared with", self.reference), ("Colour by", self.colour)):
            self._optional.insert(0, self.addWidget(_label(label)))
            self.addWidget(combo)

    def _add_search(self) -> None:
        spacer = QWidget()
        spacer.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        self.addWidget(spacer)
        self.search = QLineEdit(
            placeholderText="Find in the graph  (Ctrl+F)", clearButtonEnabled=True
        )
        self.search.setObjectName("toolbarSearch")
        self.search.setAccessibleName("Find in the graph")
        self.search.setMaximumWidth(240)
        self.search.setMinimumWidth(210)
        self.search.returnPressed.connect(self._find)
        self.addWidget(self.search)

    # -- showing -----------------------------------------------------------------------

    def show_page(self, page: DocumentWindow | None) -> None:
        """Show the state of a page, and act on it from now on."""
        self._page = page
        document = page.document if page is not None else None
        graph = document is not None and document.operators is not None
        running = document is not None and document.execution.running
        self.run_button.setText("■  Stop" if running else "▶  Run")
        self.run_button.setEnabled(running or bool(graph and document and document.handle))
        self.run_button.setAccessibleName("Stop the run" if running else "Run")
        settings = page.panels.run_settings if page is not None else None
        threads, budget = (
            (settings.threads.value(), settings.budget.value())
            if settings is not None
            else (self._preferences.get("threads"), self._preferences.get("budget_min"))
        )
        for field, value in ((self.threads, threads), (self.budget, budget)):
            field.setEnabled(graph)
            field.blockSignals(True)
            field.setValue(value)
            field.blockSignals(False)
        self.colour.setEnabled(graph)
        self.search.setEnabled(graph)
        if page is not None:
            self.colour.setCurrentIndex(self.colour.findData(page.picture.mode))
        fill_references(self.reference, document)
        self.reference.setEnabled(self.reference.count() > 1)

    def show_device(self, device: str, engine: str) -> None:
        """Show the device of the engine.

        Args:
            device: Its name, or what the engine does.
            engine: How the engine is reached.
        """
        short = device if len(device) <= DEVICE_LENGTH else device[:DEVICE_LENGTH] + "…"
        self._device.setText(short)
        self._device.setToolTip(f"{device}\nEngine: {engine}\nClick to connect to another engine.")

    def fit(self, width: int) -> None:
        """Leave out what can be missed until the rest fits into ``width`` pixels."""
        for action in self._optional:
            action.setVisible(True)
        for action in self._optional:
            if self.sizeHint().width() <= width:
                break
            action.setVisible(False)

    # -- acting ------------------------------------------------------------------------

    def _start_or_cancel(self) -> None:
        if self._page is not None:
            self._page.runs.start_or_cancel()

    def _threads_changed(self, value: int) -> None:
        if self._page is not None:
            self._page.panels.run_settings.threads.setValue(value)

    def _budget_changed(self, value: int) -> None:
        if self._page is not None:
            self._page.panels.run_settings.budget.setValue(value)

    def _reference_chosen(self) -> None:
        if self._page is not None:
            kind, name = self.reference.currentData()
            self._page.document.comparison.set_reference(Reference(kind, name))

    def _colour_chosen(self) -> None:
        if self._page is not None:
            self._page.picture.set_mode(self.colour.currentData())
            self.mode_chosen.emit()

    def _find(self) -> None:
        if self._page is not None:
            self._page.navigation.find_text(self.search.text())


def _label(text: str) -> QLabel:
    label = QLabel(text)
    label.setProperty("quiet", True)
    label.setContentsMargins(6, 0, 2, 0)
    return label
