"""Shows one message at the top of a window, with a button for what can be done about it."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPushButton, QToolButton

from collage_gui import words
from collage_gui.elided_label import ElidedLabel


class Banner(QFrame):
    """Is hidden until there is a message; a newer message replaces an older one.

    A message takes one line; where it is cut, a button shows all of it.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.setObjectName(name)
        self.label = ElidedLabel()
        self.label.setObjectName(name + "Text")
        self.more = QToolButton()
        self.more.setObjectName(name + "More")
        self.more.setText("More")
        self.more.setCheckable(True)
        self.more.setToolTip(words.SHOW_THE_WHOLE_MESSAGE)
        self.more.toggled.connect(self._show_all)
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
        box.setContentsMargins(14, 3, 10, 3)
        box.addWidget(self.label, 1)
        box.addWidget(self.more)
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
            text: A sentence; it is shown as it is, markup included.
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
        self.more.setChecked(False)
        if self.property("banner") != kind:
            self.setProperty("banner", kind)
            for widget in (self, self.label):
                widget.style().unpolish(widget)
                widget.style().polish(widget)
        self.show()
        self._offer_more()

    def clear(self, topic: str) -> None:
        """Take back a message of this topic, if it is still shown."""
        if self.topic == topic:
            self.hide()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Offers the whole message where it does not fit."""
        super().resizeEvent(event)
        self._offer_more()

    def _offer_more(self) -> None:
        self.more.setVisible(self.more.isChecked() or self.label.is_cut)

    def _show_all(self, whole: bool) -> None:
        self.more.setText("Less" if whole else "More")
        self.label.setWordWrap(whole)
        self.label.updateGeometry()
        self.label.update()

    def _act(self) -> None:
        do = self._do
        self.hide()
        if do is not None:
            do()
