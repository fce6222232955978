"""Holds the messages for the user, of which the newest is shown until its cause is gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QObject, QTimer, Signal

from collage_gui.theme import ATTENTION_MS

_numbers = itertools.count()


@dataclass(frozen=True)
class Message:
    """A sentence, and what can be done about it."""

    text: str
    kind: str
    """``error``, ``warning`` or ``info``."""
    action: str
    do: Callable[[], None] | None
    topic: str
    number: int
    """The order in which messages came, over all lists of messages."""


class Messages(QObject):
    """One message for each topic; without a topic a newer message replaces an older one."""

    changed = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._by_topic: dict[str, Message] = {}

    def show_message(
        self,
        text: str,
        kind: str = "error",
        action: str = "",
        do: Callable[[], None] | None = None,
        topic: str = "",
    ) -> None:
        """Add a message.

        Args:
            text: A sentence; it is shown as it is, markup included.
            kind: ``error``, ``warning`` or ``info``. An information without a topic and an action
                goes by itself.
            action: Label of a button; without one there is no button.
            do: What the button does.
            topic: The cause, by which the message is taken back.
        """
        if text.split(" ", 1)[0].isalpha():
            # A sentence begins with a capital; a file name keeps its own spelling.
            text = text[:1].upper() + text[1:]
        before = self._by_topic.get(topic)
        again = before is not None and topic and before.text == text
        number = before.number if before is not None and again else next(_numbers)
        message = Message(text, kind, action, do, topic, number)
        self._by_topic[topic] = message
        if kind == "info" and not topic and not action:
            QTimer.singleShot(ATTENTION_MS, self, lambda: self.dismiss(message))
        self.changed.emit()

    def text(self, topic: str) -> str:
        """Return what is said of a topic; empty where nothing is."""
        message = self._by_topic.get(topic)
        return message.text if message is not None else ""

    def clear(self, topic: str = "") -> None:
        """Take back the message of a topic, if there is one."""
        if self._by_topic.pop(topic, None) is not None:
            self.changed.emit()

    def dismiss(self, message: Message) -> None:
        """Take one message back, unless another one of its topic has replaced it."""
        if self._by_topic.get(message.topic) is message:
            self.clear(message.topic)

    @property
    def newest(self) -> Message | None:
        """Returns the message that came last, of those that still hold."""
        return max(self._by_topic.values(), key=lambda each: each.number, default=None)


class DocumentLog(QObject):
    """The log of one document, of which its panel keeps the newest lines."""

    added = Signal(str, str)
    """Level and text of a new line."""

    def add(self, level: str, text: str) -> None:
        """Append a line.

        Args:
            level: ``info``, ``warning``, ``error``, or ``engine`` for its standard error.
            text: One line.
        """
        self.added.emit(level, text)
