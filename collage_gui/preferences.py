"""Stores what the user prefers; every change takes effect at once."""

from __future__ import annotations

import os
from typing import Any

from PySide6.QtCore import QObject, QSettings, Signal

from collage_engine.records.settings import RunSettings

STEP = 1.2
"""Factor of one step of what grows in steps, the size of text and the scale of the graph: the
minor third, 6 : 5, of typographic scales (Bringhurst, 8.2)."""

THEMES = {
    "system": "Follow the system",
    "light": "Light",
    "dark": "Dark",
    "contrast": "High contrast",
}
CHOICES: dict[str, tuple[Any, ...]] = {
    "theme": tuple(THEMES),
    "text_scale": tuple(round(STEP**steps, 2) for steps in (0, -1, 1, 2)),
    "orientation": ("vertical", "horizontal"),
}
"""The values that each preference can have, the default first. The scale is a factor on all text.
"""


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
        """Return the value of a preference; the default where none can be read."""
        default = CHOICES[key][0]
        value = self.store.value(f"preferences/{key}", default, type(default))
        return value if value in CHOICES[key] else default

    def set(self, key: str, value: Any) -> None:
        """Store a value and announce it."""
        if self.get(key) != value:
            self.store.setValue(f"preferences/{key}", value)
            self.changed.emit(key)

    def scale_text(self, steps: int) -> None:
        """Make all text so many steps larger, or smaller, as far as there are."""
        scales = sorted(CHOICES["text_scale"])
        at = scales.index(self.get("text_scale")) + steps
        self.set("text_scale", scales[max(0, min(at, len(scales) - 1))])

    def last_run(self) -> tuple[int, float]:
        """Return threads and budget in seconds of the run that was started last."""
        store, usual = self.store, RunSettings()
        threads = store.value("run/threads", usual.threads, int)
        return int(str(threads)), float(str(store.value("run/budget_s", usual.budget_s, float)))

    def remember_run(self, settings: RunSettings) -> None:
        """Have the next document begin with the threads and the budget of a run."""
        self.store.setValue("run/threads", settings.threads)
        self.store.setValue("run/budget_s", settings.budget_s)

    def recent(self) -> list[str]:
        """Return the files that were opened last, the newest first."""
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
