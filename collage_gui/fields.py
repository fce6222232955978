"""Defines fields for durations, and fields that the wheel does not change by accident."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, Qt, Signal
from PySide6.QtGui import QValidator
from PySide6.QtWidgets import QAbstractSpinBox, QComboBox, QSpinBox, QToolTip, QWidget

from collage_engine.drawing.formatting import as_sentence, duration_text
from collage_engine.records.durations import parse_duration
from collage_engine.records.errors import InvalidValue
from collage_gui.elided_label import plain_tip

LONGEST_S = 36_000
"""The longest duration that can be chosen, in seconds; chosen, ten hours."""


class DurationField(QSpinBox):
    """A spin box of seconds that shows and reads ``30 s``, ``2 min 30 s``, ``1 h``."""

    refused = Signal(str)
    """Why a text was replaced by the earlier duration; empty once another text is typed."""

    def __init__(self, seconds: int = 600, least: int = 1, none: str = "") -> None:
        """Makes the field.

        Args:
            seconds: The duration at first.
            least: The shortest duration in seconds; 0 allows none.
            none: What the field says at 0.
        """
        super().__init__()
        self.setRange(least, LONGEST_S)
        self.setSpecialValueText(none)
        self.setValue(seconds)
        self.lineEdit().textEdited.connect(lambda _: self.refused.emit(""))

    def seconds(self) -> float:
        """Return the duration in seconds, as ``RunSettings`` has it."""
        return float(self.value())

    def show_seconds(self, seconds: float) -> None:
        """Show the whole seconds of a duration, as near as the field's range allows."""
        self.setValue(round(seconds))

    def textFromValue(self, value: int) -> str:
        """Return the duration as people write it."""
        return duration_text(value)

    def valueFromText(self, text: str) -> int:
        """Returns the seconds of a duration; the earlier ones where the text is none."""
        try:
            return self._seconds(text)
        except InvalidValue:
            return self.value()

    def _seconds(self, text: str) -> int:
        """Return whole seconds within the field's range; InvalidValue where the text is none."""
        body, or_none = text.strip(), not self.minimum()
        if or_none and body in ("none", self.specialValueText()):
            return 0
        seconds = parse_duration(body, or_none=or_none)
        return min(self.maximum(), max(1, round(seconds))) if seconds else 0

    def validate(self, text: str, position: int) -> tuple[QValidator.State, str, int]:
        """Lets any text be typed; what is no duration is put back by ``fixup``."""
        try:
            self._seconds(text)
        except InvalidValue:
            return (QValidator.State.Intermediate, text, position)
        return (QValidator.State.Acceptable, text, position)

    def fixup(self, text: str) -> str:
        """Return the earlier duration, which replaces a text that is none, and say why it does.

        The tip beside the field goes with the next key, Tab included: who shows messages listens
        to ``refused``.
        """
        earlier = self.textFromValue(self.value()) if self.value() else self.specialValueText()
        try:
            self._seconds(text)
        except InvalidValue as error:
            sentence = as_sentence(str(error))
            below = self.mapToGlobal(self.rect().bottomLeft())
            QToolTip.showText(below, plain_tip(sentence), self)
            self.refused.emit(f"{sentence} It stays {earlier}.")
        return earlier

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
