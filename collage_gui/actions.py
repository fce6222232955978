"""Lists the actions by menu: menus, toolbar, shortcuts, palette and help are made of them.

Each action is a function; its name is the action's id, and its docstring what the status bar and
tool tips say of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from collage_engine.drawing.box_styles import MODES, Mode
from collage_gui.preferences import STEP, THEMES

if TYPE_CHECKING:
    from collage_gui.document.document import Document
    from collage_gui.document_window.window import DocumentWindow
    from collage_gui.main_window.documents import Documents
    from collage_gui.main_window.engine import Engine
    from collage_gui.preferences import Preferences

    OnWindow = Callable[["Window"], object]
    OnPage = Callable[[DocumentWindow], object]

NEEDS: dict[str, Callable[[Document], bool]] = {
    "nothing": lambda document: True,
    "document": lambda document: True,
    "still": lambda document: not document.running,
    "graph": lambda document: document.is_open,
    "selection": lambda document: document.is_open and bool(document.selection.operators),
    "placement": lambda document: document.is_open and document.placement.shown is not None,
    "idle": lambda document: document.is_open and bool(document.handle) and not document.running,
    "idle selection": lambda document: NEEDS["idle"](document) and NEEDS["selection"](document),
    "running": lambda document: document.running and not document.execution.cancelling,
    "stoppable": lambda document: (
        document.running
        and document.runs.provisional is not None
        and not document.execution.stopping
    ),
    "pins": lambda document: bool(document.pins.current),
    "run": lambda document: bool(document.runs.visible),
}
"""The conditions under which actions are enabled, of the document in front; without one only
``nothing`` is met. ``still`` is a document that does not run, ``idle`` one that could run,
``stoppable`` a run that has found something."""


class Window(Protocol):
    """What actions use of the main window."""

    documents: Documents
    engine: Engine
    preferences: Preferences

    def close(self) -> bool:
        """Close the window."""

    def refresh(self) -> None:
        """Enable what can be done now."""

    def show_palette(self) -> None:
        """Open the command palette."""

    def show_about(self) -> None:
        """Open the versions and credits."""


@dataclass(frozen=True)
class ActionSpec:
    """An action's name, what carries it out, and when it can be."""

    id: str
    title: str
    run: OnWindow
    keys: tuple[str, ...]
    tip: str
    needs: str
    checkable: bool

    def trigger(self, window: Window, *_: object) -> None:
        """Carry out the action, and show what can be done then."""
        self.run(window)
        window.refresh()

    @property
    def hint(self) -> str:
        """Return what its tool tip says: title, what it does, and its first key."""
        keys = f" ({self.keys[0]})" if self.keys else ""
        return f"{self.title.rstrip('…')}{': ' + self.tip if self.tip else ''}{keys}"

    @property
    def submenu(self) -> str:
        """Return the title of the menu of choices that it belongs to, of which one is checked."""
        return SUBMENUS.get(self.id.partition("_")[0], "")


SUBMENUS = {"colour": "Colour by", "theme": "Theme"}
"""Titles of the menus of choices, by how the ids of their actions begin."""


class Menu:
    """A menu that is filled from the top."""

    def __init__(self, title: str, needs: str = "graph") -> None:
        """Makes an empty menu.

        Args:
            title: Its title.
            needs: What its actions on a document need, where they do not say otherwise.
        """
        self.title, self.needs = title, needs
        self.entries: list[ActionSpec | None] = []
        """Its actions; None is a separator."""

    def separate(self) -> None:
        """Add a separator."""
        self.entries.append(None)

    def on_window(
        self, title: str, *keys: str, needs: str = "nothing", checkable: bool = False
    ) -> Callable[[OnWindow], None]:
        """Return a decorator that adds a function of the main window as an action."""
        assert needs in NEEDS, needs

        def add(run: OnWindow) -> None:
            name, tip = run.__name__.strip("_"), (run.__doc__ or "").rstrip(".")
            self.entries.append(ActionSpec(name, title, run, keys, tip, needs, checkable))

        return add

    def on_page(
        self, title: str, *keys: str, needs: str | None = None, checkable: bool = False
    ) -> Callable[[OnPage], None]:
        """Return a decorator that adds a function of the document in front as an action."""

        def add(run: OnPage) -> None:
            def on_current(window: Window) -> None:
                if window.documents.current is not None:
                    run(window.documents.current)

            on_current.__name__, on_current.__doc__ = run.__name__, run.__doc__
            decorate = self.on_window(title, *keys, needs=needs or self.needs, checkable=checkable)
            decorate(on_current)

        return add


