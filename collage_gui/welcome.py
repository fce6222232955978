"""Shows the first page: a sample, files to open, recent files, and what a crash left behind."""

from __future__ import annotations

import os
from collections.abc import Iterable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QColor, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QFrame,
    QHBoxLayout,
    QLabel,
    QProgressBar,
    QPushButton,
    QSizePolicy,
    QVBoxLayout,
    QWidget,
)

from collage_engine.drawing.formatting import elide
from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.toolchain import ToolchainState
from collage_gui.elided_label import plain, plain_tip
from collage_gui.preferences import Preferences
from collage_gui.recovery import Copy
from collage_gui.theme import Theme

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

_TILES = (
    (8, 4, "#009e73"),
    (34, 4, "#009e73"),
    (8, 24, "#0072b2"),
    (34, 24, "#e69f00"),
    (8, 44, "#0072b2"),
    (34, 44, "#e69f00"),
)
"""The emblem's tiles: left, top, colour; of Okabe and Ito's colours, chosen."""


class _Mark(QWidget):
    """Draws the product's mark: a chain of blocks in the toolchains' colours."""

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.theme = theme
        self.setFixedSize(64, 64)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        c = self.theme.colours
        painter.setPen(QColor(c.edge))
        painter.drawLine(20, 18, 20, 46)
        painter.drawLine(44, 18, 44, 46)
        painter.setPen(Qt.PenStyle.NoPen)
        for x, y, colour in _TILES:
            painter.setBrush(QColor(colour))
            painter.drawRoundedRect(x, y, 22, 15, 4, 4)


