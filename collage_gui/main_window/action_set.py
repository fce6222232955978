"""Makes actions from their table, enabled by what there is: menus, toolbar, command palette."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtGui import QAction, QActionGroup, QKeyEvent, QKeySequence, QUndoStack
from PySide6.QtWidgets import (
    QApplication,
    QComboBox,
    QDialog,
    QLineEdit,
    QListWidget,
    QListWidgetItem,
    QMenu,
    QMenuBar,
    QToolBar,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.box_styles import MODES, Mode
from collage_engine.records.precision import FLOAT32
from collage_engine.support.text import counted
from collage_engine.wording.amounts import duration_text
from collage_engine.wording.titles import baseline_title
from collage_gui.actions import (
    ACTIONS,
    MENU_OF,
    MENUS,
    NEEDS,
    SUBMENUS,
    ActionSpec,
    Menu,
    is_single_key,
)
from collage_gui.document.runs import Reference
from collage_gui.preferences import Preferences
from collage_gui.widgets import keep_from_wheel, lay_out, named, plain_tip

if TYPE_CHECKING:
    from collage_gui.document.document import Document
    from collage_gui.document_window.window import DocumentWindow


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
        met, refused = available(document), refusals(document)
        for spec in ACTIONS:
            action, refusal = self.by_id[spec.id], refused.get(spec.id, "")
            action.setEnabled(spec.needs in met and not refusal)
            action.setToolTip(refusal or spec.hint)
            action.setStatusTip(refusal or spec.tip)
        self._name_undo(document.undo if document is not None else None)
        colour = self.by_id.get(f"colour_{mode}")
        if colour is not None:
            colour.setChecked(True)

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
    action.setCheckable(spec.checkable)
    if any(is_single_key(keys) for keys in spec.keys):
        # A shortcut of one key would be taken from buttons, lists and fields. Such keys are
        # shown in the menus, and act when nothing with the focus wants them.
        action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
    return action


def available(document: Document | None) -> frozenset[str]:
    """Return the needs of actions that a document meets; without a document, only ``nothing``."""
    if document is None:
        return frozenset({"nothing"})
    return frozenset(need for need, is_met in NEEDS.items() if is_met(document))


def refusals(document: Document | None) -> dict[str, str]:
    """Say, by the ids of actions, why they would show nothing now; tip and status bar say it."""
    if document is None or not document.is_open:
        return {}
    refused = {f"colour_{mode}": mode_refusal(document, mode) for mode in MODES}
    return refused | {"split": document.compare_refusal}


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
        self.recent = named(QMenu("Open recent", bar), "recentMenu")
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


CHOICE_LETTERS = 15
"""Letters that the list of references shows: those of "Against: Best baseline"."""


class Toolbar(QToolBar):
    """The toolbar, which acts on the current page."""

    def __init__(self, actions: Mapping[str, QAction], colours: QMenu) -> None:
        """Make the toolbar.

        Args:
            actions: The window's actions by id.
            colours: The menu of what a graph can be coloured by.
        """
        super().__init__("Toolbar")
        self._page: DocumentWindow | None = None
        self.setObjectName("toolbar")
        self.setMovable(False)
        self.setIconSize(QSize(16, 16))
        self.setToolButtonStyle(Qt.ToolButtonStyle.ToolButtonTextOnly)
        self.addAction(actions["open"])
        actions["run"].setIconText("▶  Run")
        self.addAction(actions["run"])
        self.widgetForAction(actions["run"]).setObjectName("runButton")
        self.settings = actions["run_settings"]
        self.addAction(self.settings)
        self.addSeparator()
        title = "Compared with"
        self.reference = named(QComboBox(), "baseline", title, title)
        policy = QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon
        self.reference.setSizeAdjustPolicy(policy)  # the width does not follow the entries
        self.reference.setMinimumContentsLength(CHOICE_LETTERS)
        self.reference.view().setTextElideMode(Qt.TextElideMode.ElideNone)
        self.reference.activated.connect(self._reference_chosen)
        self.addWidget(self.reference)
        self.colour = named(QToolButton(), "colourBy", "Colour by", "Colour by")
        self.colour.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        self.colour.setMenu(colours)
        self.addWidget(self.colour)
        keep_from_wheel(self)

    def show_page(self, page: DocumentWindow | None) -> None:
        """Show the state of a page, and act on it from now on."""
        self._page = page
        document = page.document if page is not None else None
        graph = document is not None and document.is_open
        self.settings.setIconText(f"{_settings_text(page)} ▾")
        self.colour.setEnabled(graph)
        mode = page.picture.mode if page is not None else next(iter(MODES))
        self.colour.setText(f"Colour: {MODES[mode]} ▾")
        self._list_references(document)

    def _list_references(self, document: Document | None) -> None:
        """List the best baseline, every measured baseline of the shown run, and every other run."""
        entries = [("Best baseline", Reference())]
        run = document.runs.shown_or_last() if document is not None else None
        if document is not None and run is not None:
            shown = document.placement.shown and document.placement.shown.run
            entries += [
                (baseline_title(baseline), Reference("baseline", baseline.name))
                for baseline in run.baselines
                if baseline.measured_us is not None
            ]
            entries += [
                (document.runs.title_of(each), Reference("run", each.id))
                for each in document.runs.visible
                if each.id != shown or document.comparison.reference == Reference("run", each.id)
            ]
        self.reference.clear()
        for label, reference in entries:
            self.reference.addItem(f"Against: {label}", reference)
            if document is not None and reference == document.comparison.reference:
                self.reference.setCurrentIndex(self.reference.count() - 1)
        self.reference.setEnabled(self.reference.count() > 1)

    # -- acting ------------------------------------------------------------------------

    def _reference_chosen(self) -> None:
        if self._page is not None:
            self._page.document.comparison.set_reference(self.reference.currentData())


def _settings_text(page: DocumentWindow | None) -> str:
    """Return what the next run takes, in short: ``auto threads, 10 min``."""
    if page is None:
        return "Settings"
    settings = page.panels.run_settings
    threads, budget_s = settings.threads.value(), settings.budget.value()
    return f"{counted(threads, 'thread') if threads else 'auto threads'}, {duration_text(budget_s)}"


LIST_KEYS = (Qt.Key.Key_Down, Qt.Key.Key_Up, Qt.Key.Key_Return, Qt.Key.Key_Enter)
GESTURES = {
    "Wheel": "Zoom at the pointer; with Shift scroll sideways; with two fingers pan",
    "Drag": "Pan",
    "Shift+drag": "Select what the rectangle touches",
    "Ctrl+drag": "Zoom to an area",
    "Shift+click": "Add to the selection",
    "Double click": "Open a collapsed group, or select the partition",
    "Arrows": "Walk along edges",
    "Enter, Backspace": "Into a group, out of it",
}
"""What mouse and keys do in the graph; the list ends with it."""


class CommandPalette(QDialog):
    """A list of actions that narrows while the user types: every word must occur."""

    def __init__(self, actions: dict[str, QAction], parent: QWidget) -> None:
        super().__init__(parent, Qt.WindowType.Popup)
        self.setObjectName("commandPalette")
        self.actions_by_id = actions
        self.text = QLineEdit(placeholderText="What do you want to do?")
        named(self.text, "paletteText", "Command")
        self.list = named(QListWidget(), "paletteList", "Actions, keys and gestures")
        self.list.setUniformItemSizes(True)
        self.list.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        lay_out(QVBoxLayout(self), self.text, self.list, edge=1)
        self.text.textChanged.connect(self.refresh)
        self.text.installEventFilter(self)
        self.list.itemActivated.connect(self.choose)
        self.list.itemClicked.connect(self.choose)
        self.resize(560, 420)
        self.refresh()

    def open_over(self, window: QWidget) -> None:
        """Show every action over a window."""
        self.text.clear()
        self.refresh()
        corner = window.mapToGlobal(window.rect().topLeft())
        self.move(corner.x() + (window.width() - self.width()) // 2, corner.y() + 90)
        self.show()
        self.text.setFocus()

    def refresh(self) -> None:
        """List the actions that fit the text; those whose title begins with it come first."""
        self.list.clear()
        query = self.text.text().lower()
        specs = [spec for spec in ACTIONS if spec.id != "palette"]
        for spec in sorted(specs, key=lambda spec: not spec.title.lower().startswith(query)):
            menus = filter(None, [MENU_OF[spec.id], spec.submenu])
            text = f"{' › '.join(menus)}: {spec.title.rstrip('…')}"
            self._list(text, ", ".join(spec.keys), self.actions_by_id[spec.id])
        for keys, what in GESTURES.items():
            self._list(f"In the graph: {what}", keys, None)
        for row in reversed(range(self.list.count())):
            if self.list.item(row).flags():
                self.list.setCurrentRow(row)

    def _list(self, text: str, keys: str, action: QAction | None) -> None:
        if not all(word in text.lower() for word in self.text.text().lower().split()):
            return
        item = QListWidgetItem(f"{text}    {keys}".rstrip())
        item.setData(Qt.ItemDataRole.UserRole, action)
        item.setToolTip(action.toolTip() if action is not None else "")
        if action is None or not action.isEnabled():
            item.setFlags(Qt.ItemFlag.NoItemFlags)
        self.list.addItem(item)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Give the list the arrow keys and Enter while the text has the focus."""
        pressed = event.key() if isinstance(event, QKeyEvent) else None
        if pressed in LIST_KEYS and event.type() == QEvent.Type.KeyPress:
            return QApplication.sendEvent(self.list, event)
        return super().eventFilter(watched, event)

    def choose(self, item: QListWidgetItem) -> None:
        """Carries out an action that can be carried out now."""
        if item.flags():
            self.hide()
            item.data(Qt.ItemDataRole.UserRole).trigger()
