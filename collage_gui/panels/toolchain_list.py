"""The toolchains of a run: which are used, and in which order."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QAbstractItemView, QListWidget, QListWidgetItem

from collage_engine.drawing.palette import toolchain_title
from collage_engine.records.toolchain import ToolchainState
from collage_gui.panels.tables import chip


class ToolchainList(QListWidget):
    """Checked ones are used, from top to bottom; missing ones say what installs them.

    One without its device can be checked, for a run that only compiles (``--target cuda``).
    """

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("toolchainList")
        self.setAccessibleName("Toolchains, in the order of greedy partitioning")
        self.setDragDropMode(QAbstractItemView.DragDropMode.InternalMove)
        self.setIconSize(chip("tvm").actualSize(self.iconSize()))
        self.setWordWrap(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)

    def show_states(self, states: tuple[ToolchainState, ...], chosen: tuple[str, ...]) -> None:
        """The probed toolchains: those that are here first, in the chosen order."""
        self.blockSignals(True)
        self.clear()
        order = {name: at for at, name in enumerate(chosen)}
        for state in sorted(
            states, key=lambda s: (not s.available, not s.builds, order.get(s.name, 99))
        ):
            text = toolchain_title(state.name)
            if state.available:
                text += f"  {state.version or ''}"
            elif state.builds:
                text += (
                    f"  {state.version or ''}\nno device here: compiles for one, without measuring"
                )
            else:
                text += f"\n{state.reason or 'not available'}" + (
                    f"\n{state.install}" if state.install else ""
                )
            item = QListWidgetItem(chip(state.name), text)
            item.setData(Qt.ItemDataRole.UserRole, state.name)
            item.setToolTip("\n".join(filter(None, (state.reason, state.install, state.licence))))
            flags = Qt.ItemFlag.ItemIsSelectable | Qt.ItemFlag.ItemIsDragEnabled
            if state.available or state.builds:
                flags |= Qt.ItemFlag.ItemIsEnabled | Qt.ItemFlag.ItemIsUserCheckable
                on = state.name in chosen if chosen else state.available
                item.setCheckState(Qt.CheckState.Checked if on else Qt.CheckState.Unchecked)
            item.setFlags(flags)
            self.addItem(item)
        self.blockSignals(False)
        metrics = self.fontMetrics().lineSpacing()
        lines = sum(1 if s.available else 2 + bool(s.install and not s.builds) for s in states)
        self.setFixedHeight(min(300, lines * metrics + len(states) * 10 + 8))

    def names(self) -> tuple[str, ...]:
        """The checked ones, in order."""
        return tuple(
            item.data(Qt.ItemDataRole.UserRole)
            for item in self._checkable()
            if item.checkState() == Qt.CheckState.Checked
        )

    def choose(self, toolchains: tuple[str, ...]) -> list[str]:
        """Check exactly these toolchains; returns the names that are unknown or missing."""
        wanted = list(toolchains)
        for item in self._checkable():
            name = item.data(Qt.ItemDataRole.UserRole)
            item.setCheckState(
                Qt.CheckState.Checked if name in toolchains else Qt.CheckState.Unchecked
            )
            if name in wanted:
                wanted.remove(name)
        return wanted

    def _checkable(self) -> list[QListWidgetItem]:
        items = (self.item(at) for at in range(self.count()))
        return [item for item in items if item.flags() & Qt.ItemFlag.ItemIsUserCheckable]