class WelcomePage(QWidget):
    """The page that is shown while no document is open."""

    open_wanted = Signal()
    sample_wanted = Signal()
    file_wanted = Signal(str)
    recover_wanted = Signal(object)
    discard_wanted = Signal(object)

    def __init__(self, preferences: Preferences, theme: Theme) -> None:
        super().__init__()
        self.preferences, self.theme = preferences, theme
        self.setObjectName("welcomePage")
        title = QLabel("Collage Explorer")
        title.setProperty("title", True)
        line = QLabel(
            "Which toolchain should run which part of a model, so that the whole is fastest?",
            wordWrap=True,
        )
        line.setProperty("quiet", True)
        head = QHBoxLayout()
        head.setSpacing(18)
        head.addWidget(_Mark(theme), 0, Qt.AlignmentFlag.AlignTop)
        texts = QVBoxLayout()
        texts.setSpacing(4)
        texts.addWidget(title)
        texts.addWidget(line)
        head.addLayout(texts, 1)
        self.sample = QPushButton("Open the sample model")
        self.sample.setObjectName("openSample")
        self.sample.setProperty("primary", True)
        self.sample.clicked.connect(self.sample_wanted)
        self.open = QPushButton("Open a model or session…")
        self.open.setObjectName("openFile")
        self.open.setStyleSheet("padding: 7px 18px;")
        self.open.clicked.connect(self.open_wanted)
        buttons = QHBoxLayout()
        buttons.setSpacing(10)
        buttons.addWidget(self.sample)
        buttons.addWidget(self.open)
        buttons.addStretch()
        hint = QLabel("or drop an .onnx or .collage file anywhere in this window")
        hint.setProperty("small", True)
        self.lost = QVBoxLayout()
        self.lost.setSpacing(8)
        self.recent_title = QLabel("Recent")
        self.recent_title.setProperty("heading", True)
        self.recent = QVBoxLayout()
        self.recent.setSpacing(1)
        steps_title = QLabel("How it works")
        steps_title.setProperty("heading", True)
        steps = QVBoxLayout()
        steps.setSpacing(7)
        for number, text in enumerate(
            STEPS,
            1,
        ):
            row = QHBoxLayout()
            figure = QLabel(str(number))
            figure.setProperty("quiet", True)
            figure.setFixedWidth(18)
            body = QLabel(text, wordWrap=True)
            row.addWidget(figure, 0, Qt.AlignmentFlag.AlignTop)
            row.addWidget(body, 1)
            steps.addLayout(row)
        self.engine_title = QLabel("Toolchains on this machine")
        self.engine_title.setProperty("heading", True)
        self.engine = plain(QLabel(STARTING, wordWrap=True))
        self.engine.setObjectName("welcomeEngine")
        self.engine.setProperty("quiet", True)
        self.engine.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self.busy = QProgressBar(textVisible=False)
        self.busy.setObjectName("welcomeBusy")
        self.busy.setAccessibleName("The engine is looking for toolchains")
        self.busy.setRange(0, 0)

        column = QWidget()
        column.setMaximumWidth(760)
        column.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Preferred)
        box = QVBoxLayout(column)
        box.setContentsMargins(32, 24, 32, 24)
        box.setSpacing(10)
        box.addLayout(head)
        box.addSpacing(14)
        box.addLayout(self.lost)
        box.addLayout(buttons)
        box.addWidget(hint)
        box.addSpacing(18)
        halves = QHBoxLayout()
        halves.setSpacing(40)
        one, two = QVBoxLayout(), QVBoxLayout()
        one.setSpacing(8)
        two.setSpacing(8)
        one.addWidget(steps_title)
        one.addLayout(steps)
        one.addStretch()
        two.addWidget(self.recent_title)
        two.addLayout(self.recent)
        two.addSpacing(14)
        two.addWidget(self.engine_title)
        two.addWidget(self.busy)
        two.addWidget(self.engine)
        two.addStretch()
        halves.addLayout(one, 1)
        halves.addLayout(two, 1)
        box.addLayout(halves)
        outer = QVBoxLayout(self)
        outer.addStretch(2)
        middle = QHBoxLayout()
        middle.addStretch(1)
        middle.addWidget(column, 8)
        middle.addStretch(1)
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
            none = QLabel("Files that you open are listed here.")
            none.setProperty("quiet", True)
            self.recent.addWidget(none)
        for path in paths[:6]:
            button = QPushButton(f"{os.path.basename(path)}   {elide(os.path.dirname(path), 34)}")
            button.setProperty("flat", True)
            button.setToolTip(plain_tip(path))
            button.clicked.connect(lambda _=False, p=path: self.file_wanted.emit(p))
            self.recent.addWidget(button)

    def show_lost(self, copies: Iterable[Copy]) -> None:
        """Offer to restore what a crash left behind."""
        _empty(self.lost)
        for copy in copies:
            card = QFrame()
            card.setProperty("banner", "warning")
            row = QHBoxLayout(card)
            name = os.path.basename(copy.saved_as or copy.source) or "a document"
            text = f"{name} was open when the explorer ended unexpectedly."
            row.addWidget(plain(QLabel(text, wordWrap=True)), 1)
            restore = QPushButton("Restore")
            restore.setObjectName("restore")
            restore.clicked.connect(lambda _=False, c=copy: self.recover_wanted.emit(c))
            drop = QPushButton("Discard")
            drop.setObjectName("discard")
            drop.clicked.connect(lambda _=False, c=copy: self.discard_wanted.emit(c))
            row.addWidget(restore)
            row.addWidget(drop)
            self.lost.addWidget(card)

    def show_probing(self, number: int, total: int) -> None:
        """Show how many toolchains have been looked for.

        Args:
            number: Of the one that is being looked for, from 1.
            total: How many there are.
        """
        self.busy.setRange(0, total)
        self.busy.setValue(max(self.busy.value(), number - 1))
        self.engine.setText(examining_toolchain(number, total))

    def show_engine(self, device: str, states: Iterable[ToolchainState]) -> None:
        """Show the toolchains of the engine.

        Args:
            device: Name of the engine's machine.
            states: Its toolchains, available or not.
        """
        self.engine_title.setText(f"Toolchains on {device}" if device else "Toolchains")
        states = list(states)
        lines = []
        has_device = any(set(state.devices) - {"cpu"} for state in states if state.available)
        # Without a device nothing is gained by installing what is for devices only.
        useless = [s for s in states if not (s.available or s.serves("cpu") or has_device)]
        states = [state for state in states if state not in useless]
        for state in sorted(states, key=lambda s: not s.available):
            if state.available:
                lines.append(f"✓ {toolchain_title(state.name)} {state.version or ''}")
            elif state.install:
                lines.append(f"– {toolchain_title(state.name)}: {state.install}")
        missing = [s for s in states if not s.available and not s.install]
        if missing:
            lines.append(f"– not installed: {', '.join(toolchain_title(s.name) for s in missing)}")
        if useless:
            names = ", ".join(toolchain_title(s.name) for s in useless)
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


def examining_toolchain(number: int, total: int) -> str:
    """Say which of the toolchains the engine is looking for."""
    return STARTING.replace("toolchains…", f"toolchains: {number} of {total}.", 1)
