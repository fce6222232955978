"""The dock areas around the graph, and the panels in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QDockWidget, QMainWindow, QTabWidget, QWidget

LAYOUT_VERSION = 4
"""Arrangements that were saved under another version are ignored; raised when docks change."""
LEFT_SHARE, RIGHT_SHARE, BOTTOM_SHARE, CANDIDATES_SHARE = 0.22, 0.26, 0.36, 0.6
"""Shares of the window that the docks take at first; chosen."""
LEFT_LEAST, RIGHT_LEAST = 300, 330
"""Least widths of the side docks at first, in pixels; chosen so that their tables are readable."""


@dataclass(frozen=True)
class PanelPlace:
    """A panel's key, the label of its tab, and its widget."""

    key: str
    label: str
    panel: QWidget


class Docks:
    """Puts panels around a window's centre; several panels in one dock are tabs."""

    def __init__(self, window: QMainWindow) -> None:
        self._window = window
        self.by_name: dict[str, QDockWidget] = {}
        self._tabs: dict[str, QTabWidget] = {}
        self._places: dict[str, tuple[str, QWidget]] = {}
        """Panel key → name of its dock, the panel."""
        window.setCorner(Qt.Corner.BottomRightCorner, Qt.DockWidgetArea.RightDockWidgetArea)

    def add(
        self, name: str, title: str, area: Qt.DockWidgetArea, places: Sequence[PanelPlace]
    ) -> None:
        """Add a dock.

        Args:
            name: A name that is unique in the window.
            title: What the menu of panels calls it.
            area: Where it is docked at first.
            places: Its panels.
        """
        dock = QDockWidget(title)
        dock.setObjectName(f"dock-{name}")
        # The tabs or the panel's own heading name it: a title bar would repeat the name.
        dock.setTitleBarWidget(QWidget())
        if len(places) > 1:
            tabs = self._tabs[name] = QTabWidget()
            tabs.setObjectName(f"tabs-{name}")
            tabs.setAutoFillBackground(True)
            dock.setWidget(tabs)
        else:
            dock.setWidget(places[0].panel)
        for place in places:
            place.panel.setAutoFillBackground(True)
            if name in self._tabs:
                self._tabs[name].addTab(place.panel, place.label)
            self._places[place.key] = (name, place.panel)
        self._window.addDockWidget(area, dock)
        self.by_name[name] = dock

    def reveal(self, key: str) -> None:
        """Show a panel: its dock, and its tab."""
        name, panel = self._places[key]
        self.by_name[name].show()
        if name in self._tabs:
            self._tabs[name].setCurrentWidget(panel)

    def save(self) -> QByteArray:
        """The arrangement, to be kept in the settings."""
        return self._window.saveState(LAYOUT_VERSION)

    def restore(self, state: object) -> bool:
        """Restore a saved arrangement; False where it is none, or of another version."""
        return isinstance(state, QByteArray) and self._window.restoreState(state, LAYOUT_VERSION)

    def set_default_sizes(self) -> None:
        """Give the docks their first sizes, as shares of the window's."""
        width, height = self._window.width(), self._window.height()
        docks = self.by_name
        self._window.resizeDocks(
            [docks["outline"], docks["candidates"]],
            [
                max(LEFT_LEAST, round(width * LEFT_SHARE)),
                max(RIGHT_LEAST, round(width * RIGHT_SHARE)),
            ],
            Qt.Orientation.Horizontal,
        )
        self._window.resizeDocks(
            [docks["runs"]], [round(height * BOTTOM_SHARE)], Qt.Orientation.Vertical
        )
        self._window.resizeDocks(
            [docks["candidates"], docks["details"]],
            [round(height * CANDIDATES_SHARE), round(height * (1 - CANDIDATES_SHARE))],
            Qt.Orientation.Vertical,
        )
