"""Shows one document: the graph with a run's progress below it, and the panels beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QAction, QResizeEvent
from PySide6.QtWidgets import (
    QHBoxLayout,
    QLineEdit,
    QMenu,
    QSizePolicy,
    QSplitter,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.records.toolchain import ToolchainState
from collage_gui.document.document import Document
from collage_gui.document.pin_prices import faster_in_compared
from collage_gui.document_window.export_controller import DocumentFiles, ExportController
from collage_gui.document_window.find_bar import FindBar
from collage_gui.document_window.picture_controller import PictureController
from collage_gui.document_window.pin_controller import PinController
from collage_gui.document_window.run_controller import RunController, RunQueue
from collage_gui.document_window.shapes_controller import ShapesController
from collage_gui.document_window.split_view import SplitController, SplitWidget
from collage_gui.graph_view.view import GraphView
from collage_gui.messages import Banner, Messages
from collage_gui.panels.node import NodePanel
from collage_gui.panels.outline import Outline
from collage_gui.panels.partitions import PartitionsPanel
from collage_gui.panels.pins import PinsPanel
from collage_gui.panels.progress import LogPanel, ProgressStrip
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.runs import AnswerLine, RunsPanel
from collage_gui.panels.timeline import TimelinePanel
from collage_gui.preferences import Preferences
from collage_gui.theme import COLUMN_LETTERS, Theme
from collage_gui.widgets import SideWindow, lay_out, letters_px, named, split_up


class Panels:
    """Makes the panels; each one listens to the document by itself."""

    def __init__(
        self,
        document: Document,
        theme: Theme,
        preferences: Preferences,
        actions: Mapping[str, QAction],
    ) -> None:
        self.partitions = PartitionsPanel(document, theme)
        self.pins = PinsPanel(document, theme, actions)
        self.node = NodePanel(document, theme, actions)
        self.runs = RunsPanel(document, theme, actions)
        self.timeline = TimelinePanel(document, theme, actions)
        """Stands below the graph where it is wanted."""
        self.outline = Outline(document)
        """Stands beside the graph where it is wanted, and not among the tabs."""
        self.run_settings = RunSettingsPanel(document, preferences, actions)
        self.tabs = {
            "Partitions": self.partitions,
            "Node": self.node,
            "Pins": self.pins,
            "Runs": self.runs,
        }
        """The panels beside the graph, by what their tabs are called."""
        self.log = LogPanel(document.requests, theme)
        """Stands in a window of its own, like the settings of the next run."""


PANELS_SHARE = 0.3
"""Share of the window that the panels take until the user widens them; chosen, so that the graph
keeps half of a window of 1280 × 800 pixels."""
PANELS_KEY = "document/panels width"
"""Where the settings file keeps the width that the user gave the panels, in pixels."""
BACKGROUND_MENU = (
    ("fit", "find"),
    ("collapse_scopes", "collapse_partitions", "expand_all"),
)
"""Ids of the actions in the menu between boxes; separators stand between the groups."""
BOX_MENU = (
    ("try_here", "exactly", "together", "keep_partition", "free"),
    ("measure", "measure_longer"),
    ("select_partition", "zoom_selection", "enter_group", "leave_group"),
    ("copy_names",),
)
"""Ids of the actions in the menu of a box, below the menus of toolchains."""


class DocumentWindow(QWidget):
    """Owns the widgets of one document and its controllers; a page of the main window's tabs."""

    def __init__(
        self,
        document: Document,
        theme: Theme,
        preferences: Preferences,
        actions: Mapping[str, QAction],
        queue: RunQueue,
        window_messages: Messages,
    ) -> None:
        """Make the widgets, then the controllers on them.

        Args:
            document: The document; the window closes it.
            theme: Colours and fonts.
            preferences: The user's settings.
            actions: The main window's actions by id, for the context menu.
            queue: Has one run after the other begin.
            window_messages: Messages that concern every document.
        """
        super().__init__()
        self.setObjectName("documentWindow")
        self.document = document
        self._preferences, self._actions = preferences, actions

        self.answer = AnswerLine(document, actions)
        self.messages = Messages(self)
        self.find_bar = FindBar(document)
        self.view = GraphView()
        self.view.message = "Reading the model…"
        self.split_widget = SplitWidget(self.view)
        self.strip = ProgressStrip(document, actions)
        self.panels = Panels(document, theme, preferences, actions)
        self._stage = QWidget()
        self.tabs = named(QTabWidget(), "panelTabs")
        self._columns = self._make_columns()
        lay_out(QHBoxLayout(self), self._columns, edge=0)
        self.banner = Banner("banner", self._stage, self.messages, window_messages)
        self.settings_window = SideWindow(
            "Settings of the next run", self.panels.run_settings, self
        )
        self.log_window = SideWindow("Log", self.panels.log, self)

        self.picture = PictureController(document, self.view, theme, preferences, self)
        self.split = SplitController(document, self.split_widget, self.view, self.picture, self)
        self.files = files = DocumentFiles(document, self.messages, self)
        self.pins = PinController(document, self.view)
        self.runs = RunController(
            document,
            self.panels.run_settings,
            self.messages,
            preferences,
            queue,
        )
        self.shapes = ShapesController(document, self.messages, self)
        self.export = ExportController(
            document, self.view, self.picture, files, self.messages, theme
        )
        self._connect()

    def _make_columns(self) -> QSplitter:
        """Return the graph, and beside it the panels as tabs."""
        for title, panel in self.panels.tabs.items():
            # Without this, a panel in front would widen its column at the cost of the graph.
            panel.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
            panel.setAutoFillBackground(True)
            self.tabs.addTab(panel, title)
        self.tabs.setAutoFillBackground(True)
        columns = split_up(Qt.Orientation.Horizontal, self._centre(), self.tabs)
        columns.splitterMoved.connect(self._keep_width)
        return columns

    def _centre(self) -> QWidget:
        centre = QWidget()
        # A message covers the lower edge of the stage, and not the legend below it.
        lay_out(QVBoxLayout(self._stage), self.split_widget, edge=0)
        explained = QWidget()
        stage = ((self._stage, 1), self.view.legend)
        lay_out(QVBoxLayout(explained), *stage, edge=0, gap=0)
        beside = split_up(Qt.Orientation.Horizontal, self.panels.outline, explained)
        beside.setStretchFactor(1, 1)
        self.panels.outline.hide()
        below = split_up(Qt.Orientation.Vertical, beside, self.panels.timeline, shares=(2, 1))
        self.panels.timeline.hide()
        parts = (self.answer, self.find_bar, (below, 1), self.strip)
        lay_out(QVBoxLayout(centre), *parts, edge=0, gap=0)
        return centre

    def _connect(self) -> None:
        document = self.document
        document.failed.connect(lambda reason: self.messages.show_message(reason, "error"))
        for view in (self.view, self.split_widget.other):
            view.menu_wanted.connect(self._open_menu)
        self.find_bar.results.connect(self.picture.highlight)
        self.find_bar.stepped.connect(self.picture.go_to)
        self.find_bar.results.connect(self.panels.timeline.mark)
        self.find_bar.stepped.connect(self.panels.timeline.go_to)
        self.find_bar.closed.connect(self.view.setFocus)
        self.picture.marks_changed.connect(self._offer_rival)
        self._offer_rival()
        document.execution.running_changed.connect(self._uncover)

    def _offer_rival(self) -> None:
        """Offer the other toolchain where the graph shows that the selection is faster there."""
        seen = self.picture.mode == "changes" and faster_in_compared(self.document)
        self.answer.buttons["try_here"].setVisible(bool(seen))

    def _uncover(self) -> None:
        """Close the settings as a run starts: they lie over the graph and the run's progress."""
        execution = self.document.execution
        if execution.running and not execution.cancelling and not execution.stopping:
            self.settings_window.hide()

    def show_toolchains(self, states: Sequence[ToolchainState]) -> None:
        """Take the toolchains of the engine, and draw what is shown by their looks."""
        self.panels.run_settings.show_toolchains(tuple(states))
        self.pins.show_toolchains(states)
        if self.document.is_open:
            # A session that was opened before they were known was drawn by generated looks.
            self.picture.recolour()
            self.document.runs.changed.emit()
            self.document.costs.changed.emit()

    def context_menu(self, box: int | None) -> QMenu:
        """Return the menu for a box of the graph, or for the background."""
        menu = QMenu(self)
        if box is not None:
            menu.addMenu(self.pins.pin_to_menu())
            menu.addMenu(self.pins.never_on_menu())
        for names in BACKGROUND_MENU if box is None else BOX_MENU:
            menu.addActions([self._actions[name] for name in names])
            menu.addSeparator()
        return menu

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give the panels the width that the user chose, or their share of the window."""
        super().resizeEvent(event)
        width = self.width()
        share = max(letters_px(self, COLUMN_LETTERS), round(width * PANELS_SHARE))
        kept = self._preferences.store.value(PANELS_KEY, share, int)
        panels = min(kept, width // 2) if isinstance(kept, int) else share
        self._columns.setSizes([width - panels, panels])

    def _keep_width(self) -> None:
        self._preferences.store.setValue(PANELS_KEY, self._columns.sizes()[1])

    def show_settings(self) -> None:
        """Show the settings of the next run, below the Run button."""
        self.settings_window.open_at(QPoint(0, 0))

    def show_log(self) -> None:
        """Show what the engine and the window have reported, above the status bar."""
        self.log_window.open_at(QPoint(0, self.height()))

    def toggle_outline(self) -> None:
        """Show or hide the outline of the model beside the graph."""
        outline = self.panels.outline
        outline.setVisible(not outline.isVisible())
        if outline.isVisible():
            outline.setFocus(Qt.FocusReason.OtherFocusReason)

    # -- the keyboard ------------------------------------------------------------------

    def step_pane(self) -> None:
        """Give the focus to the other pane: from the graph to the panels, or back."""
        reason = Qt.FocusReason.TabFocusReason
        focused, page = self.focusWidget(), self.tabs.currentWidget()
        if focused is not None and self.tabs.isAncestorOf(focused):
            self.view.setFocus(reason)
            return
        takes = (
            each
            for each in page.findChildren(QWidget)
            if each.isVisible()
            and each.isEnabled()
            and each.focusPolicy() & Qt.FocusPolicy.TabFocus
            and not isinstance(each, QLineEdit)  # where keys of actions would be letters
        )
        next(takes, self.tabs.tabBar()).setFocus(reason)

    def _open_menu(self, position: QPoint, box: int | None) -> None:
        menu = self.context_menu(box)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(position)
