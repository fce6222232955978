"""Shows the first page: a sample, files to open, recent files, and what a crash left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtGui import QIcon
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.layout import AT_A_GLANCE
from collage_engine.records.toolchain import ToolchainState
from collage_engine.support.files import resource
from collage_engine.wording.amounts import elide
from collage_engine.wording.titles import toolchain_title
from collage_gui.main_window.documents import Documents
from collage_gui.preferences import Preferences
from collage_gui.recovery import name_of
from collage_gui.theme import LINE_LETTERS, UNIT
from collage_gui.widgets import lay_out, named, plain_tip, push_button, text_label

OnCopy = Callable[[Path], object]
STARTING = (
    "Looking for toolchains… At the first start their adapters are compiled once, which takes "
    "half a minute to two minutes. A model can be opened meanwhile."
)
STEPS = (
    "Open a model: its operators are drawn as a graph.",
    "Run: every sub-graph that a toolchain could take is measured, then the fastest placement is "
    "searched and confirmed end to end.",
    "Ask: select a node to see its candidates, their costs, and why one was chosen.",
    "Pin: demand a toolchain for some nodes and see at once what it costs.",
    "Export: a compiled module that runs without the explorer.",
)


class WelcomePage(QWidget):
    """The page that is shown while no document is open."""

    def __init__(
        self, preferences: Preferences, documents: Documents, recover: OnCopy, discard: OnCopy
    ) -> None:
        """Make the page.

        Args:
            preferences: Know the recent files.
            documents: Open files.
            recover: Restores what a crash left behind.
            discard: Removes it.
        """
        super().__init__()
        self.preferences, self._documents = preferences, documents
        self._recover, self._discard = recover, discard
        self.setObjectName("welcomePage")
        line = "Which toolchain should run which part of a model, so that the whole is fastest?"
        titles = (text_label("Collage Explorer", "title"), text_label(line, "quiet"))
        texts = lay_out(QVBoxLayout(), *titles, gap=0.5)
        emblem = QLabel()
        icon = QIcon(str(resource("icons/collage-explorer.svg")))
        emblem.setPixmap(icon.pixmap(8 * UNIT, 8 * UNIT))
        mark = (emblem, 0, Qt.AlignmentFlag.AlignTop)
        head = lay_out(QHBoxLayout(), mark, (texts, 1), gap=2)
        self.sample = push_button("Open the sample model", "openSample", documents.open_sample)
        self.sample.setProperty("primary", True)
        self.open = push_button("Open a model or session…", "openFile", documents.open_dialog)
        self.open.setStyleSheet("padding: 7px 18px;")
        buttons = lay_out(QHBoxLayout(), self.sample, self.open, None, gap=1)
        drop = "or drop an .onnx or .collage file anywhere in this window"
        self.lost = lay_out(QVBoxLayout(), gap=1)
        self.recent = lay_out(QVBoxLayout(), gap=0)
        self.engine_title = text_label("Toolchains on this machine", "heading")
        self.engine = text_label(STARTING, "quiet", "welcomeEngine")
        self.engine.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        title = "The engine is looking for toolchains"
        self.busy = named(QProgressBar(textVisible=False), "welcomeBusy", title)
        self.busy.setRange(0, 0)

        items = "".join(f"<li style='margin-bottom: 8px'>{step}</li>" for step in STEPS)
        steps = QLabel(f"<ol style='-qt-list-indent: 0; margin-left: 18px'>{items}</ol>")
        steps.setWordWrap(True)
        one = lay_out(QVBoxLayout(), text_label("How it works", "heading"), steps, None, gap=1)
        recent = (text_label("Recent", "heading"), self.recent, 2)
        engine = (self.engine_title, self.busy, self.engine, None)
        two = lay_out(QVBoxLayout(), *recent, *engine, gap=1)
        halves = lay_out(QHBoxLayout(), (one, 1), (two, 1), gap=5)
        column = QWidget()
        column.setMaximumWidth(760)
        column.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        parts = (head, 2, self.lost, buttons, text_label(drop, "small"), 2, halves)
        lay_out(QVBoxLayout(column), *parts, edge=4, gap=1)
        middle = QHBoxLayout()
        middle.addStretch(1)
        middle.addWidget(column, 8)
        middle.addStretch(1)
        outer = QVBoxLayout(self)
        outer.addStretch(2)
        outer.addLayout(middle)
        outer.addStretch(3)
        preferences.changed.connect(self._preference)
        self.refresh()

    def _preference(self, key: str) -> None:
        if key == "recent":
            self.refresh()

    def refresh(self) -> None:
        """List the recent files."""
        _empty(self.recent)
        paths = self.preferences.recent()
        if not paths:
            self.recent.addWidget(text_label("Files that you open are listed here.", "quiet"))
        for path in paths[:AT_A_GLANCE]:
            text = f"{os.path.basename(path)}   {elide(os.path.dirname(path), LINE_LETTERS // 2)}"
            button = push_button(
                text, "", lambda _=False, p=path: self._documents.open_path(p), plain_tip(path)
            )
            button.setProperty("flat", True)
            self.recent.addWidget(button)

    def show_lost(self, copies: Iterable[Path]) -> None:
        """Offer to restore what a crash left behind."""
        _empty(self.lost)
        for copy in copies:
            card = QFrame()
            card.setProperty("banner", "warning")
            text = f"{name_of(copy)} was open when the explorer ended unexpectedly."
            restore = push_button("Restore", "restore", lambda _=False, c=copy: self._recover(c))
            drop = push_button("Discard", "discard", lambda _=False, c=copy: self._discard(c))
            lay_out(QHBoxLayout(card), (text_label(text), 1), restore, drop)
            self.lost.addWidget(card)

    def show_probing(self, number: int, total: int) -> None:
        """Show how many toolchains have been looked for.

        Args:
            number: Of the one that is being looked for, from 1.
            total: How many there are.
        """
        self.busy.setRange(0, total)
        self.busy.setValue(max(self.busy.value(), number - 1))
        text = STARTING.replace("toolchains…", f"toolchains: {number} of {total}.", 1)
        self.engine.setText(text)

    def show_engine(self, device: str, states: Iterable[ToolchainState]) -> None:
        """Show the toolchains of the engine.

        Args:
            device: Name of the engine's machine.
            states: Its toolchains, available or not.
        """
        self.engine_title.setText(f"Toolchains on {device}" if device else "Toolchains")
        states = sorted(states, key=lambda state: not state.available)
        has_device = any(set(state.devices) - {"cpu"} for state in states if state.available)
        lines, useless = [], []
        for state in states:
            title = toolchain_title(state.name)
            if state.available:
                lines.append(f"✓ {title} {state.version or ''}")
            elif has_device or state.serves("cpu"):
                lines.append(f"– {title}: {state.install or 'not installed'}")
            else:  # nothing is gained by installing it
                useless.append(title)
        if useless:
            names = ", ".join(useless)
            lines.append(f"– only for NVIDIA devices, of which there is none here: {names}")
        self.engine.setText("\n".join(lines))
        self.busy.hide()

    def show_engine_trouble(self, reason: str) -> None:
        """Show why there is no engine."""
        self.engine.setText(reason[:1].upper() + reason[1:])
        self.busy.hide()


def _empty(box: QVBoxLayout) -> None:
    while (item := box.takeAt(0)) is not None:
        widget = item.widget()
        if widget is not None:
            widget.deleteLater()
