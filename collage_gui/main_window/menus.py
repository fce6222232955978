"""Makes the menu bar from the table of actions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QDockWidget, QMenu, QMenuBar

from collage_gui.actions import MENUS, Menu
from collage_gui.preferences import Preferences
from collage_gui.widgets import plain_tip

MNEMONICS = {menu.title: f"&{menu.title}" for menu in MENUS} | {"Export": "E&xport"}
"""Titles of the menus, each with the letter that opens it together with Alt; all letters differ."""


class Menus:
    """The menus by subject, with recent files and the current document's panels."""

    def __init__(
        self,
        bar: QMenuBar,
        actions: Mapping[str, QAction],
        preferences: Preferences,
        open_path: Callable[[str], object],
        docks: Callable[[], list[QDockWidget]],
    ) -> None:
        """Fills the menu bar.

        Args:
            bar: The menu bar.
            actions: The window's actions by id.
            preferences: Know the recent files.
            open_path: Opens a recent file.
            docks: Gives the docks of the current document.
        """
        self._preferences, self._open_path, self._docks = preferences, open_path, docks
        self.recent = QMenu("Open recent", bar)
        self.recent.setObjectName("recentMenu")
        self.colours = QMenu("Colour by", bar)
        """What the graph can be coloured by; the toolbar has it, too."""
        self.colours.setToolTipsVisible(True)
        self._panels = QMenu("Panels", bar)
        self._panels.aboutToShow.connect(self._fill_panels)
        for each in MENUS:
            self._fill(bar.addMenu(MNEMONICS[each.title]), each, actions)
        self.fill_recent()

    def _fill(self, menu: QMenu, content: Menu, actions: Mapping[str, QAction]) -> None:
        for spec in content.entries:
            if spec is None:
                menu.addSeparator()
                continue
            if spec.colours:
                self.colours.addAction(actions[spec.id])
                menu.addMenu(self.colours)
                continue
            menu.addAction(actions[spec.id])
            if spec.id == "open":
                menu.addMenu(self.recent)
        if content.title == "View":
            menu.addMenu(self._panels)

    def fill_recent(self) -> None:
        """List the recent files."""
        self.recent.clear()
        paths = self._preferences.recent()
        for number, path in enumerate(paths, 1):
            action = self.recent.addAction(f"&{number}  {os.path.basename(path)}")
            action.setToolTip(plain_tip(path))
            action.triggered.connect(lambda _=False, path=path: self._open_path(path))
        if paths:
            self.recent.addSeparator()
            self.recent.addAction("Clear this list", self._preferences.forget_recent)
        self.recent.setEnabled(bool(paths))

    def _fill_panels(self) -> None:
        self._panels.clear()
        for dock in self._docks():
            self._panels.addAction(dock.toggleViewAction())
