"""One document: the graph in the middle, its panels around, the strip of progress below."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from PySide6.QtCore import QByteArray, QPoint, Qt, QTimer, Signal
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import (
    QDockWidget,
    QFileDialog,
    QMainWindow,
    QMenu,
    QTabWidget,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.groups import Group, display_graph, partition_groups
from collage_engine.drawing.layout import Layout
from collage_engine.drawing.looks import LegendEntry, LookData, Mode, box_looks
from collage_engine.drawing.palette import toolchain_title
from collage_engine.drawing.scene import layout_request, outlines, scene
from collage_engine.records.errors import UsageError
from collage_gui import exports, pins_file
from collage_gui.banner import Banner
from collage_gui.find_bar import FindBar
from collage_gui.graph_view.layout_client import LayoutClient
from collage_gui.graph_view.painter import Style
from collage_gui.graph_view.picture import Marks, Picture
from collage_gui.graph_view.view import GraphView, isolate
from collage_gui.panels.candidates import CandidatesPanel
from collage_gui.panels.inside import InsidePanel
from collage_gui.panels.log import LogPanel
from collage_gui.panels.outline import OutlinePanel
from collage_gui.panels.pins import MARKS, PinsPanel
from collage_gui.panels.progress import ProgressStrip
from collage_gui.panels.run_settings import RunSettingsPanel
from collage_gui.panels.runs import RunsPanel
from collage_gui.panels.tables import chip
from collage_gui.panels.why import WhyPanel
from collage_gui.pinning import make_pin, pins_as_now, placement_by_hand, with_pin, without_nodes
from collage_gui.preferences import Preferences
from collage_gui.session import Document, Reference
from collage_gui.theme import Theme

STATE_VERSION = 4


class DocumentWindow(QMainWindow):
    """Views of one document; itself a page of the main window's tabs."""

    mode_changed = Signal()

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
            Qt.DockWidgetArea.LeftDockWidgetArea, Qt.DockWidgetArea.RightDockWidgetArea,
            Qt.DockWidgetArea.BottomDockWidgetArea,
        )  # fmt: skip
        self.setCorner(Qt.Corner.BottomRightCorner, right)
        self.docks: dict[str, QDockWidget] = {}
        self.pages: dict[str, tuple[str, QTabWidget | None, QWidget]] = {}
        for name, title, area, panels in (
            ("outline", "Outline", left, (
                ("partitions", "Partitions", self.outline.partitions),
                ("model", "Model", self.outline.tree), ("pins", "Pins", self.pins),
                ("settings", "Run settings", self.run_settings),
            )),
            ("candidates", "Candidates", right, (("candidates", "", self.candidates),)),
            ("details", "Why and inside", right, (
                ("why", "Why", self.why), ("inside", "Inside", self.inside),
            )),
            ("runs", "Runs and log", bottom, (
                ("runs", "Runs and comparison", self.runs), ("log", "Log", self.log),
            )),
        ):  # fmt: skip
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

    def reveal(self, page: str) -> None:
        """Show a panel: its dock, and its tab."""
        name, tabs, panel = self.pages[page]
        self.docks[name].show()
        if tabs is not None:
            tabs.setCurrentWidget(panel)

    def _connect(self) -> None:
        d, v = self.document, self.view
        d.graph_changed.connect(self._opened)
        d.failed.connect(lambda reason: self.banner.say(reason, "error"))
        d.placement_changed.connect(self._placed)
        d.costs_changed.connect(self._recosted)
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
            [max(300, round(wide * 0.22)), max(330, round(wide * 0.26))], horizontal,
        )  # fmt: skip
        self.resizeDocks([self.docks["runs"]], [round(self.height() * 0.36)], vertical)
        tall = self.height()
        self.resizeDocks(
            [self.docks["candidates"], self.docks["details"]],
            [round(tall * 0.6), round(tall * 0.4)],
            vertical,
        )

    # -- style -------------------------------------------------------------------------

    def style_now(self) -> Style:
        return Style(
            self.theme.colours, self.theme.font(), self.theme.font(13, QFont.Weight.DemiBold)
        )

    def _restyle(self) -> None:
        self.view.set_style(self.style_now())
        self.view.legend.setFont(self.theme.font(12))

    def _preference(self, key: str) -> None:
        if key in ("orientation", "fold"):
            self.lay_out()
        elif key == "minimap":
            self.view.minimap_wanted = self.preferences.get("minimap")
            self.view.recoloured()

    # -- layout and colours ------------------------------------------------------------

    def _opened(self) -> None:
        self.collapsed = self.document.collapsed
        self.partitions_collapsed = False
        self.find_bar.graph = self.document.operators
        self.view.message = "Laying out the graph…"
        if self.document.note:
            self.banner.say(self.document.note, "warning")
        else:
            self.banner.clear("")
        self.lay_out()

    def groups(self) -> dict[str, Group]:
        found = dict(self.document.scopes)
        if self.document.shown is not None:
            found.update({g.id: g for g in partition_groups(self.document.shown.placement)})
        return found

    def lay_out(self, focus: Iterable[int] = ()) -> None:
        """Lay out what is visible now; afterwards ``focus`` (operators) is in view."""
        document = self.document
        if document.operators is None:
            return
        groups = self.groups()
        display = display_graph(document.operators, groups, self.collapsed)
        orientation = self.preferences.get("orientation")
        size = self.view.viewport().size()
        request = layout_request(
            display, orientation, self.preferences.get("fold"),
            max(0.6, min(3.0, size.width() / max(size.height(), 1))),
        )  # fmt: skip
        self._focus_after = frozenset(focus)
        operators = document.operators

        def done(layout: Layout) -> None:
            shown = scene(operators, groups, display, layout, orientation)
            keep = self.picture is not None and bool(self._focus_after)
            self.picture = Picture(shown)
            self._wear()
            self.view.show_picture(self.picture, keep_view=keep)
            self._remark()
            if keep:
                boxes = shown.boxes_of(self._focus_after)
                self.view.zoom_to_boxes(boxes)

        self._layouts.ask(request, done)

    def look_data(self) -> LookData:
        document = self.document
        changes = None
        if document.comparison is not None:
            changes = {
                n.node: (
                    ("gained" if (n.delta_us or 0) < 0 else "lost")
                    if n.change == "moved" and n.delta_us
                    else n.change
                )
                for n in document.comparison.nodes
            }
        shown = document.shown
        return LookData(
            placement=shown.placement if shown else None,
            estimated=shown.estimated if shown else True,
            costs={p.candidate: document.cost(p.candidate) for p in shown.placement.partitions} if shown else {},
            devices={
                p.candidate: document.candidates[p.candidate].device
                for p in shown.placement.partitions if p.candidate in document.candidates
            } if shown else {},
            reference_us=document.reference_partitions() if self.mode == "gain" else {},
            changes=changes,
        )  # fmt: skip

    def _wear(self) -> None:
        if self.picture is None:
            return
        looks, legend = box_looks(self.picture.scene, self.mode, self.look_data())
        shown = self.document.shown
        parts = outlines(self.picture.scene, shown.placement if shown else None)
        self.picture.wear(looks, legend, parts)

    def _recolour(self) -> None:
        if self.picture is None or not self.picture.rectangles:
            return
        self._wear()
        self.view.recoloured()
        self._remark()

    def _recosted(self) -> None:
        if self.mode == "state":
            self._recolour()

    def _placed(self) -> None:
        if any(g.startswith("partition:") for g in self.collapsed):
            self.collapsed = frozenset()
            if self.partitions_collapsed:
                self.collapsed = frozenset(g for g in self.groups() if g.startswith("partition:"))
            self.lay_out()
        self._recolour()

    def _compared(self) -> None:
        if self.mode == "changes":
            self._recolour()

    def set_mode(self, mode: Mode) -> None:
        """Colour by another quantity; nothing moves."""
        self.mode = mode
        self.isolated = None
        self._recolour()
        self.mode_changed.emit()

    def _remark(self) -> None:
        if self.picture is None:
            return
        display, document = self.picture.scene.display, self.document

        def boxes(operators: Iterable[int]) -> frozenset[int]:
            return frozenset(display.box_of[o] for o in operators if o < len(display.box_of))

        candidate = document.candidates.get(document.candidate) if document.candidate else None
        pinned: dict[int, str] = {}
        for pin in document.pins:
            for box in boxes(pin.nodes):
                pinned[box] = MARKS[pin.kind]
        primary = display.box_of[document.primary] if document.primary is not None else None
        self.view.set_marks(
            Marks(
                selected=boxes(document.selection),
                primary=primary,
                candidate=boxes(candidate.nodes) if candidate else frozenset(),
                found=boxes(self.found),
                pinned=pinned,
                dimmed=isolate(self.picture, self.isolated),
                stale=document.stale,
            )
        )

    def _isolate(self, entry: LegendEntry | None) -> None:
        self.isolated = entry
        self._remark()

    # -- selection ---------------------------------------------------------------------

    def _boxes_selected(self, boxes: set[int], primary: int | None) -> None:
        if self.picture is None:
            return
        shown = self.picture.scene.display.boxes
        members = [
            m for b in boxes for m in shown[b].members if shown[b].kind in ("operator", "group")
        ]
        first = None
        if primary is not None and shown[primary].kind in ("operator", "group"):
            first = shown[primary].members[0]
        self.document.select(members, first)

    def _selected(self) -> None:
        self._remark()
        document = self.document
        if document.primary is not None and self.picture is not None and not self.view.hasFocus():
            self.view.ensure_visible(self.picture.scene.display.box_of[document.primary])

    def go_to(self, operator: int) -> None:
        """Select an operator and bring it into view, opening the group it hides in."""
        self._reveal([operator])
        self.document.select([operator], operator)
        if self.picture is not None:
            self.view.ensure_visible(self.picture.scene.display.box_of[operator])

    def _reveal(self, operators: Iterable[int]) -> None:
        groups = self.groups()
        wanted = set(operators)
        closed = {
            g for g in self.collapsed if g in groups and not wanted.isdisjoint(groups[g].members)
        }
        if closed:
            opened = self._opened_groups(closed, groups)
            while any(not wanted.isdisjoint(groups[g].members) for g in opened if g in groups):
                more = {g for g in opened if not wanted.isdisjoint(groups[g].members)}
                opened = (opened - more) | self._opened_groups(more, groups)
                if not more:
                    break
            self.collapsed = (self.collapsed - closed) | frozenset(opened)
            self.lay_out(focus=wanted)

    def _opened_groups(self, closed: set[str], groups: dict[str, Group]) -> set[str]:
        """The groups directly inside those that are opened; they stay collapsed."""
        return {g.id for g in groups.values() if g.parent in closed}

    def _found(self, operators: list[int]) -> None:
        self.found = operators
        self._remark()

    # -- actions: find and look --------------------------------------------------------

    def find(self) -> None:
        self.find_bar.open()

    def find_next(self) -> None:
        self.find_bar.step(1)

    def find_previous(self) -> None:
        self.find_bar.step(-1)

    def highlight_operator(self) -> None:
        """Mark all nodes of the selected node's operator."""
        graph, at = self.document.operators, self.document.primary
        if graph is not None and at is not None:
            op = graph.calls[at].op
            self._found([n for n, call in enumerate(graph.calls) if call.op == op])

    def select_partition(self) -> None:
        partition = self.document.partition_of(self.document.primary)
        if partition is not None:
            self.document.select(partition.nodes, self.document.primary)

    def select_none(self) -> None:
        self._found([])
        self.document.select(())

    def copy_names(self) -> None:
        graph = self.document.operators
        if graph is not None:
            names = [graph.name(n) for n in sorted(self.document.selection)]
            QGuiApplication.clipboard().setText("\n".join(names))

    def fit(self) -> None:
        self.view.fit()

    def zoom_selection(self) -> None:
        if self.picture is not None:
            self.view.zoom_to_boxes(self.picture.scene.boxes_of(self.document.selection))

    def zoom_in(self) -> None:
        self.view.zoom(1.25)

    def zoom_out(self) -> None:
        self.view.zoom(0.8)

    def zoom_actual(self) -> None:
        self.view.zoom(1.0 / self.view.scale)

    # -- actions: groups ---------------------------------------------------------------

    def _box_opened(self, box: int) -> None:
        assert self.picture is not None
        item = self.picture.scene.display.boxes[box]
        if item.kind == "group" and item.group is not None:
            self._expand(item.group)
        elif item.kind == "operator":
            self.document.select(item.members, item.members[0])
            self.select_partition()

    def _expand(self, group: str) -> None:
        groups = self.groups()
        inner = self._opened_groups({group}, groups)
        self.collapsed = (self.collapsed - {group}) | frozenset(inner)
        self.lay_out(focus=groups[group].members)

    def enter_group(self) -> None:
        if self.picture is not None and self.view.marks.primary is not None:
            self._box_opened(self.view.marks.primary)

    def leave_group(self) -> None:
        """Collapse the innermost open group around the primary node."""
        at = self.document.primary
        if at is None:
            return
        groups = self.groups()
        around = [
            g for g in groups.values()
            if at in g.members and g.id not in self.collapsed and g.kind != "partition"
            and not any(at in groups[c].members and len(groups[c].members) >= len(g.members)
                        for c in self.collapsed if c in groups)
        ]  # fmt: skip
        if around:
            chosen = min(around, key=lambda g: len(g.members))
            inner = {
                g
                for g in self.collapsed
                if g in groups and set(groups[g].members) <= set(chosen.members)
            }
            self.collapsed = (self.collapsed - inner) | {chosen.id}
            self.lay_out(focus=chosen.members)

    def collapse_scopes(self) -> None:
        self.partitions_collapsed = False
        self.collapsed = frozenset(g.id for g in self.document.scopes.values() if g.parent is None)
        self.lay_out()

    def collapse_partitions(self) -> None:
        self.partitions_collapsed = True
        self.collapsed = frozenset(g for g in self.groups() if g.startswith("partition:"))
        self.lay_out()

    def expand_all(self) -> None:
        self.partitions_collapsed = False
        self.collapsed = frozenset()
        self.lay_out()

    def to_producer(self) -> None:
        self.view.walk("back")

    def to_consumer(self) -> None:
        self.view.walk("forward")

    # -- actions: pins -----------------------------------------------------------------

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

    def _pins_taken(self) -> None:
        """The engine has the pins: search again at once, if there is anything to search."""
        document = self.document
        if self.preferences.get("search_on_pin") and document.measured and not document.running:
            if self.preferences.get("confirm_after_search"):
                self.run()
            else:
                document.search()

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
            self._write(lambda: pins_file.write_beside(path, content), path)

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
            text = f"{len(pins)} pins applied; " + "; ".join(applied.problems[:3])
            if len(applied.problems) > 3:
                text += f"; and {len(applied.problems) - 3} more, in the log"
            self.banner.say(text, "warning")
        else:
            self.banner.say(f"{len(pins)} pins applied, all of them match", "info")

    # -- actions: run ------------------------------------------------------------------

    def run(self) -> None:
        if self.document.operators is not None and not self.document.running:
            self.banner.clear("run")
            self.document.start_run(self.run_settings.settings())

    def run_or_search(self) -> None:
        """Space: search again where costs are known, else run."""
        if self.document.measured:
            self.document.settings = self.run_settings.settings()
            self.document.search()
        else:
            self.run()

    def preflight(self) -> None:
        self.reveal("settings")
        self.run_settings.preflight()

    def cancel(self) -> None:
        self.document.cancel_run()

    def _finished(self, state: str, reason: str) -> None:
        if state == "cancelled":
            self.banner.say(
                "The run was cancelled; what was measured is kept.", "info", topic="run"
            )

    def _warn(self) -> None:
        runs = self.document.visible_runs
        if runs and runs[-1].warnings:
            text = "Take these numbers with care: " + "; ".join(runs[-1].warnings[:2])
            self.banner.say(text, "warning", "Measure again", self.run, topic="drift")

    def _measure(self, longer: bool) -> None:
        document = self.document
        candidate = document.candidates.get(document.candidate) if document.candidate else None
        if longer and candidate is not None:
            document.measure_now(candidate.nodes, True, (candidate.instance.toolchain,))
        elif document.selection:
            document.measure_now(document.selection, longer)

    def measure_selection(self) -> None:
        self._measure(False)

    def measure_longer(self) -> None:
        self._measure(True)

    def own_placement(self) -> None:
        own = placement_by_hand(self.document)
        if own:
            self.document.own_placements = (*self.document.own_placements, own)
            self.document.mark_unsaved()
            self.banner.say(
                "This placement becomes a baseline of the next run.", "info", "Run now", self.run
            )

    # -- actions: compare --------------------------------------------------------------

    def show_runner_up(self) -> None:
        document = self.document
        found = document.runners_up[0] if document.runners_up else None
        if found is None and document.explanation is not None:
            found = document.explanation.runner_up
        if found is not None:
            document.show_placement(found, "Runner-up")
        else:
            self.banner.say("The engine has named no runner-up yet.", "info")

    def show_last_run(self) -> None:
        if self.document.visible_runs:
            self.document.show_run(self.document.visible_runs[-1].id)

    def use_as_reference(self) -> None:
        shown = self.document.shown
        run = shown.run if shown and shown.run else None
        if run is None and self.document.visible_runs:
            run = self.document.visible_runs[-1].id
        if run is not None:
            self.document.set_reference(Reference("run", run))

    def reference_best(self) -> None:
        self.document.set_reference(Reference())

    def show_changes(self) -> None:
        self.set_mode("changes")

    # -- actions: export ---------------------------------------------------------------

    def ask_save(self, title: str, name: str, kind: str) -> str:
        folder = os.path.dirname(self.document.path)
        path, _ = QFileDialog.getSaveFileName(self, title, os.path.join(folder, name), kind)
        return path

    def ask_open(self, title: str, kind: str) -> str:
        path, _ = QFileDialog.getOpenFileName(
            self, title, os.path.dirname(self.document.path), kind
        )
        return path

    def ask_folder(self, title: str) -> str:
        return QFileDialog.getSaveFileName(self, title, "artifact", "Folder (*)")[0]

    def _write(self, do: Callable[[], object], path: str) -> None:
        try:
            do()
        except (OSError, MemoryError) as error:
            self.banner.say(f"{os.path.basename(path)} could not be written: {error}", "error")
            return
        self.banner.say(f"Written: {path}", "info")

    @property
    def stem(self) -> str:
        return os.path.splitext(os.path.basename(self.document.path or "graph"))[0]

    def export_png_view(self) -> None:
        path = self.ask_save("Graph as PNG", f"{self.stem}.png", "PNG (*.png)")
        if path and self.picture is not None:
            area = self.view.visible_area().intersected(self.picture.bounds)
            scale = max(1.0, self.view.scale * 2)
            self._write(lambda: exports.save_image(self.view, area, path, scale), path)

    def export_png_selection(self) -> None:
        path = self.ask_save("Selection as PNG", f"{self.stem}-selection.png", "PNG (*.png)")
        if not path or self.picture is None:
            return
        from PySide6.QtCore import QRectF

        area = QRectF()
        for box in self.picture.scene.boxes_of(self.document.selection):
            area = area.united(self.picture.rectangles[box])
        area.adjust(-30, -30, 30, 30)
        self._write(lambda: exports.save_image(self.view, area, path), path)

    def export_png_whole(self) -> None:
        path = self.ask_save("Whole graph as PNG", f"{self.stem}.png", "PNG (*.png)")
        picture = self.picture
        if path and picture is not None:
            self._write(lambda: exports.save_tiles(self.view, picture, path), path)

    def export_svg(self) -> None:
        path = self.ask_save("Graph as SVG", f"{self.stem}.svg", "SVG (*.svg)")
        picture = self.picture
        if path and picture is not None:
            dark = self.theme.colours.dark
            self._write(lambda: exports.save_svg(picture, path, self.stem, dark), path)

    def tables(self) -> dict[str, str]:
        """Every table's CSV text by name."""
        return {
            "partitions": self.outline.partitions.model.as_csv(),
            "candidates": self.candidates.model.as_csv(),
            "pins": self.pins.model.as_csv(),
            "in-place": self.runs.partitions_model.as_csv(),
            "changes": self.runs.changes_model.as_csv(),
        }

    def export_csv(self) -> None:
        folder = self.ask_save("Tables as CSV, into a folder", f"{self.stem}-tables", "Folder (*)")
        if folder:
            self._write(lambda: exports.save_tables(self.tables(), folder), folder)

    def export_report(self) -> None:
        path = self.ask_save("Report", f"{self.stem}.html", "HTML (*.html)")
        if path:
            self.export_report_to(path)

    def export_report_to(self, path: str, then: Callable[[], None] | None = None) -> None:
        from collage_engine.service.protocol import ExportReport

        document = self.document
        run = document.shown.run if document.shown else None

        def arrived(answer) -> None:
            content = answer.content or b""
            self._write(lambda: pins_file.write_beside(path, content), path)
            if then is not None:
                then()

        params = ExportReport(document=document.handle, run=run, format="html")
        document.client.request("export.report", params, arrived, document.failed.emit)

    def export_artifact(self) -> None:
        folder = self.ask_folder("Export the compiled artifact")
        if folder:
            self.export_artifact_to(folder)

    def export_artifact_to(self, folder: str, then: Callable[[], None] | None = None) -> None:
        from collage_engine.service.protocol import ExportArtifact

        document = self.document
        run = document.shown.run if document.shown and document.shown.run else None
        if run is None and document.visible_runs:
            run = document.visible_runs[-1].id
        if run is None:
            document.failed.emit("there is no run to export yet")
            return
        remote = document.client.connection.is_remote

        def arrived(answer) -> None:
            if answer.content is not None:
                self._write(lambda: _unpack(answer.content, folder), folder)
            else:
                self.banner.say(f"Written: {answer.path or folder}", "info")
            if then is not None:
                then()

        params = ExportArtifact(document=document.handle, run=run, path=None if remote else folder)
        self.banner.say("Exporting the artifact…", "info")
        document.client.request("export.artifact", params, arrived, document.failed.emit)

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
            wanted = ("exactly", "together", "keep_partition", "free", None, "measure", "measure_longer", None,
                      "select_partition", "same_operator", "zoom_selection", "enter_group", "leave_group", None, "copy_names")  # fmt: skip
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


def _unpack(content: bytes, folder: str) -> None:
    """A tar archive into a folder, with nothing outside it."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(folder, filter="data")
