"""Shows one message over the lower edge of a widget, with a button for what can be done."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject
from PySide6.QtWidgets import QFrame, QHBoxLayout, QWidget

from collage_gui.messages import Message, Messages
from collage_gui.theme import UNIT
from collage_gui.widgets import lay_out, push_button, text_label, tool_button


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
        lay_out(QHBoxLayout(self), *parts, edge=1)
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
        box = self.layout()
        assert box is not None
        box.activate()
        height = box.totalHeightForWidth(width)
        self.setGeometry(UNIT, self._over.height() - height - 1, width, height)

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
