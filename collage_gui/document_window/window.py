"""Shows one document: the graph in the middle, panels around it, a run's progress below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PySide6.QtCore import QPoint, QSize, Qt, QTimer
from PySide6.QtGui import QAction, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QMainWindow, QMenu, QSplitter, QTabWidget, QVBoxLayout, QWidget

from collage_engine.records.toolchain import ToolchainState
from collage_gui.banner import Banner
from collage_gui.document.document import Document
from collage_gui.document.run_queue import RunQueue
from collage_gui.document_window.answer_line import AnswerLine
from collage_gui.document_window.docks import Docks, fitting_arrangement
from collage_gui.document_window.export_controller import ExportController
from collage_gui.document_window.files import DocumentFiles
from collage_gui.document_window.find_bar import FindBar
from collage_gui.document_window.navigation import Navigation
from collage_gui.document_window.panels import Panels
from collage_gui.document_window.picture_controller import PictureController
from collage_gui.document_window.pin_controller import PinController
from collage_gui.document_window.run_controller import RunController
from collage_gui.document_window.shapes_controller import ShapesController
from collage_gui.document_window.split_view import SplitController, SplitWidget
from collage_gui.graph_view.view import GraphView
from collage_gui.messages import Messages
from collage_gui.panels.precision_slider import PrecisionSlider
from collage_gui.panels.progress import ProgressStrip
from collage_gui.preferences import Preferences
from collage_gui.theme import Theme
from collage_gui.widgets import SideWindow, lay_out

SETTINGS_SIZE, LOG_SIZE = QSize(460, 700), QSize(900, 420)
"""Sizes of the windows with the settings of the next run and with the log, in pixels; chosen."""
UNTIL_EXPOSED_MS = 20
"""Milliseconds after which a window looks again whether it is on the screen; chosen."""
BACKGROUND_MENU = (
    ("fit", "find"),
    ("collapse_scopes", "collapse_partitions", "expand_all"),
)
"""Ids of the actions in the menu between boxes; separators stand between the groups."""
BOX_MENU = (
    ("exactly", "together", "keep_partition", "free"),
    ("measure", "measure_longer"),
    ("select_partition", "zoom_selection", "enter_group", "leave_group"),
    ("copy_names",),
)
"""Ids of the actions in the menu of a box, below the menus of toolchains."""
ARRANGEMENT_KEY = "document/state"
"""Below which the settings file keeps the sizes of the docks, by arrangement."""
LIKE_WIDTH = 0.1
"""Share by which a window may be wider or narrower than the one whose docks' sizes are restored in
it; chosen."""


class DocumentWindow(QMainWindow):
    """Owns the widgets of one document and its controllers; a page of the main window's tabs."""

    def __init__(
        self,
        document: Document,
        theme: Theme,
        preferences: Preferences,
        actions: Mapping[str, QAction],
        queue: RunQueue,
        window_messages: Messages,
        parent: QWidget | None = None,
    ) -> None:
        """Makes the widgets, then the controllers on them.

        Args:
            document: The document; the window closes it.
            theme: Colours and fonts.
            preferences: The user's settings.
            actions: The main window's actions by id, for the context menu.
            queue: Lets one run after the other have the machine.
            window_messages: Messages that concern every document.
            parent: The widget that owns this one.
        """
        super().__init__(parent, Qt.WindowType.Widget)
        self.setObjectName("documentWindow")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks)
        self.document = document
        self._preferences, self._actions = preferences, actions

        self.answer = AnswerLine(document, actions)
        self.messages = Messages(self)
        self.find_bar = FindBar()
        self.view = GraphView()
        self.view.minimap_wanted = preferences.get("minimap")
        self.view.message = "Reading the model…"
        self.split_widget = SplitWidget(self.view)
        self.strip = ProgressStrip(document, actions)
        self.precision_slider = PrecisionSlider(document)
        self.panels = Panels(document, theme, preferences, actions)
        self._stage = QWidget()
        self.setCentralWidget(self._centre())
        self.banner = Banner("banner", self._stage, self.messages, window_messages)
        self.docks = Docks(self, self.panels.tabs)
        self.settings_window = SideWindow(
            "Settings of the next run", self.panels.run_settings, SETTINGS_SIZE, self
        )
        self.log_window = SideWindow("Log", self.panels.log, LOG_SIZE, self)
        self._sized = False
        self._settled = False
        """Whether the panels have the sizes that they were given, and not Qt's first ones."""

        self.picture = PictureController(document, self.view, theme, preferences, self)
        self.split = SplitController(document, self.split_widget, self.view, self.picture, self)
        self.navigation = Navigation(document, self.view, self.picture, self.find_bar)
        self.files = files = DocumentFiles(document, self.messages, self)
        self.pins = PinController(document, self.view)
        self.runs = RunController(
            document,
            self.panels.run_settings,
            self.messages,
            preferences,
            queue,
            self.show_settings,
        )
        self.shapes = ShapesController(document, self.messages, self)
        self.export = ExportController(
            document, self.view, self.picture, files, self.messages, theme, self.panels.tables
        )
        self._connect()

    def _centre(self) -> QWidget:
        centre = QWidget()
        # A message covers the lower edge of the stage, and not the legend below it.
        lay_out(QVBoxLayout(self._stage), self.split_widget, margins=(0, 0, 0, 0))
        explained = QWidget()
        stage = ((self._stage, 1), self.view.legend)
        lay_out(QVBoxLayout(explained), *stage, margins=(0, 0, 0, 0), spacing=0)
        beside = QSplitter(Qt.Orientation.Horizontal)
        beside.setChildrenCollapsible(False)
        beside.addWidget(self.panels.outline)
        beside.addWidget(explained)
        beside.setStretchFactor(1, 1)
        self.panels.outline.hide()
        parts = (self.answer, self.find_bar, (beside, 1), self.precision_slider, self.strip)
        lay_out(QVBoxLayout(centre), *parts, margins=(0, 0, 0, 0), spacing=0)
        return centre

    def _connect(self) -> None:
        document, panels = self.document, self.panels
        self._preferences.changed.connect(self._preference_changed)
        document.failed.connect(lambda reason: self.messages.show_message(reason, "error"))
        for view in (self.view, self.split_widget.other):
            view.menu_wanted.connect(self._open_menu)
        self.picture.mode_changed.connect(self._show_slider)
        for changed in (document.placement.changed, document.runs.changed):
            changed.connect(self._show_slider)
        document.execution.running_changed.connect(self._show_slider)
        self.precision_slider.moved.connect(self._preview_rounding)
        self.precision_slider.run_wanted.connect(self.runs.start_in_precision)
        for field in (panels.run_settings.budget, panels.run_settings.tune):
            field.refused.connect(self.runs.show_refusal)

    def _show_slider(self) -> None:
        self.precision_slider.refresh(self.picture.mode)

    def _preview_rounding(self) -> None:
        """Colour what would be rounded where the slider stands."""
        point = self.precision_slider.point
        self.picture.preview_rounded(None if point is None else point.products)

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

    def close_document(self) -> None:
        """Stop what runs for the document; the page is about to go."""
        self._keep_arrangement()
        self._preferences.changed.disconnect(self._preference_changed)
        self.picture.close()
        self.document.close()

    def showEvent(self, event: QShowEvent) -> None:
        """Arranges the panels: they take their sizes once the window has one."""
        super().showEvent(event)
        self._arrange()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Puts the panels into one column where the window is small, and around the graph else."""
        super().resizeEvent(event)
        if self.isVisible():
            self._arrange()

    def _arrange(self) -> None:
        wanted = self._preferences.get("panels")
        if wanted == "fitting":
            window = self.window()
            wanted = fitting_arrangement(window.width(), window.height())
        if wanted != self.docks.arrangement:
            self._keep_arrangement()
        if self.docks.arrange(wanted) or not self._sized:
            self._sized, self._settled = True, False
            QTimer.singleShot(0, self, self._size_docks)

    def _size_docks(self) -> None:
        handle = self.window().windowHandle()
        if handle is not None and not handle.isExposed():
            # Sizes that are given before the window manager has placed the window would grow with
            # it, at the cost of the graph.
            QTimer.singleShot(UNTIL_EXPOSED_MS, self, self._size_docks)
            return
        store = self._preferences.store
        key = f"{ARRANGEMENT_KEY}/{self.docks.arrangement}"
        kept_px = store.value(f"{key} width", 0, int)
        fits = isinstance(kept_px, int) and abs(self.width() - kept_px) <= LIKE_WIDTH * kept_px
        if not fits or not self.docks.restore(store.value(key)):
            # Sizes from a window of another width would take too much of this one.
            self.docks.set_default_sizes()
        self._settled = True

    def _keep_arrangement(self) -> None:
        """Keep the sizes of the panels; those that they had before they were given any are none."""
        if not self._settled:
            return
        store = self._preferences.store
        key = f"{ARRANGEMENT_KEY}/{self.docks.arrangement}"
        store.setValue(key, self.docks.save())
        store.setValue(f"{key} width", self.width())

    def _preference_changed(self, key: str) -> None:
        if key == "panels":
            self._arrange()

    def show_settings(self) -> None:
        """Show the settings of the next run, below the Run button."""
        self.settings_window.open_at(QPoint(0, 0))

    def show_log(self) -> None:
        """Show what the engine and the window have reported, above the status bar."""
        self.log_window.open_at(QPoint(0, max(0, self.height() - LOG_SIZE.height())))

    def toggle_outline(self) -> None:
        """Show or hide the outline of the model beside the graph."""
        outline = self.panels.outline
        outline.setVisible(not outline.isVisible())
        if outline.isVisible():
            outline.setFocus(Qt.FocusReason.OtherFocusReason)

    # -- the keyboard ------------------------------------------------------------------

    def step_pane(self, by: int) -> None:
        """Give the focus to the next pane, or with -1 the one before: the graph, then the docks."""
        panes: list[QWidget] = [self.view, *self.docks.panes]
        focused = self.focusWidget()
        at = next(
            (
                number
                for number, pane in enumerate(panes)
                if focused is not None and (pane is focused or pane.isAncestorOf(focused))
            ),
            -by,
        )
        pane = panes[(at + by) % len(panes)]
        if isinstance(pane, QTabWidget):
            page = pane.currentWidget()
            inside = page.findChildren(QWidget) if page is not None else []
            takes = (
                each
                for each in [page, *inside]
                if each is not None
                and each.isVisible()
                and each.isEnabled()
                and each.focusPolicy() & Qt.FocusPolicy.TabFocus
            )
            pane = next(takes, pane.tabBar())
        pane.setFocus(Qt.FocusReason.TabFocusReason)

    def _open_menu(self, position: QPoint, box: int | None) -> None:
        menu = self.context_menu(box)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(position)
