"""Defines fields for durations, and fields that the wheel does not change by accident."""

from __future__ import annotations

import re

from PySide6.QtCore import QEvent, QObject, Qt
from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QAbstractSpinBox, QComboBox, QSpinBox, QWidget

from collage_engine.drawing.formatting import duration_text

LONGEST_S = 36_000
"""The longest duration that can be chosen, in seconds; chosen, ten hours."""
_UNITS = {"": 60, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
"""Seconds of a unit; a bare number means minutes."""
_PART = re.compile(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([a-z]*)\s*")


def parse_duration(text: str) -> int | None:
    """Read a duration: ``30 s``, ``25s``, ``2 min 30 s``, ``0.5`` (minutes), ``1 h``.

    Returns:
        Whole seconds, at least one; None where the text is no duration.
    """
    seconds, at, lowered = 0.0, 0, text.strip().lower()
    while at < len(lowered):
        found = _PART.match(lowered, at)
        if found is None or found.group(2) not in _UNITS:
            return None
        seconds += float(found.group(1)) * _UNITS[found.group(2)]
        at = found.end()
    return max(1, round(seconds)) if seconds > 0 else None


class DurationField(QSpinBox):
    """A spin box of seconds that shows and reads ``30 s``, ``2 min 30 s``, ``1 h``."""

    def __init__(self, seconds: int, least: int = 1, none: str = "", prefix: str = "") -> None:
        """Makes the field.

        Args:
            seconds: The duration at first.
            least: The shortest duration in seconds; 0 allows none.
            none: What the field says at 0.
            prefix: What stands before the duration.
        """
        super().__init__()
        self.setRange(least, LONGEST_S)
        self.setSpecialValueText(none)
        self.setPrefix(prefix)
        self.setValue(seconds)

    def textFromValue(self, value: int) -> str:
        """Return the duration as people write it."""
        return duration_text(value)

    def valueFromText(self, text: str) -> int:
        """Returns the seconds of a duration; the earlier ones where the text is none."""
        body = text.removeprefix(self.prefix()).strip()
        if self.specialValueText() and text.strip() == self.specialValueText():
            return self.minimum()
        if not self.minimum() and body in ("0", "0 s", "none"):
            return 0
        found = parse_duration(body)
        return self.value() if found is None else max(self.minimum(), min(self.maximum(), found))

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        """Accepts any text; what is no duration is put back by ``fixup``."""
        return (QValidator.State.Acceptable, text, position)

    def fixup(self, text: str) -> str:
        """Returns what replaces a text that is no duration."""
        return self.textFromValue(self.value())

    def stepBy(self, steps: int) -> None:
        """Steps by 10 s below a minute, by a minute below an hour, else by 10 min."""
        for _ in range(abs(steps)):
            value = self.value() if steps > 0 else self.value() - 1
            step = 10 if value < 60 else 60 if value < 3600 else 600
            now = self.value()
            self.setValue((now // step + 1) * step if steps > 0 else ((now - 1) // step) * step)


class _WheelGuard(QObject):
    """Hands the wheel of a field that has no focus to what lies around the field."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Ignores the wheel over a field without the focus."""
        turned = event.type() == QEvent.Type.Wheel
        if turned and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def keep_from_wheel(parent: QWidget) -> None:
    """Let the wheel change only that choice or number below a widget that has the focus."""
    guard = _WheelGuard(parent)
    for kind in (QAbstractSpinBox, QComboBox):
        for field in parent.findChildren(kind):
            field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            field.installEventFilter(guard)
