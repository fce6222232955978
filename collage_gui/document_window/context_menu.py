"""Fills the menu under the right mouse button in the graph."""

from __future__ import annotations

from collections.abc import Mapping

from PySide6.QtGui import QAction
from PySide6.QtWidgets import QMenu, QWidget

from collage_gui.document_window.pin_controller import PinController

BACKGROUND: tuple[str | None, ...] = (
    "fit",
    "find",
    None,
    "collapse_scopes",
    "collapse_partitions",
    "expand_all",
)
"""Ids of the actions between boxes; None is a separator."""
BOX: tuple[str | None, ...] = (
    "exactly",
    "together",
    "keep_partition",
    "free",
    None,
    "measure",
    "measure_longer",
    None,
    "select_partition",
    "zoom_selection",
    "enter_group",
    "leave_group",
    None,
    "copy_names",
)
"""Ids of the actions on a box, below the menus of toolchains."""


def context_menu(
    parent: QWidget, on_box: bool, actions: Mapping[str, QAction], pins: PinController
) -> QMenu:
    """Make the menu.

    Args:
        parent: The widget that owns the menu.
        on_box: Whether the pointer is on a box.
        actions: The window's actions by id.
        pins: Makes the menus of toolchains.
    """
    menu = QMenu(parent)
    if on_box:
        menu.addMenu(pins.pin_to_menu())
        menu.addMenu(pins.never_on_menu())
    for name in BOX if on_box else BACKGROUND:
        if name is None:
            menu.addSeparator()
        elif name in actions:
            menu.addAction(actions[name])
    return menu