file = Menu("File")


@file.on_window("Open…", "Ctrl+O")
def open_(window: Window) -> None:
    """Open a model or a session."""
    window.documents.open_dialog()


@file.on_window("Open the sample model")
def sample(window: Window) -> None:
    """A small one, to try."""
    window.documents.open_sample()


@file.on_window("Reload", "F5", needs="still")
def reload(window: Window) -> None:
    """Import the model file again."""
    window.documents.reload()


@file.on_window("Save session", "Ctrl+S", needs="graph")
def save(window: Window) -> None:
    """Everything of this document in one file."""
    window.documents.save()


@file.on_window("Save session as…", "Ctrl+Shift+S", needs="graph")
def save_as(window: Window) -> None:
    """Everything of this document in a file of another name."""
    window.documents.save(elsewhere=True)


file.separate()


@file.on_window("Restart the engine", "Ctrl+Shift+R")
def restart(window: Window) -> None:
    """Nothing that was measured is lost."""
    window.engine.restart()


file.separate()


@file.on_window("Close document", "Ctrl+W", needs="document")
def close(window: Window) -> None:
    """Close this document; what is unsaved is asked about."""
    window.documents.close(window.documents.tabs.currentIndex())


@file.on_window("Quit", "Ctrl+Q")
def quit(window: Window) -> None:
    """Close the window and end the engine."""
    window.close()


edit = Menu("Edit")


@edit.on_page("Undo", "Ctrl+Z", needs="document")
def undo(page: DocumentWindow) -> None:
    """Take back the last change of pins, names and notes."""
    page.document.undo.undo()


@edit.on_page("Redo", "Ctrl+Shift+Z", "Ctrl+Y", needs="document")
def redo(page: DocumentWindow) -> None:
    """Do again what was undone."""
    page.document.undo.redo()


edit.separate()


@edit.on_page("Find…", "Ctrl+F")
def find(page: DocumentWindow) -> None:
    """Nodes by name, operator or shape."""
    page.find_bar.open()


@edit.on_page("Find next", "F3", "Ctrl+G")
def find_next(page: DocumentWindow) -> None:
    """Go to the next result."""
    page.find_bar.step(1)


@edit.on_page("Find previous", "Shift+F3", "Ctrl+Shift+G")
def find_previous(page: DocumentWindow) -> None:
    """Go to the result before."""
    page.find_bar.step(-1)


edit.separate()


@edit.on_page("Select the partition", "Ctrl+E", needs="selection")
def select_partition(page: DocumentWindow) -> None:
    """All nodes that run together with the selected one."""
    page.picture.select_partition()


@edit.on_page("Copy node names", "Ctrl+Shift+C", needs="selection")
def copy_names(page: DocumentWindow) -> None:
    """One name a line."""
    page.picture.copy_names()


view = Menu("View")


@view.on_page("Fit the graph", "F", "Ctrl+0")
def fit(page: DocumentWindow) -> None:
    """Show all of it."""
    page.view.fit()


@view.on_page("Zoom to the selection", "Z", needs="selection")
def zoom_selection(page: DocumentWindow) -> None:
    """As large as it fits."""
    page.picture.zoom_to_selection()


@view.on_page("Zoom in", "Ctrl++", "Ctrl+=")
def zoom_in(page: DocumentWindow) -> None:
    """Around the middle."""
    page.view.zoom(STEP)


@view.on_page("Zoom out", "Ctrl+-")
def zoom_out(page: DocumentWindow) -> None:
    """Around the middle."""
    page.view.zoom(1 / STEP)


view.separate()


@view.on_page("Other pane", "F6", "Shift+F6", needs="document")
def other_pane(page: DocumentWindow) -> None:
    """From the graph to the panels, or back."""
    page.step_pane()


view.separate()


@view.on_window("Left to right", "Ctrl+K", checkable=True)
def horizontal(window: Window) -> None:
    """Draw the graph from left to right."""
    sideways = window.preferences.get("orientation") == "horizontal"
    window.preferences.set("orientation", "vertical" if sideways else "horizontal")


@view.on_page("Panels", "F9", needs="document")
def panels(page: DocumentWindow) -> None:
    """Hide what stands beside the graph, or show it again."""
    page.tabs.setVisible(not page.tabs.isVisible())


@view.on_page("Two placements side by side", "Ctrl+Alt+2", checkable=True)
def split(page: DocumentWindow) -> None:
    """The shown one and the one that it is compared with."""
    page.split.toggle()


