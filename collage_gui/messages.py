"""Holds the messages for the user; a banner shows the newest until its cause is gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtCore import QEvent, QObject, QTimer, Signal
from PySide6.QtWidgets import QBoxLayout, QFrame, QHBoxLayout, QWidget

from collage_gui.theme import ATTENTION_MS, UNIT
from collage_gui.widgets import lay_out, push_button, text_label, tool_button

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


class Banner(QFrame):
    """Lies over a widget, which therefore never moves; hidden while there is no message."""

    def __init__(self, name: str, over: QWidget, *sources: Messages) -> None:
        """Make the banner.

        Args:
            name: Its object name.
            over: The widget on which it lies.
            sources: The lists of messages; the newest message of all of them is shown.
        """
        super().__init__(over)
        self.setObjectName(name)
        self._over, self._sources = over, sources
        self._message: Message | None = None
        self.label = text_label(name=name + "Text")
        self.action = push_button("", name + "Action", self._act)
        self.close_button = tool_button("✕", "", self._dismiss, "Dismiss")
        parts = ((self.label, 1), self.action, self.close_button)
        self._box = lay_out(QHBoxLayout(self), *parts, edge=1)
        self.hide()
        over.installEventFilter(self)
        for source in sources:
            source.changed.connect(self.refresh)
        self.refresh()

    @property
    def topic(self) -> str:
        """Returns the topic of the message that is shown; empty without one."""
        return self._message.topic if self._message is not None else ""

    def refresh(self) -> None:
        """Show the newest message that still holds."""
        newest = [source.newest for source in self._sources]
        message = max(filter(None, newest), key=lambda each: each.number, default=None)
        if message is self._message:
            return
        self._message = message
        if message is None:
            self.hide()
            return
        self.label.setText(message.text)
        self.setAccessibleName(message.text)
        self.action.setText(message.action)
        self.action.setVisible(bool(message.action))
        if self.property("banner") != message.kind:
            self.setProperty("banner", message.kind)
            for widget in (self, self.label):
                widget.style().unpolish(widget)
                widget.style().polish(widget)
        self.show()
        self.raise_()
        self._place()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Follows the size of what it lies on."""
        if watched is self._over and event.type() == QEvent.Type.Resize:
            self._place()
        return False

    def _place(self) -> None:
        width = self._over.width() - 2 * UNIT
        for way in (QBoxLayout.Direction.LeftToRight, QBoxLayout.Direction.TopToBottom):
            self._box.setDirection(way)
            self._box.activate()
            height = self._box.totalHeightForWidth(width)
            if height < self._over.height():
                break
        self.setGeometry(UNIT, max(0, self._over.height() - height - 1), width, height)

    def _dismiss(self) -> None:
        message = self._message
        for source in self._sources:
            if message is not None:
                source.dismiss(message)

    def _act(self) -> None:
        do = self._message.do if self._message is not None else None
        self._dismiss()
        if do is not None:
            do()
