"""One document: the graph in the middle, its panels around, the strip of progress below."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QByteArray, QPoint, Qt, QTimer
from PySide6.QtWidgets import (
    QDockWidget,
    QMainWindow,
    QMenu,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.looks import LegendEntry, Mode
from collage_gui.banner import Banner
from collage_gui.document_export import ExportActions
from collage_gui.find_bar import FindBar
from collage_gui.graph_view.layout_client import LayoutClient
from collage_gui.graph_view.picture import Picture
from collage_gui.graph_view.view import GraphView
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.inside import InsidePanel
from collage_gui.panels.log import LogPanel
from collage_gui.panels.outline import OutlinePanel
from collage_gui.panels.pins import PinsPanel
from collage_gui.panels.progress import ProgressStrip
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.runs import RunsPanel
from collage_gui.panels.why import WhyPanel
from collage_gui.preferences import Preferences
from collage_gui.session import Document
from collage_gui.theme import Theme

STATE_VERSION = 4


class DocumentWindow(ExportActions):
    """Views of one document; itself a page of the main window's tabs."""

    def __init__(
        self,
        document: Document,
        theme: Theme,
        preferences: Preferences,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent, Qt.WindowType.Widget)
        self.document, self.theme, self.preferences = document, theme, preferences
        self.setObjectName("documentWindow")
        self.setDockOptions(QMainWindow.DockOption.AnimatedDocks)
        self.mode: Mode = "toolchain"
        self.collapsed: frozenset[str] = frozenset()
        self.partitions_collapsed = False
        self.isolated: LegendEntry | None = None
        self.found: list[int] = []
        self._ties: dict[str, str] = {}
        self.picture: Picture | None = None
        self._focus_after: frozenset[int] = frozenset()
        self._toolchains: tuple[str, ...] = ()
        self._layouts = LayoutClient(self)
        self._layouts.failed.connect(document.failed)
        self._sizes_set = False

        self.banner = Banner("documentBanner")
        self.find_bar = FindBar()
        self.view = GraphView()
        self.view.minimap_wanted = preferences.get("minimap")
        self.view.message = "Reading the model…"
        self.strip = ProgressStrip(document, theme)
        middle = QWidget()
        column = QVBoxLayout(middle)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self.banner)
        column.addWidget(self.find_bar)
        column.addWidget(self.view, 1)
        column.addWidget(self.view.legend)
        column.addWidget(self.strip)
        self.setCentralWidget(middle)

        self.outline = OutlinePanel(document, theme)
        self.pins = PinsPanel(document, theme)
        self.run_settings = RunSettingsPanel(document, theme, preferences)
        self.candidates = CandidatesPanel(document, theme)
        self.why = WhyPanel(document, theme)
        self.inside = InsidePanel(document, theme)
        self.runs = RunsPanel(document, theme)
        self.log = LogPanel(document, theme)
        left, right, bottom = (
            Qt.DockWidgetArea.LeftDockWidgetArea,
            Qt.DockWidgetArea.RightDockWidgetArea,
            Qt.DockWidgetArea.BottomDockWidgetArea,
        )
        self.setCorner(Qt.Corner.BottomRightCorner, right)
        self.docks: dict[str, QDockWidget] = {}
        self.pages: dict[str, tuple[str, QTabWidget | None, QWidget]] = {}
        for name, title, area, panels in (
            (
                "outline",
                "Outline",
                left,
                (
                    ("partitions", "Partitions", self.outline.partitions),
                    ("model", "Model", self.outline.tree),
                    ("pins", "Pins", self.pins),
                    ("settings", "Run", self.run_settings),
                ),
            ),
            ("candidates", "Candidates", right, (("candidates", "", self.candidates),)),
            (
                "details",
                "Why and inside",
                right,
                (
                    ("why", "Why", self.why),
                    ("inside", "Inside", self.inside),
                ),
            ),
            (
                "runs",
                "Runs and log",
                bottom,
                (
                    ("runs", "Runs and comparison", self.runs),
                    ("log", "Log", self.log),
                ),
            ),
        ):
            self._add_dock(name, title, area, panels)
        state = preferences.store.value("document/state")
        if isinstance(state, QByteArray) and self.restoreState(state, STATE_VERSION):
            self._sizes_set = True

        self._connect()
        self._restyle()

    def _add_dock(
        self,
        name: str,
        title: str,
        area: Qt.DockWidgetArea,
        panels: Iterable[tuple[str, str, QWidget]],
    ) -> None:
        """One dock; several panels in it are tabs."""
        dock = QDockWidget(title)
        dock.setObjectName(f"dock-{name}")
        # The tabs or the panel's own heading name it: a title bar would say it twice.
        dock.setTitleBarWidget(QWidget())
        panels = list(panels)
        tabs = None
        if len(panels) > 1:
            tabs = QTabWidget()
            tabs.setObjectName(f"tabs-{name}")
            tabs.setAutoFillBackground(True)
            dock.setWidget(tabs)
        else:
            dock.setWidget(panels[0][2])
        for key, label, panel in panels:
            panel.setAutoFillBackground(True)
            if tabs is not None:
                tabs.addTab(panel, label)
            self.pages[key] = (name, tabs, panel)
        self.addDockWidget(area, dock)
        self.docks[name] = dock

    def _connect(self) -> None:
        d, v = self.document, self.view
        d.graph_changed.connect(self._opened)
        d.failed.connect(lambda reason: self.banner.say(reason, "error"))
        d.placement_changed.connect(self._placed)
        d.costs_changed.connect(self._recosted)
        d.candidates_changed.connect(self._retied)
        d.explanation_changed.connect(self._retied)
        d.reference_changed.connect(self._recolour)
        d.comparison_changed.connect(self._compared)
        d.pins_changed.connect(self._remark)
        d.pins_taken.connect(self._pins_taken)
        d.selection_changed.connect(self._selected)
        d.candidate_changed.connect(self._remark)
        d.runs_changed.connect(self._warn)
        d.run_finished.connect(self._finished)
        v.boxes_selected.connect(self._boxes_selected)
        v.box_opened.connect(self._box_opened)
        v.left_group.connect(self.leave_group)
        v.menu_wanted.connect(self._menu)
        v.legend_chosen.connect(self._isolate)
        self.find_bar.results.connect(self._found)
        self.find_bar.went.connect(self.go_to)
        self.find_bar.closed.connect(self.view.setFocus)
        self.find_bar.select_all.connect(lambda found: self.document.select(found))
        self.strip.cancel_wanted.connect(self.cancel)
        self.candidates.measure_wanted.connect(self._measure)
        self.run_settings.run_wanted.connect(self.run)
        self.run_settings.reopen_wanted.connect(
            lambda shapes: self.document.open_model(self.document.path, shapes)
        )
        self.pins.save_wanted.connect(self.save_pins)
        self.pins.load_wanted.connect(self.load_pins)
        self.runs.changes_wanted.connect(self.show_changes)
        self.theme.changed.connect(self._restyle)
        self.preferences.changed.connect(self._preference)

    def showEvent(self, event) -> None:
        super().showEvent(event)
        if not self._sizes_set:
            self._sizes_set = True
            # Docks take their sizes once the window has one.
            QTimer.singleShot(0, self, self._default_sizes)

    def _default_sizes(self) -> None:
        horizontal, vertical = Qt.Orientation.Horizontal, Qt.Orientation.Vertical
        wide = self.width()
        self.resizeDocks(
            [self.docks["outline"], self.docks["candidates"]],
            [max(300, round(wide * 0.22)), max(330, round(wide * 0.26))],
            horizontal,
        )
        self.resizeDocks([self.docks["runs"]], [round(self.height() * 0.36)], vertical)
        tall = self.height()
        self.resizeDocks(
            [self.docks["candidates"], self.docks["details"]],
            [round(tall * 0.6), round(tall * 0.4)],
            vertical,
        )

    # -- context menu ------------------------------------------------------------------

    def _menu(self, where: QPoint, box: int | None) -> None:
        menu = self.context_menu(box)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(where)

    def context_menu(self, box: int | None) -> QMenu:
        menu = QMenu(self)
        actions = self.window_actions()
        if box is None:
            wanted: tuple[str | None, ...] = (
                "fit",
                "find",
                None,
                "collapse_scopes",
                "collapse_partitions",
                "expand_all",
            )
        else:
            menu.addMenu(self._toolchain_menu("Pin to", self.pin_to))
            menu.addMenu(self._toolchain_menu("Never on", self.pin_never))
            wanted = (
                "exactly",
                "together",
                "keep_partition",
                "free",
                None,
                "measure",
                "measure_longer",
                None,
                "select_partition",
                "same_operator",
                "zoom_selection",
                "enter_group",
                "leave_group",
                None,
                "copy_names",
            )
        for name in wanted:
            if name is None:
                menu.addSeparator()
            elif name in actions:
                menu.addAction(actions[name])
        return menu

    def window_actions(self):
        """The main window's actions by id; empty when this page stands alone."""
        return getattr(self.window(), "actions_by_id", {})

    def shut(self) -> None:
        """Before the page goes: stop what runs for it and forget its signals."""
        self.preferences.store.setValue("document/state", self.saveState(STATE_VERSION))
        self._layouts.cancel()
        self.theme.changed.disconnect(self._restyle)
        self.preferences.changed.disconnect(self._preference)
        self.document.close()
