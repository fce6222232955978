"""Every action as data: menus, toolbar, shortcuts, command palette and help come from this list.

``run`` names a method of the main window, or of the document's window when it starts with a dot.
``needs``: what must be there for it to be enabled.
"""

# ruff: noqa: E501 — the table reads by lines

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
]


@dataclass(frozen=True)
class ActionSpec:
    id: str
    title: str
    menu: str
    run: str
    keys: tuple[str, ...] = ()
    tip: str = ""
    needs: Need = "nothing"
    checkable: bool = False
    group: str = ""
    """Actions of one exclusive group; a separator is drawn where the group changes."""
    argument: str = ""


MENUS = ("File", "Edit", "View", "Graph", "Pin", "Run", "Compare", "Export", "Help")

A = ActionSpec
ACTIONS: tuple[ActionSpec, ...] = (
    A("open", "Open…", "File", "open_dialog", ("Ctrl+O",), "Open a model or a session"),
    A("sample", "Open the sample", "File", "open_sample", (), "A small model that is packaged with the explorer"),
    A("reload", "Reload", "File", "reload", ("F5",), "Import the model file again", "still"),
    A("save", "Save session", "File", "save", ("Ctrl+S",), "Everything of this document in one file", "graph"),
    A("save_as", "Save session as…", "File", "save_as", ("Ctrl+Shift+S",), "", "graph"),
    A("connection", "Connection…", "File", "choose_connection", (), "Where the engine runs", group="engine"),
    A("restart", "Restart the engine", "File", "restart_engine", ("Ctrl+Shift+R",), "Nothing that was measured is lost", group="engine"),
    A("settings", "Settings…", "File", "show_preferences", ("Ctrl+,",), "", group="engine"),
    A("close", "Close document", "File", "close_current", ("Ctrl+W",), "", "document", group="close"),
    A("quit", "Quit", "File", "close", ("Ctrl+Q",), "", group="close"),
    A("undo", "Undo", "Edit", "undo", ("Ctrl+Z",), "", "document"),
    A("redo", "Redo", "Edit", "redo", ("Ctrl+Shift+Z", "Ctrl+Y"), "", "document"),
    A("find", "Find…", "Edit", ".find_in_graph", ("Ctrl+F",), "Text or regular expression", "graph", group="find"),
    A("find_next", "Find next", "Edit", ".find_next", ("F3", "Ctrl+G"), "", "graph", group="find"),
    A("find_previous", "Find previous", "Edit", ".find_previous", ("Shift+F3", "Ctrl+Shift+G"), "", "graph", group="find"),
    A("same_operator", "Highlight all of this operator", "Edit", ".highlight_operator", ("Ctrl+H",), "", "selection", group="find"),
    A("select_partition", "Select the partition", "Edit", ".select_partition", ("Ctrl+E",), "", "selection", group="select"),
    A("select_none", "Select nothing", "Edit", ".select_none", ("Ctrl+Shift+A",), "", "selection", group="select"),
    A("copy_names", "Copy node names", "Edit", ".copy_names", ("Ctrl+Shift+C",), "", "selection", group="select"),
    A("fit", "Fit the graph", "View", ".fit", ("F", "Ctrl+0"), "", "graph"),
    A("zoom_selection", "Zoom to the selection", "View", ".zoom_selection", ("Z",), "", "selection"),
    A("zoom_in", "Zoom in", "View", ".zoom_in", ("Ctrl++", "Ctrl+="), "", "graph"),
    A("zoom_out", "Zoom out", "View", ".zoom_out", ("Ctrl+-",), "", "graph"),
    A("actual", "Actual size", "View", ".zoom_actual", ("Ctrl+1",), "", "graph"),
    A("minimap", "Minimap", "View", "toggle_minimap", ("Ctrl+M",), "", checkable=True, group="look"),
    A("horizontal", "Left to right", "View", "toggle_orientation", ("Ctrl+K",), "", checkable=True, group="look"),
    A("fold", "Fold into columns", "View", "toggle_fold", ("Ctrl+L",), "", checkable=True, group="look"),
    A("theme_system", "Theme: follow the system", "View", "set_theme", (), "", checkable=True, group="theme", argument="system"),
    A("theme_light", "Theme: light", "View", "set_theme", (), "", checkable=True, group="theme", argument="light"),
    A("theme_dark", "Theme: dark", "View", "set_theme", (), "", checkable=True, group="theme", argument="dark"),
    A("theme_contrast", "Theme: high contrast", "View", "set_theme", (), "", checkable=True, group="theme", argument="contrast"),
    A("bigger", "Larger text", "View", "text_larger", ("Ctrl+Alt++", "Ctrl+Alt+="), "", group="text"),
    A("smaller", "Smaller text", "View", "text_smaller", ("Ctrl+Alt+-",), "", group="text"),
    A("collapse_scopes", "Collapse name scopes", "Graph", ".collapse_scopes", ("Ctrl+Shift+K",), "", "graph"),
    A("collapse_partitions", "Collapse partitions", "Graph", ".collapse_partitions", ("Ctrl+Alt+K",), "", "placement"),
    A("expand_all", "Expand everything", "Graph", ".expand_all", ("Ctrl+Shift+E",), "", "graph"),
    A("enter_group", "Enter group", "Graph", ".enter_group", (), "Enter on a box does the same", "selection", group="walk"),
    A("leave_group", "Collapse the group around", "Graph", ".leave_group", (), "Backspace does the same", "selection", group="walk"),
    A("producer", "To the producer", "Graph", ".to_producer", ("Alt+Up",), "", "selection", group="walk"),
    A("consumer", "To the consumer", "Graph", ".to_consumer", ("Alt+Down",), "", "selection", group="walk"),
    A("colour_toolchain", "Colour by toolchain", "Graph", ".set_mode", ("1",), "", "graph", True, "colour", "toolchain"),
    A("colour_cost", "Colour by cost", "Graph", ".set_mode", ("2",), "", "graph", True, "colour", "cost"),
    A("colour_gain", "Colour by gain over the baseline", "Graph", ".set_mode", ("3",), "", "graph", True, "colour", "gain"),
    A("colour_in_place", "Colour by in place against estimated", "Graph", ".set_mode", ("4",), "", "graph", True, "colour", "in-place"),
    A("colour_state", "Colour by measured or estimated", "Graph", ".set_mode", ("5",), "", "graph", True, "colour", "state"),
    A("colour_device", "Colour by device", "Graph", ".set_mode", ("6",), "", "graph", True, "colour", "device"),
    A("colour_changes", "Colour by changes between runs", "Graph", ".set_mode", ("7",), "", "graph", True, "colour", "changes"),
    A("pin_menu", "Pin to a toolchain…", "Pin", ".pin_menu", ("P",), "Demand a toolchain for the selection", "selection"),
    A("never_menu", "Never on a toolchain…", "Pin", ".never_menu", ("Shift+P",), "Forbid a toolchain for the selection", "selection"),
    A("exactly", "As exactly one partition", "Pin", ".pin_exactly", ("Ctrl+Alt+P",), "", "selection"),
    A("together", "Together", "Pin", ".pin_together", ("Ctrl+Alt+T",), "In one partition, others welcome", "selection"),
    A("keep_partition", "Keep this partition", "Pin", ".keep_partition", ("K",), "Pin it as it is now", "selection", group="now"),
    A("pin_all", "Pin all as now", "Pin", ".pin_all", (), "", "placement", group="now"),
    A("free", "Free the selection", "Pin", ".free_selection", ("Del",), "", "selection", group="free"),
    A("free_all", "Free all", "Pin", ".free_all", (), "", "pins", group="free"),
    A("save_pins", "Save pins and placement…", "Pin", ".save_pins", (), "To apply them to the next version of the model", "graph", group="files"),
    A("load_pins", "Apply pins from a file…", "Pin", ".load_pins", (), "Says what no longer matches", "graph", group="files"),
    A("run", "Run", "Run", ".run", ("Ctrl+R",), "Find, measure, search, confirm", "idle"),
    A("search", "Search again", "Run", ".run_or_search", ("Space",), "On stored costs, under the pins", "idle"),
    A("preflight", "Check first", "Run", ".preflight", ("Ctrl+Shift+F",), "What a run would do, before anything is spent", "idle"),
    A("cancel", "Cancel", "Run", ".cancel", ("Ctrl+.",), "What was measured is kept", "running"),
    A("measure", "Measure the selection on every toolchain", "Run", ".measure_selection", ("Ctrl+T",), "As one partition; it joins the search", "selection", group="try"),
    A("measure_longer", "Measure again, longer", "Run", ".measure_longer", ("Ctrl+Shift+T",), "", "selection", group="try"),
    A("own_placement", "Use this placement as a baseline", "Run", ".own_placement", (), "The shown placement with the pins applied by hand; measured in the next run", "placement", group="try"),
    A("runner_up", "Show the runner-up placement", "Compare", ".show_runner_up", (), "", "placement"),
    A("show_last", "Show the last run", "Compare", ".show_last_run", (), "", "run"),
    A("reference_run", "Compare with this run", "Compare", ".use_as_reference", (), "The shown run becomes the reference", "run"),
    A("reference_best", "Compare with the best baseline", "Compare", ".reference_best", (), "", "run"),
    A("changes", "Show changes in the graph", "Compare", ".show_changes", (), "", "run"),
    A("artifact", "Compiled artifact…", "Export", ".export_artifact", ("Ctrl+Shift+X",), "A folder that runs without the explorer", "run"),
    A("report", "Report…", "Export", ".export_report", (), "One HTML file with the graph as SVG", "graph"),
    A("png_view", "Graph as PNG: what is visible…", "Export", ".export_png_view", (), "", "graph", group="pictures"),
    A("png_selection", "Graph as PNG: the selection…", "Export", ".export_png_selection", (), "", "selection", group="pictures"),
    A("png_whole", "Graph as PNG: whole, in tiles…", "Export", ".export_png_whole", (), "", "graph", group="pictures"),
    A("svg", "Graph as SVG…", "Export", ".export_svg", (), "", "graph", group="pictures"),
    A("csv", "Tables as CSV…", "Export", ".export_csv", (), "", "graph", group="tables"),
    A("palette", "Command palette…", "Help", "show_palette", ("Ctrl+Shift+P",), "Every action by name"),
    A("shortcuts", "Shortcuts", "Help", "show_shortcuts", ("F1",), ""),
    A("about", "About", "Help", "show_about", (), ""),
)  # fmt: skip

BY_ID = {spec.id: spec for spec in ACTIONS}


def is_single(keys: str) -> bool:
    """Whether a shortcut is one key, at most with Shift: ``F``, ``Space``, ``Shift+P``."""
    return (
        not any(part in keys for part in ("Ctrl", "Alt", "Meta"))
        and not (keys.startswith("F") and keys[1:].isdigit())
        and not keys.startswith("Shift+F")
    )
