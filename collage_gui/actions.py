"""Lists the actions by menu: menus, toolbar, shortcuts, palette and help are made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, Protocol

from collage_engine.drawing.box_styles import MODES

if TYPE_CHECKING:
    from collage_gui.document_window.window import DocumentWindow
    from collage_gui.main_window.documents import Documents
    from collage_gui.main_window.engine import Engine
    from collage_gui.preferences import Preferences

ZOOM_STEP = 1.25
"""The factor of one step of zooming; chosen."""
Need = Literal[
    "nothing",
    "document",
    "still",
    "graph",
    "selection",
    "placement",
    "idle",
    "running",
    "pins",
    "run",
    "two placements",
]
"""The condition under which an action is enabled; ``still`` is a document that does not run,
``idle`` one that could run."""


class Window(Protocol):
    """What actions use of the main window."""

    documents: Documents
    engine: Engine
    preferences: Preferences

    def close(self) -> bool:
        """Close the window."""
        ...

    def focus_menu(self) -> None:
        """Step into the menu bar."""
        ...

    def show_preferences(self) -> None:
        """Open the settings."""
        ...

    def show_palette(self) -> None:
        """Open the command palette."""
        ...

    def show_about(self) -> None:
        """Open the versions and credits."""
        ...


@dataclass(frozen=True)
class ActionSpec:
    """An action's name, what carries it out, and when it can be."""

    id: str
    title: str
    run: Callable[[Window], object]
    keys: tuple[str, ...] = ()
    tip: str = ""
    needs: Need = "nothing"
    checkable: bool = False
    exclusive: str = ""
    """The group of actions of which one is checked."""


class Menu:
    """A menu that is filled from the top."""

    def __init__(self, title: str, needs: Need = "graph") -> None:
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
        self,
        id: str,
        title: str,
        run: Callable[[Window], object],
        *keys: str,
        tip: str = "",
        needs: Need = "nothing",
        checkable: bool = False,
    ) -> None:
        """Add an action on the main window."""
        self.entries.append(ActionSpec(id, title, run, keys, tip, needs, checkable))

    def on_page(
        self,
        id: str,
        title: str,
        run: Callable[[DocumentWindow], object],
        *keys: str,
        tip: str = "",
        needs: Need | None = None,
        checkable: bool = False,
        exclusive: str = "",
    ) -> None:
        """Add an action on the document in front."""

        def on_current(window: Window) -> None:
            if window.documents.current is not None:
                run(window.documents.current)

        needs = needs or self.needs
        spec = ActionSpec(id, title, on_current, keys, tip, needs, checkable, exclusive)
        self.entries.append(spec)


file = Menu("File")
file.on_window(
    "open", "Open…", lambda w: w.documents.open_dialog(), "Ctrl+O", tip="Open a model or a session"
)
file.on_window(
    "sample",
    "Open the sample model",
    lambda w: w.documents.open_sample(),
    tip="A small one, to try",
)
file.on_window(
    "reload",
    "Reload",
    lambda w: w.documents.reload(),
    "F5",
    tip="Import the model file again",
    needs="still",
)
file.on_window(
    "save",
    "Save session",
    lambda w: w.documents.save(),
    "Ctrl+S",
    tip="Everything of this document in one file",
    needs="graph",
)
file.on_window(
    "save_as", "Save session as…", lambda w: w.documents.save_as(), "Ctrl+Shift+S", needs="graph"
)
file.separate()
file.on_window(
    "connection", "Connection…", lambda w: w.engine.choose_connection(), tip="Where the engine runs"
)
file.on_window(
    "restart",
    "Restart the engine",
    lambda w: w.engine.restart(),
    "Ctrl+Shift+R",
    tip="Nothing that was measured is lost",
)
file.on_window("settings", "Settings…", lambda w: w.show_preferences(), "Ctrl+,")
file.separate()
file.on_window(
    "close", "Close document", lambda w: w.documents.close_current(), "Ctrl+W", needs="document"
)
file.on_window("quit", "Quit", lambda w: w.close(), "Ctrl+Q")

edit = Menu("Edit")
edit.on_page("undo", "Undo", lambda p: p.document.undo.undo(), "Ctrl+Z", needs="document")
edit.on_page(
    "redo", "Redo", lambda p: p.document.undo.redo(), "Ctrl+Shift+Z", "Ctrl+Y", needs="document"
)
edit.separate()
edit.on_page(
    "find", "Find…", lambda p: p.find_bar.open(), "Ctrl+F", tip="Text or regular expression"
)
edit.on_page("find_next", "Find next", lambda p: p.find_bar.step(1), "F3", "Ctrl+G")
edit.on_page(
    "find_previous", "Find previous", lambda p: p.find_bar.step(-1), "Shift+F3", "Ctrl+Shift+G"
)
edit.separate()
edit.on_page(
    "select_partition",
    "Select the partition",
    lambda p: p.navigation.select_partition(),
    "Ctrl+E",
    needs="selection",
)
edit.on_page(
    "select_none",
    "Select nothing",
    lambda p: p.navigation.select_nothing(),
    "Ctrl+Shift+A",
    needs="selection",
)
edit.on_page(
    "copy_names",
    "Copy node names",
    lambda p: p.navigation.copy_names(),
    "Ctrl+Shift+C",
    needs="selection",
)

