"""Chooses the toolchains of a run and their order."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QAbstractItemView, QListWidget, QListWidgetItem

from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording.titles import toolchain_title
from collage_gui.panels.tables import toolchain_icon
from collage_gui.widgets import plain_tip

NAME = Qt.ItemDataRole.UserRole
ON = Qt.ItemDataRole.UserRole + 1
"""Whether an item is to be checked where the target lets it."""
DEVICES = {"cpu": "processors", "cuda": "NVIDIA devices"}


class ToolchainList(QListWidget):
    """Lists all toolchains; the checked ones are used, from top to bottom.

    Missing ones say what installs them. One without its device can be checked, for a run that
    only compiles. One that has nothing for the run's target cannot be checked and is not used;
    its check comes back with the target.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kind = "cpu"
        self._states: dict[str, ToolchainState] = {}
        self.setObjectName("toolchainList")
        self.setAccessibleName("Toolchains, in the order of greedy partitioning")
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setIconSize(toolchain_icon("").actualSize(self.iconSize()))
        self.setWordWrap(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def show_states(self, states: tuple[ToolchainState, ...], chosen: tuple[str, ...]) -> None:
        """List toolchains, available ones first, in the chosen order.

        Args:
            states: What the engine says of each toolchain.
            chosen: The toolchains of the settings; none means all that are available.
        """
        self._states = {state.name: state for state in states}
        with QSignalBlocker(self):
            self.clear()
            order = {name: at for at, name in enumerate(chosen)}
            for state in sorted(
                states, key=lambda s: (not s.available, not s.builds, order.get(s.name, 99))
            ):
                item = QListWidgetItem(toolchain_icon(state.name), "")
                item.setData(NAME, state.name)
                tip = "\n".join(filter(None, (state.reason, state.install, state.licence)))
                item.setToolTip(plain_tip(tip))
                # What was chosen for one target says nothing about toolchains that are not for it.
                decided = bool(chosen) and state.serves(self._kind)
                item.setData(ON, state.name in chosen if decided else state.available)
                self._show_state(item)
                self.addItem(item)
        self._fit()

    def show_target(self, kind: str) -> None:
        """Let only toolchains be checked that have something for a kind of device."""
        if kind == self._kind:
            return
        for item in self._checkable():
            item.setData(ON, item.checkState() == Qt.CheckState.Checked)
        self._kind = kind
        with QSignalBlocker(self):
            for at in range(self.count()):
                self._show_state(self.item(at))
        self._fit()

    def _show_state(self, item: QListWidgetItem) -> None:
        """Set text, flags and check of an item by its toolchain's state and the target."""
        state = self._states[item.data(NAME)]
        item.setText("\n".join(self._lines(state)))
        flags = Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsDragEnabled
        if state.serves(self._kind) and (state.available or state.builds):
            flags |= Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsUserCheckable
            on = Qt.CheckState.Checked if item.data(ON) else Qt.CheckState.Unchecked
            item.setCheckState(on)
        else:
            item.setData(Qt.ItemDataRole.CheckStateRole, None)
        item.setFlags(flags)

    def _lines(self, state: ToolchainState) -> list[str]:
        title = toolchain_title(state.name)
        if state.available or state.builds:
            title = f"{title}  {state.version or ''}"
        if not state.serves(self._kind):
            return [title, f"only for {' and '.join([DEVICES.get(t, t) for t in state.targets])}"]
        if state.available:
            return [title]
        if state.builds:
            return [title, "no device here: compiles for one, without measuring"]
        return [title, state.reason or "not available", *filter(None, [state.install])]

    def _fit(self) -> None:
        lines = sum(len(self._lines(state)) for state in self._states.values())
        metrics = self.fontMetrics().lineSpacing()
        self.setFixedHeight(min(300, lines * metrics + len(self._states) * 10 + 8))

    def names(self) -> tuple[str, ...]:
        """Return the checked toolchains, in order."""
        return tuple(
            item.data(NAME)
            for item in self._checkable()
            if item.checkState() == Qt.CheckState.Checked
        )

    def _checkable(self) -> list[QListWidgetItem]:
        items = (self.item(at) for at in range(self.count()))
        return [item for item in items if item.flags() & Qt.ItemFlag.ItemIsUserCheckable]
