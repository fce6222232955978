"""Lays out the dock areas around the graph, and the panels in them."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtCore import QByteArray, Qt
from PySide6.QtWidgets import QDockWidget, QMainWindow, QTabWidget, QWidget

LAYOUT_VERSION = 6
"""Arrangements that were saved under another version are ignored; raised when docks change."""
LEFT_SHARE, RIGHT_SHARE, BOTTOM_SHARE = 0.2, 0.24, 0.28
"""Shares of the window that the docks take at first; chosen."""
LEFT_LEAST, RIGHT_LEAST = 300, 330
"""Least widths of the side docks at first, in pixels; chosen so that their tables are readable."""
COLUMN_SHARE, COLUMN_LEAST, COLUMN_MOST = 0.3, 330, 460
"""Share of the window that the single column takes at first, and its bounds in pixels; chosen, so
that the graph keeps more than half of a window of 1280 × 800."""
NARROW_PX, LOW_PX = 1500, 860
"""A window that is narrower or lower than this, in pixels, has its panels in one column; chosen,
since three docks around the graph leave it less than a third of such a window."""

PANEL_LEAST = (240, 90)
"""Least width and height of a panel, in pixels; chosen: below it a panel scrolls or cuts."""

PLACES: dict[str, dict[str, tuple[str, ...]]] = {
    "around": {
        "placement": ("partitions", "pins"),
        "node": ("node",),
        "runs": ("runs",),
    },
    "column": {"node": ("partitions", "node", "pins", "runs")},
}
"""The panels of each dock, by arrangement: around the graph, or in one column at its right."""

_AREAS = {
    "placement": Qt.DockWidgetArea.LeftDockWidgetArea,
    "node": Qt.DockWidgetArea.RightDockWidgetArea,
    "runs": Qt.DockWidgetArea.BottomDockWidgetArea,
}
_TITLES = {"placement": "Placement", "node": "Node", "runs": "Runs"}


def fitting_arrangement(width: int, height: int) -> str:
    """Returns the arrangement of panels that leaves the graph its share of such a window."""
    return "column" if width < NARROW_PX or height < LOW_PX else "around"


class Docks:
    """Puts panels around a window's centre, or in one column beside it; docks hold tabs."""

    def __init__(self, window: QMainWindow, panels: Mapping[str, QWidget]) -> None:
        """Makes the docks and arranges the panels around the graph.

        Args:
            window: The window around whose centre the docks lie.
            panels: All panels, by what their tabs are called.
        """
        self._window = window
        self._panels = {title.lower(): (title, panel) for title, panel in panels.items()}
        self._tabs: dict[str, QTabWidget] = {}
        self.by_name: dict[str, QDockWidget] = {}
        self.arrangement = ""
        """``around`` or ``column``."""
        window.setCorner(Qt.Corner.BottomRightCorner, Qt.DockWidgetArea.RightDockWidgetArea)
        for name, area in _AREAS.items():
            dock = QDockWidget(_TITLES[name])
            dock.setObjectName(f"dock-{name}")
            # The tabs or the panel's own heading name it: a title bar would repeat the name.
            dock.setTitleBarWidget(QWidget())
            tabs = self._tabs[name] = QTabWidget()
            tabs.setObjectName(f"tabs-{name}")
            tabs.setTabBarAutoHide(True)
            tabs.setUsesScrollButtons(True)
            tabs.setAutoFillBackground(True)
            dock.setWidget(tabs)
            window.addDockWidget(area, dock)
            self.by_name[name] = dock
        for panel in panels.values():
            panel.setAutoFillBackground(True)
            # Without this, a panel in front would widen its dock at the cost of the graph.
            panel.setMinimumSize(*PANEL_LEAST)
        self.arrange("around")

    def arrange(self, arrangement: str) -> bool:
        """Put the panels where an arrangement has them.

        Args:
            arrangement: ``around`` or ``column``.

        Returns:
            Whether anything moved.
        """
        if arrangement == self.arrangement:
            return False
        front = [tabs.currentWidget() for tabs in self._tabs.values()]
        self.arrangement = arrangement
        wanted = PLACES[arrangement]
        for name, keys in wanted.items():
            for key in keys:
                title, panel = self._panels[key]
                self._tabs[name].addTab(panel, title)
        for name, dock in self.by_name.items():
            dock.setVisible(name in wanted)
        for name in wanted:
            tabs = self._tabs[name]
            known = [tabs.indexOf(widget) for widget in front if widget is not None]
            tabs.setCurrentIndex(next((at for at in known if at >= 0), 0))
        return True

    @property
    def shown(self) -> list[QDockWidget]:
        """Returns the docks that hold panels now."""
        return [self.by_name[name] for name in PLACES[self.arrangement]]

    @property
    def panes(self) -> list[QTabWidget]:
        """Returns the tabs of the visible docks, in the order in which keys step through them."""
        names = PLACES[self.arrangement]
        return [self._tabs[name] for name in names if self.by_name[name].isVisible()]

    def reveal(self, key: str) -> None:
        """Show a panel: its dock, and its tab."""
        _, panel = self._panels[key]
        for name, tabs in self._tabs.items():
            if tabs.indexOf(panel) >= 0:
                self.by_name[name].show()
                tabs.setCurrentWidget(panel)

    def save(self) -> QByteArray:
        """Returns the sizes and places of the docks, to be kept in the settings."""
        return self._window.saveState(LAYOUT_VERSION)

    def restore(self, state: object) -> bool:
        """Restore saved sizes and places; False where there are none, or of another version."""
        return isinstance(state, QByteArray) and self._window.restoreState(state, LAYOUT_VERSION)

    def set_default_sizes(self) -> None:
        """Give the docks their first sizes, as shares of the window's."""
        width, height = self._window.width(), self._window.height()
        docks, across, along = self.by_name, Qt.Orientation.Horizontal, Qt.Orientation.Vertical
        if self.arrangement == "column":
            column = max(COLUMN_LEAST, min(COLUMN_MOST, round(width * COLUMN_SHARE)))
            self._window.resizeDocks([docks["node"]], [column], across)
            return
        self._window.resizeDocks(
            [docks["placement"], docks["node"]],
            [
                max(LEFT_LEAST, round(width * LEFT_SHARE)),
                max(RIGHT_LEAST, round(width * RIGHT_SHARE)),
            ],
            across,
        )
        self._window.resizeDocks([docks["runs"]], [round(height * BOTTOM_SHARE)], along)
