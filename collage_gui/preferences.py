"""Stores what the user prefers; every change takes effect at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QObject, QSettings, Signal

from collage_engine.records.settings import RunSettings
from collage_gui.design_units import STEP


@dataclass(frozen=True)
class Preference:
    """One line of the settings page."""

    key: str
    title: str
    default: Any
    choices: tuple[tuple[Any, str], ...] = ()
    """Pairs of a value and its label; empty for a yes/no."""
    page: str = "Appearance"


TEXT_SCALES = tuple(
    (round(STEP**steps, 2), title)
    for steps, title in enumerate(("Small", "Normal", "Large", "Very large"), -1)
)
"""Factors on all text, and what they are called."""

THEMES = (
    ("system", "Follow the system"),
    ("light", "Light"),
    ("dark", "Dark"),
    ("contrast", "High contrast"),
)
DIRECTIONS = (("vertical", "Top to bottom"), ("horizontal", "Left to right"))
PREFERENCES: tuple[Preference, ...] = (
    Preference("theme", "Theme", "system", THEMES),
    Preference("text_scale", "Text size", 1.0, TEXT_SCALES),
    Preference("orientation", "Graph direction", "vertical", DIRECTIONS),
    Preference("fold", "Fold long graphs into columns", True),
    Preference("minimap", "Show the minimap", True),
    Preference("search_on_pin", "Search again as soon as a pin changes", True, page="Runs"),
    Preference("confirm_after_search", "Confirm quickly after such a search", False, page="Runs"),
    Preference("autosave", "Keep a recovery copy of every document", True, page="Safety"),
    Preference("ask_on_close", "Ask before closing what is not saved", True, page="Safety"),
)

BY_KEY = {preference.key: preference for preference in PREFERENCES}


class Preferences(QObject):
    """Typed access to the settings file; ``changed`` names the key that changed."""

    changed = Signal(str)

    def __init__(self, path: str | None = None) -> None:
        super().__init__()
        path = path or os.environ.get("COLLAGE_EXPLORER_SETTINGS")
        if path:
            self.store = QSettings(path, QSettings.Format.IniFormat)
        else:
            self.store = QSettings("collage", "collage-explorer")

    def get(self, key: str) -> Any:
        """Returns the value of a preference; the default where none can be read."""
        default, choices = BY_KEY[key].default, BY_KEY[key].choices
        value = self.store.value(f"preferences/{key}", default, type(default))
        return value if not choices or value in [c for c, _ in choices] else default

    def set(self, key: str, value: Any) -> None:
        """Store a value and announce it."""
        if self.get(key) != value:
            self.store.setValue(f"preferences/{key}", value)
            self.changed.emit(key)

    def step(self, key: str, by: int = 0) -> None:
        """Choose a neighbour among the choices of a preference, or without ``by`` the other one."""
        choices = [choice for choice, _ in BY_KEY[key].choices] or [False, True]
        at = choices.index(self.get(key))
        to = max(0, min(at + by, len(choices) - 1)) if by else 1 - at
        self.set(key, choices[to])

    def last_run(self) -> tuple[int, float]:
        """Returns threads and budget in seconds of the run that was started last."""
        store, usual = self.store, RunSettings()
        threads = store.value("run/threads", usual.threads, int)
        return int(str(threads)), float(str(store.value("run/budget_s", usual.budget_s, float)))

    def remember_run(self, settings: RunSettings) -> None:
        """Have the next document begin with the threads and the budget of a run."""
        self.store.setValue("run/threads", settings.threads)
        self.store.setValue("run/budget_s", settings.budget_s)

    def recent(self) -> list[str]:
        """Returns the files that were opened last, the newest first."""
        paths: Any = self.store.value("recent", [])
        if isinstance(paths, str):
            paths = [paths]
        return [str(path) for path in paths or []]

    def remember(self, path: str) -> None:
        """Put a file first among the recent ones; nine are kept."""
        rest = [other for other in self.recent() if other != path]
        self.store.setValue("recent", [path, *rest][:9])
        self.changed.emit("recent")

    def forget_recent(self) -> None:
        """Forget the recent files."""
        self.store.setValue("recent", [])
        self.changed.emit("recent")