@view.on_page("Outline", "O", checkable=True)
def outline(page: DocumentWindow) -> None:
    """The operators as a list beside the graph."""
    page.toggle_outline()


@view.on_page("Timeline", "T", checkable=True)
def timeline(page: DocumentWindow) -> None:
    """What each partition and layer takes, over time, below the graph."""
    page.panels.timeline.setVisible(not page.panels.timeline.isVisible())


@view.on_page("Log", "Ctrl+Shift+L", needs="document")
def log(page: DocumentWindow) -> None:
    """What was reported."""
    page.show_log()


view.separate()


@view.on_window("Larger text", "Ctrl+Alt++", "Ctrl+Alt+=")
def bigger(window: Window) -> None:
    """All text one step larger."""
    window.preferences.scale_text(1)


@view.on_window("Smaller text", "Ctrl+Alt+-")
def smaller(window: Window) -> None:
    """All text one step smaller."""
    window.preferences.scale_text(-1)


def _theme(name: str, title: str) -> None:
    """Add the action that chooses a theme."""

    def choose(window: Window) -> None:
        window.preferences.set("theme", name)

    choose.__name__ = f"theme_{name}"
    view.on_window(title, checkable=True)(choose)


for theme_name, theme_title in THEMES.items():
    _theme(theme_name, theme_title)


graph = Menu("Graph")


@graph.on_page("Collapse name scopes", "Ctrl+Shift+K")
def collapse_scopes(page: DocumentWindow) -> None:
    """One box for each outermost scope of the file."""
    page.picture.collapse_scopes()


@graph.on_page("Collapse partitions", "Ctrl+Alt+K", needs="placement", checkable=True)
def collapse_partitions(page: DocumentWindow) -> None:
    """One box for each partition, with its cost."""
    page.picture.collapse_partitions()


@graph.on_page("Expand everything", "Ctrl+Shift+E")
def expand_all(page: DocumentWindow) -> None:
    """One box for each node."""
    page.picture.expand_all()


graph.separate()


@graph.on_page("Enter group", needs="selection")
def enter_group(page: DocumentWindow) -> None:
    """The Enter key on a box does the same."""
    page.picture.enter_group()


@graph.on_page("Collapse the surrounding group", needs="selection")
def leave_group(page: DocumentWindow) -> None:
    """The Backspace key does the same."""
    page.picture.leave_group()


graph.separate()


def _colour_by(mode: Mode, title: str, key: str) -> None:
    """Add the action that colours the graph by a quantity."""

    def colour(page: DocumentWindow) -> None:
        page.picture.set_mode(mode)

    colour.__name__ = f"colour_{mode}"
    graph.on_page(title, key, checkable=True)(colour)


for number, (mode, mode_title) in enumerate(MODES.items(), 1):
    _colour_by(mode, mode_title, str(number % 10))


pin = Menu("Pin", needs="selection")


@pin.on_page("Pin to a toolchain…", "P")
def pin_menu(page: DocumentWindow) -> None:
    """Demand a toolchain for the selection."""
    page.pins.open(page.pins.pin_to_menu())


@pin.on_page("Never on a toolchain…", "Shift+P")
def never_menu(page: DocumentWindow) -> None:
    """Forbid a toolchain for the selection."""
    page.pins.open(page.pins.never_on_menu())


@pin.on_page("Pin as one partition", "Ctrl+Alt+P")
def exactly(page: DocumentWindow) -> None:
    """The selection, whole and by itself."""
    page.pins.pin("exactly", "Pin as one partition")


@pin.on_page("Keep together", "Ctrl+Alt+T")
def together(page: DocumentWindow) -> None:
    """In one partition, with others or not."""
    page.pins.pin("together", "Keep together")


pin.separate()


@pin.on_page("Try it here", "Y", needs="idle selection")
def try_here(page: DocumentWindow) -> None:
    """Pin to the toolchain that was faster here, and time it: 20 s at most."""
    page.runs.try_here()


@pin.on_page("Keep this partition", "K")
def keep_partition(page: DocumentWindow) -> None:
    """Pin the partition as it is now."""
    page.pins.keep_partition()


@pin.on_page("Pin all as now", needs="placement")
def pin_all(page: DocumentWindow) -> None:
    """Pin every partition as it is."""
    page.pins.pin_all()


pin.separate()


@pin.on_page("Unpin the selection", "Del")
def free(page: DocumentWindow) -> None:
    """Take the pins off the selected nodes."""
    page.pins.free_selection()


