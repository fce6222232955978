"""Copies cells out of any table or tree, by Ctrl+C and a context menu."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractItemView


def allow_copying(view: QAbstractItemView) -> None:
    """Give a view the actions *Copy* (Ctrl+C) and *Copy rows*, also in its context menu."""
    for title, whole_rows in (("Copy", False), ("Copy rows", True)):
        action = QAction(title, view)
        action.triggered.connect(partial(_copy, view, whole_rows))
        view.addAction(action)
        if not whole_rows:
            action.setShortcut(QKeySequence.StandardKey.Copy)
            action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
    view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)


def _copy(view: QAbstractItemView, whole_rows: bool) -> None:
    """Copy the selected cells, or the current one, as tab-separated lines in the shown order.

    Gaps between selected cells are empty cells.
    """
    indexes = view.selectionModel().selectedIndexes() or [view.currentIndex()]
    if whole_rows:
        columns = range(view.model().columnCount())
        indexes = [index.siblingAtColumn(at) for index in indexes for at in columns]
    cells: dict[tuple[int, ...], dict[int, str]] = {}
    for index in indexes:
        cells.setdefault(_path(index), {})[index.column()] = _text(index)
    columns_used = sorted({column for line in cells.values() for column in line})
    lines = (
        "\t".join(line.get(at, "") for at in columns_used) for _, line in sorted(cells.items())
    )
    QGuiApplication.clipboard().setText("\n".join(lines))


def _text(index: QModelIndex) -> str:
    """Returns a cell on one line, so that tabs and line ends keep their meaning."""
    value = index.data(Qt.ItemDataRole.DisplayRole)
    return "" if value is None else " ".join(str(value).split())


def _path(index: QModelIndex) -> tuple[int, ...]:
    """Returns a row's place from the top of a tree; one number in a table."""
    path: list[int] = []
    while index.isValid():
        path.append(index.row())
        index = index.parent()
    return tuple(reversed(path))
