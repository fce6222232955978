"""Makes the window's actions from the table of actions, enabled by what there is to act on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QActionGroup, QKeyEvent, QKeySequence, QUndoStack
from PySide6.QtWidgets import QWidget

from collage_engine.drawing.box_styles import MODES, Mode
from collage_engine.records.precision import FLOAT32
from collage_gui.actions import ACTIONS, ActionSpec, Need, is_single_key
from collage_gui.preferences import Preferences

if TYPE_CHECKING:
    from collage_gui.document.document import Document

import os
from collections.abc import Mapping

from PySide6.QtWidgets import QMenu, QMenuBar

from collage_gui.actions import MENUS, SUBMENUS, Menu
from collage_gui.widgets import plain_tip


class ActionSet:
    """The window's actions: one ``QAction`` for each line of the table of actions."""

    def __init__(self, owner: QWidget, preferences: Preferences) -> None:
        """Make the actions.

        Args:
            owner: The window that gets the actions and their shortcuts.
            preferences: Decide which of the checkable actions are checked.
        """
        self._preferences = preferences
        self.by_id: dict[str, QAction] = {}
        groups = {title: QActionGroup(owner) for title in SUBMENUS.values()}
        for spec in ACTIONS:
            action = _make_action(spec, owner)
            if spec.submenu:
                groups[spec.submenu].addAction(action)
            self.by_id[spec.id] = action
            owner.addAction(action)
        self.check_preferences()

    def press(self, event: QKeyEvent) -> bool:
        """Carries out the action of a single key; returns whether there was one that is enabled."""
        pressed = QKeySequence(event.keyCombination())
        for spec in ACTIONS:
            if any(is_single_key(keys) and QKeySequence(keys) == pressed for keys in spec.keys):
                action = self.by_id[spec.id]
                if action.isEnabled():
                    action.trigger()
                    return True
        return False

    def refresh(self, document: Document | None, mode: str) -> None:
        """Enable what can be done now.

        Args:
            document: The current document.
            mode: By what its graph is coloured; empty without a document.
        """
        met = available(document)
        for spec in ACTIONS:
            self.by_id[spec.id].setEnabled(spec.needs in met)
        if document is not None and document.is_open:
            self._refuse_modes(document)
        self._name_undo(document.undo if document is not None else None)
        colour = self.by_id.get(f"colour_{mode.replace('-', '_')}")
        if colour is not None:
            colour.setChecked(True)

    def _refuse_modes(self, document: Document) -> None:
        """Disable the colourings that would say nothing now; tip and status bar say why."""
        for mode in MODES:
            action = self.by_id[f"colour_{mode.replace('-', '_')}"]
            refusal = mode_refusal(document, mode)
            action.setEnabled(not refusal)
            action.setStatusTip(refusal)
            action.setToolTip(refusal)

    def check_preferences(self) -> None:
        """Check the actions that stand for preferences."""
        get = self._preferences.get
        self.by_id[f"theme_{get('theme')}"].setChecked(True)
        self.by_id["horizontal"].setChecked(get("orientation") == "horizontal")

    def _name_undo(self, stack: QUndoStack | None) -> None:
        undo, redo = self.by_id["undo"], self.by_id["redo"]
        undo.setEnabled(stack is not None and stack.canUndo())
        redo.setEnabled(stack is not None and stack.canRedo())
        undo.setText(f"Undo {stack.undoText() if stack is not None else ''}".strip())
        redo.setText(f"Redo {stack.redoText() if stack is not None else ''}".strip())


def _make_action(spec: ActionSpec, owner: QWidget) -> QAction:
    action = QAction(spec.title, owner)
    action.setObjectName(f"action-{spec.id}")
    action.setShortcuts([QKeySequence(keys) for keys in spec.keys])
    tip = f"{spec.title.rstrip('…')}{': ' + spec.tip if spec.tip else ''}"
    if spec.keys:
        tip += f" ({spec.keys[0]})"
    action.setToolTip(tip)
    action.setStatusTip(spec.tip)
    action.setCheckable(spec.checkable)
    if any(is_single_key(keys) for keys in spec.keys):
        # A shortcut of one key would be taken from buttons, lists and fields. Such keys are
        # shown in the menus, and act when nothing with the focus wants them.
        action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
    return action