@pin.on_page("Unpin all", needs="pins")
def free_all(page: DocumentWindow) -> None:
    """Take all pins off."""
    page.document.pins.edit((), "Unpin all")


run_menu = Menu("Run", needs="idle")


@run_menu.on_page("Run", "Ctrl+R")
def run(page: DocumentWindow) -> None:
    """Measure, search, confirm."""
    page.runs.start()


@run_menu.on_page("Search again", "Space")
def search(page: DocumentWindow) -> None:
    """On stored costs and under the current pins."""
    page.runs.search_or_start()


@run_menu.on_page("Settings of the next run…", "Ctrl+D", needs="graph")
def run_settings(page: DocumentWindow) -> None:
    """Toolchains, precision, limits."""
    page.show_settings()


@run_menu.on_page("Choose shapes…", "Ctrl+Shift+D")
def shapes(page: DocumentWindow) -> None:
    """A run places all of them."""
    page.shapes.choose()


@run_menu.on_page("Confirm quickly", "C")
def confirm_quickly(page: DocumentWindow) -> None:
    """Times the result against the last run only: 20 s at most."""
    page.runs.confirm_quickly()


@run_menu.on_page("Stop and keep", "Ctrl+Shift+.", needs="stoppable")
def stop_and_keep(page: DocumentWindow) -> None:
    """Confirms the best so far quickly."""
    page.runs.stop_and_keep()


@run_menu.on_page("Cancel", "Ctrl+.", needs="running")
def cancel(page: DocumentWindow) -> None:
    """What was measured is kept."""
    page.runs.cancel()


run_menu.separate()


@run_menu.on_page("Measure the selection", "Ctrl+T", needs="idle selection")
def measure(page: DocumentWindow) -> None:
    """As one partition."""
    page.runs.measure(longer=False)


@run_menu.on_page("Measure again, longer", "Ctrl+Shift+T", needs="idle selection")
def measure_longer(page: DocumentWindow) -> None:
    """With more repeats."""
    page.runs.measure(longer=True)


export = Menu("Export")


@export.on_page("Compiled artifact…", "Ctrl+Shift+X", needs="run")
def artifact(page: DocumentWindow) -> None:
    """A folder that runs without the explorer."""
    page.export.artifact()


@export.on_page("Report…")
def report(page: DocumentWindow) -> None:
    """One HTML file with the graph as SVG."""
    page.export.report("html", "Report")


export.separate()


@export.on_page("Graph as PNG…")
def png(page: DocumentWindow) -> None:
    """At its natural size, or smaller where it is very large."""
    page.export.png()


@export.on_page("Graph as SVG…")
def svg(page: DocumentWindow) -> None:
    """For a browser or a drawing program."""
    page.export.svg()


export.separate()


@export.on_page("Timeline as SVG…", needs="run")
def timeline_svg(page: DocumentWindow) -> None:
    """The shown run over time."""
    page.export.report("timeline", "Timeline as SVG", "timeline.svg")


@export.on_page("Timeline as trace…", needs="run")
def timeline_trace(page: DocumentWindow) -> None:
    """The shown run over time, for Perfetto and chrome://tracing."""
    page.export.report("trace", "Timeline as trace", "trace.json")


@export.on_page("Candidates as CSV…", needs="run")
def csv(page: DocumentWindow) -> None:
    """Every candidate of the shown run, with its cost and its nodes."""
    page.export.report("csv", "Candidates as CSV")


@export.on_page("Run as JSON…", needs="run")
def json(page: DocumentWindow) -> None:
    """All that is known of the shown run."""
    page.export.report("json", "Run as JSON")


help_menu = Menu("Help")


@help_menu.on_window("Actions and shortcuts…", "Ctrl+Shift+P", "F1")
def palette(window: Window) -> None:
    """Every action by name, and what the mouse does."""
    window.show_palette()


@help_menu.on_window("About")
def about(window: Window) -> None:
    """Versions and credits."""
    window.show_about()


MENUS = (file, edit, view, graph, pin, run_menu, export, help_menu)
ACTIONS = tuple(spec for menu in MENUS for spec in menu.entries if spec is not None)
MENU_OF = {spec.id: menu.title for menu in MENUS for spec in menu.entries if spec is not None}


def is_single_key(keys: str) -> bool:
    """Tells whether a shortcut is one key, at most with Shift: ``F``, ``Space``, ``Shift+P``."""
    return (
        not any(part in keys for part in ("Ctrl", "Alt", "Meta"))
        and not (keys.startswith("F") and keys[1:].isdigit())
        and not keys.startswith("Shift+F")
    )
