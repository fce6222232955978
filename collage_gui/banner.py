"""Shows one message at the top of a window, with a button for what can be done about it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtWidgets import QFrame, QHBoxLayout, QLabel, QPushButton, QToolButton


class Banner(QFrame):
    """Is hidden until there is a message; a newer message replaces an older one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.label = QLabel(wordWrap=True)
        self.label.setObjectName(name + "Text")
        self.action = QPushButton()
        self.action.setObjectName(name + "Action")
        self.action.clicked.connect(self._act)
        self.close_button = QToolButton()
        self.close_button.setText("✕")
        self.close_button.setAccessibleName("Dismiss")
        self.close_button.clicked.connect(self.hide)
        self._do: Callable[[], None] | None = None
        self.topic = ""
        box = QHBoxLayout(self)
        box.setContentsMargins(14, 7, 10, 7)
        box.addWidget(self.label, 1)
        box.addWidget(self.action)
        box.addWidget(self.close_button)
        self.hide()

    def show_message(
        self,
        text: str,
        kind: str = "error",
        action: str = "",
        do: Callable[[], None] | None = None,
        topic: str = "",
    ) -> None:
        """Show a message in place of an older one.

        Args:
            text: A sentence.
            kind: ``error``, ``warning`` or ``info``.
            action: Label of a button; without one there is no button.
            do: What the button does.
            topic: A name by which the message can be taken back.
        """
        if text.split(" ", 1)[0].isalpha():
            # A sentence begins with a capital; a file name keeps its own spelling.
            text = text[:1].upper() + text[1:]
        self.label.setText(text)
        self.setAccessibleName(text)
        self.topic = topic
        self._do = do
        self.action.setText(action)
        self.action.setVisible(bool(action))
        if self.property("banner") != kind:
            self.setProperty("banner", kind)
            for widget in (self, self.label):
                widget.style().unpolish(widget)
                widget.style().polish(widget)
        self.show()

    def clear(self, topic: str) -> None:
        """Take back a message of this topic, if it is still shown."""
        if self.topic == topic:
            self.hide()

    def _act(self) -> None:
        do = self._do
        self.hide()
        if do is not None:
            do()