def available(document: Document | None) -> frozenset[Need]:
    """Return the needs of actions that a document meets; without a document, only ``nothing``."""
    if document is None:
        return frozenset({"nothing"})
    graph = document.is_open
    running, execution = document.running, document.execution
    idle = graph and bool(document.handle) and not running
    met: dict[Need, bool] = {
        "nothing": True,
        "document": True,
        "still": not running,
        "graph": graph,
        "selection": graph and bool(document.selection.operators),
        "placement": graph and document.placement.shown is not None,
        "idle": idle,
        "idle selection": idle and bool(document.selection.operators),
        "running": running and not execution.cancelling,
        "stoppable": execution.provisional is not None and not execution.stopping,
        "pins": bool(document.pins.current),
        "run": bool(document.runs.visible),
        "two placements": document.compared is not None,
        "equal blocks": bool(document.equal_blocks),
    }
    return frozenset(need for need, is_met in met.items() if is_met)


def mode_refusal(document: Document, mode: Mode) -> str:
    """Says why colouring by a quantity would say nothing now; empty where it says something."""
    shown = document.placement.shown
    if mode == "toolchain":
        return ""
    if shown is None:
        return "There is no placement yet."
    partitions = shown.placement.partitions
    if mode == "cost" and len(partitions) == 1 and not shown.placement.layers:
        return "One partition is the whole placement, and its layers were not timed."
    has_layers = document.compared is not None and bool(document.compared.placement.layers)
    if mode == "changes" and len(document.runs.visible) < 2 and not has_layers:
        return "There is no other run to compare with."
    if mode == "device" and len({p.device for p in partitions}) < 2:
        return "Everything runs on one device."
    if mode == "precision" and all(p.precision == FLOAT32 for p in partitions):
        run = document.runs.shown_or_last()
        if run is None or run.accuracy is None or not run.accuracy.products:
            return (
                "Everything is in float32; a run with a lower precision tells what rounding does."
            )
    return ""


MNEMONICS = {menu.title: f"&{menu.title}" for menu in MENUS} | {"Export": "E&xport"}
"""Titles of the menus, each with the letter that opens it together with Alt; all letters differ."""


class Menus:
    """The menus by subject, with recent files."""

    def __init__(
        self,
        bar: QMenuBar,
        actions: Mapping[str, QAction],
        preferences: Preferences,
        open_path: Callable[[str], object],
    ) -> None:
        """Fill the menu bar.

        Args:
            bar: The menu bar.
            actions: The window's actions by id.
            preferences: Know the recent files.
            open_path: Opens a recent file.
        """
        self._preferences, self._open_path = preferences, open_path
        self.recent = QMenu("Open recent", bar)
        self.recent.setObjectName("recentMenu")
        self.submenus = {title: QMenu(title, bar) for title in SUBMENUS.values()}
        """What the graph can be coloured by, which the toolbar has, too, and the themes."""
        for submenu in self.submenus.values():
            submenu.setToolTipsVisible(True)
        for menu in MENUS:
            self._fill(bar.addMenu(MNEMONICS[menu.title]), menu, actions)
        self.fill_recent()

    def _fill(self, menu: QMenu, content: Menu, actions: Mapping[str, QAction]) -> None:
        for spec in content.entries:
            if spec is None:
                menu.addSeparator()
                continue
            if spec.submenu:
                self.submenus[spec.submenu].addAction(actions[spec.id])
                menu.addMenu(self.submenus[spec.submenu])
                continue
            menu.addAction(actions[spec.id])
            if spec.id == "open":
                menu.addMenu(self.recent)

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