view = Menu("View")
view.on_page("fit", "Fit the graph", lambda p: p.view.fit(), "F", "Ctrl+0")
view.on_page(
    "zoom_selection",
    "Zoom to the selection",
    lambda p: p.navigation.zoom_to_selection(),
    "Z",
    needs="selection",
)
view.on_page("zoom_in", "Zoom in", lambda p: p.view.zoom(ZOOM_STEP), "Ctrl++", "Ctrl+=")
view.on_page("zoom_out", "Zoom out", lambda p: p.view.zoom(1 / ZOOM_STEP), "Ctrl+-")
view.on_page("actual", "Actual size", lambda p: p.view.zoom(1 / p.view.scale), "Ctrl+1")
view.separate()
view.on_page(
    "next_pane",
    "Next pane",
    lambda p: p.step_pane(1),
    "F6",
    tip="The graph, then the panels",
    needs="document",
)
view.on_page(
    "previous_pane", "Previous pane", lambda p: p.step_pane(-1), "Shift+F6", needs="document"
)
view.on_window("menu_bar", "Menu bar", lambda w: w.focus_menu(), "F10", tip="The first menu")
view.separate()
view.on_window(
    "minimap", "Minimap", lambda w: w.preferences.step("minimap"), "Ctrl+M", checkable=True
)
view.on_window(
    "horizontal",
    "Left to right",
    lambda w: w.preferences.step("orientation"),
    "Ctrl+K",
    checkable=True,
)
view.on_page(
    "outline",
    "Outline",
    lambda p: p.toggle_outline(),
    "O",
    tip="The operators as a list beside the graph",
)
view.on_page(
    "log", "Log", lambda p: p.show_log(), "Ctrl+Shift+L", tip="What was reported", needs="document"
)
view.separate()
view.on_window(
    "bigger",
    "Larger text",
    lambda w: w.preferences.step("text_scale", 1),
    "Ctrl+Alt++",
    "Ctrl+Alt+=",
)
view.on_window(
    "smaller", "Smaller text", lambda w: w.preferences.step("text_scale", -1), "Ctrl+Alt+-"
)

graph = Menu("Graph")
graph.on_page(
    "collapse_scopes", "Collapse name scopes", lambda p: p.picture.collapse_scopes(), "Ctrl+Shift+K"
)
graph.on_page(
    "collapse_partitions",
    "Collapse partitions",
    lambda p: p.picture.collapse_partitions(),
    "Ctrl+Alt+K",
    tip="One box for each partition, with its cost",
    needs="placement",
    checkable=True,
)
graph.on_page("expand_all", "Expand everything", lambda p: p.picture.expand_all(), "Ctrl+Shift+E")
graph.separate()
graph.on_page(
    "enter_group",
    "Enter group",
    lambda p: p.picture.enter_group(),
    tip="The Enter key on a box does the same",
    needs="selection",
)
graph.on_page(
    "leave_group",
    "Collapse the surrounding group",
    lambda p: p.picture.leave_group(),
    tip="The Backspace key does the same",
    needs="selection",
)
graph.on_page("back", "Back to what was selected before", lambda p: p.navigation.back(), "Alt+Left")
graph.on_page("forward", "Forward again", lambda p: p.navigation.forward(), "Alt+Right")
graph.separate()
for key, (mode, mode_title) in enumerate(MODES.items(), 1):
    graph.on_page(
        f"colour_{mode.replace('-', '_')}",
        mode_title,
        partial(lambda mode, p: p.picture.set_mode(mode), mode),
        str(key % 10),
        checkable=True,
        exclusive="colour",
    )

