"""One document's picture: layout, colours, marks, selection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from PySide6.QtCore import Signal
from PySide6.QtGui import QFont
from PySide6.QtWidgets import (
    QDockWidget,
    QFileDialog,
    QMainWindow,
    QTabWidget,
    QWidget,
)

from collage_engine.drawing.groups import Group, display_graph, partition_groups
from collage_engine.drawing.layout import Layout
from collage_engine.drawing.looks import LegendEntry, LookData, Mode, box_looks
from collage_engine.drawing.scene import layout_request, outlines, scene
from collage_gui.banner import Banner
from collage_gui.find_bar import FindBar
from collage_gui.graph_view.layout_client import LayoutClient
from collage_gui.graph_view.painter import Style
from collage_gui.graph_view.picture import Marks, Picture
from collage_gui.graph_view.view import GraphView, isolate
from collage_gui.panels.pins import MARKS
from collage_gui.preferences import Preferences
from collage_gui.session import Document
from collage_gui.theme import Theme


class DocumentPicture(QMainWindow):
    """Views of one document, without the actions. Attributes are set by ``DocumentWindow``."""

    mode_changed = Signal()

    document: Document
    theme: Theme
    preferences: Preferences
    mode: Mode
    collapsed: frozenset[str]
    """Groups drawn as one box."""
    partitions_collapsed: bool
    isolated: LegendEntry | None
    found: list[int]
    picture: Picture | None
    banner: Banner
    find_bar: FindBar
    view: GraphView
    docks: dict[str, QDockWidget]
    pages: dict[str, tuple[str, QTabWidget | None, QWidget]]
    """Panel → its dock, the dock's tabs, the panel."""
    _ties: dict[str, str]
    """What is drawn as tied now."""
    _layouts: LayoutClient
    _focus_after: frozenset[int]

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
            display,
            orientation,
            self.preferences.get("fold"),
            max(0.6, min(3.0, size.width() / max(size.height(), 1))),
        )
        self._focus_after = frozenset(focus)
        operators = document.operators

        def done(layout: Layout) -> None:
            shown = scene(operators, groups, display, layout, orientation)
            keep = self.picture is not None and bool(self._focus_after)
            self.picture = Picture(shown)
            self._wear()
            self.view.show_picture(self.picture, keep_view=keep)
            self._remark()
            if not keep and self.isVisible():
                self.view.setFocus()
            if keep:
                boxes = shown.boxes_of(self._focus_after)
                self.view.zoom_to_boxes(boxes)

        self._layouts.ask(request, done)

    def look_data(self) -> LookData:
        document = self.document
        changes: dict[int, str] | None = None
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
        parts = shown.placement.partitions if shown else ()
        known = document.candidates
        return LookData(
            placement=shown.placement if shown else None,
            estimated=shown.estimated if shown else True,
            costs={p.candidate: document.cost(p.candidate) for p in parts},
            devices={p.candidate: known[p.candidate].device for p in parts if p.candidate in known},
            reference_us=document.reference_partitions() if self.mode == "gain" else {},
            changes=changes,
            ties=self._ties if self.mode == "toolchain" else {},
        )

    def _wear(self) -> None:
        if self.picture is None:
            return
        self._ties = self.document.ties()
        looks, legend = box_looks(self.picture.scene, self.mode, self.look_data())
        shown = self.document.shown
        parts = outlines(self.picture.scene, shown.placement if shown else None)
        placed = shown.placement.partitions if shown else ()
        total = sum(p.estimated_us or 0.0 for p in placed)
        if total:
            self.picture.shares = {p.id: (p.estimated_us or 0.0) / total for p in placed}
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
        self._retied()

    def _retied(self) -> None:
        """New costs and regrets may settle a tie, or find one."""
        if self.mode == "toolchain" and self.document.ties() != self._ties:
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

    # -- panels and files --------------------------------------------------------------

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

    def reveal(self, page: str) -> None:
        """Show a panel: its dock, and its tab."""
        name, tabs, panel = self.pages[page]
        self.docks[name].show()
        if tabs is not None:
            tabs.setCurrentWidget(panel)