pin = Menu("Pin", needs="selection")
pin.on_page(
    "pin_menu",
    "Pin to a toolchain…",
    lambda p: p.pins.open(p.pins.pin_to_menu()),
    "P",
    tip="Demand a toolchain for the selection",
)
pin.on_page(
    "never_menu",
    "Never on a toolchain…",
    lambda p: p.pins.open(p.pins.never_on_menu()),
    "Shift+P",
    tip="Forbid a toolchain for the selection",
)
pin.on_page(
    "exactly",
    "Pin as one partition",
    lambda p: p.pins.pin("exactly", "Pin as one partition"),
    "Ctrl+Alt+P",
)
pin.on_page(
    "together",
    "Keep together",
    lambda p: p.pins.pin("together", "Keep together"),
    "Ctrl+Alt+T",
    tip="In one partition, with others or not",
)
pin.separate()
pin.on_page(
    "keep_partition",
    "Keep this partition",
    lambda p: p.pins.keep_partition(),
    "K",
    tip="Pin the partition as it is now",
)
pin.on_page("pin_all", "Pin all as now", lambda p: p.pins.pin_all(), needs="placement")
pin.separate()
pin.on_page("free", "Unpin the selection", lambda p: p.pins.free_selection(), "Del")
pin.on_page("free_all", "Unpin all", lambda p: p.document.pins.edit((), "Unpin all"), needs="pins")
run = Menu("Run", needs="idle")
run.on_page("run", "Run", lambda p: p.runs.start(), "Ctrl+R", tip="Measure, search, confirm")
run.on_page(
    "search",
    "Search again",
    lambda p: p.runs.search_or_start(),
    "Space",
    tip="On stored costs and under the current pins",
)
run.on_page(
    "run_settings",
    "Settings of the next run…",
    lambda p: p.show_settings(),
    "Ctrl+D",
    tip="Toolchains, precision, limits",
    needs="graph",
)
run.on_page(
    "preflight",
    "Check before running",
    lambda p: p.runs.preflight(),
    "Ctrl+Shift+F",
    tip="Measures nothing",
)
run.on_page(
    "shapes",
    "Choose shapes…",
    lambda p: p.shapes.choose(),
    "Ctrl+Shift+D",
    tip="A run places all of them",
)
run.on_page(
    "confirm_quickly",
    "Confirm quickly",
    lambda p: p.runs.confirm_quickly(),
    "C",
    tip="Times the result against the last run only",
)
run.on_page(
    "stop_and_keep",
    "Stop and keep",
    lambda p: p.runs.stop_and_keep(),
    "Ctrl+Shift+.",
    tip="Confirms the best so far quickly",
    needs="running",
)
run.on_page(
    "cancel",
    "Cancel",
    lambda p: p.runs.cancel(),
    "Ctrl+.",
    tip="What was measured is kept",
    needs="running",
)
run.separate()
run.on_page(
    "measure",
    "Measure the selection",
    lambda p: p.runs.measure(longer=False),
    "Ctrl+T",
    tip="As one partition",
    needs="selection",
)
run.on_page(
    "measure_longer",
    "Measure again, longer",
    lambda p: p.runs.measure(longer=True),
    "Ctrl+Shift+T",
    needs="selection",
)
compare = Menu("Compare", needs="placement")
compare.on_page("runner_up", "Show the runner-up placement", lambda p: p.runs.show_runner_up())
compare.on_page(
    "changes", "Show changes in the graph", lambda p: p.picture.set_mode("changes"), needs="run"
)
compare.separate()
compare.on_page(
    "split",
    "Two placements side by side",
    lambda p: p.split.toggle(),
    "Ctrl+Alt+2",
    tip="With linked pan, zoom and selection",
    needs="two placements",
    checkable=True,
)

export = Menu("Export")
export.on_page(
    "artifact",
    "Compiled artifact…",
    lambda p: p.export.artifact(),
    "Ctrl+Shift+X",
    tip="A folder that runs without the explorer",
    needs="run",
)
export.on_page(
    "report", "Report…", lambda p: p.export.report(), tip="One HTML file with the graph as SVG"
)
export.separate()
export.on_page("png_view", "Visible part as PNG…", lambda p: p.export.png_of_view())
export.on_page("png_whole", "Graph as PNG…", lambda p: p.export.png_of_graph())
export.on_page("svg", "Graph as SVG…", lambda p: p.export.svg())
export.separate()
export.on_page(
    "csv", "Tables as CSV…", lambda p: p.export.csv(), tip="Every table whole, in one folder"
)
export.on_page(
    "json",
    "Run as JSON…",
    lambda p: p.export.json(),
    tip="All that is known of the shown run",
    needs="run",
)

help = Menu("Help")
help.on_window(
    "palette",
    "Actions and shortcuts…",
    lambda w: w.show_palette(),
    "Ctrl+Shift+P",
    "F1",
    tip="Every action by name, and what the mouse does",
)
help.on_window("about", "About", lambda w: w.show_about())

MENUS = (file, edit, view, graph, pin, run, compare, export, help)
ACTIONS = tuple(spec for menu in MENUS for spec in menu.entries if spec is not None)
MENU_OF = {spec.id: menu.title for menu in MENUS for spec in menu.entries if spec is not None}


def is_single_key(keys: str) -> bool:
    """Tells whether a shortcut is one key, at most with Shift: ``F``, ``Space``, ``Shift+P``."""
    return (
        not any(part in keys for part in ("Ctrl", "Alt", "Meta"))
        and not (keys.startswith("F") and keys[1:].isdigit())
        and not keys.startswith("Shift+F")
    )
