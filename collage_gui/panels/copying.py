"""Copies rows and cells out of any table or tree, by Ctrl+C and a context menu."""

from __future__ import annotations

from PySide6.QtCore import QModelIndex, Qt
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractItemView


def allow_copying(view: QAbstractItemView) -> None:
    """Give a view the actions *Copy* (Ctrl+C) and *Copy cell*, also in its context menu."""
    rows, cell = QAction("Copy", view), QAction("Copy cell", view)
    rows.setShortcut(QKeySequence.StandardKey.Copy)
    rows.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
    rows.triggered.connect(lambda: QGuiApplication.clipboard().setText(_rows_text(view)))
    cell.triggered.connect(lambda: QGuiApplication.clipboard().setText(_text(view.currentIndex())))
    view.addActions([rows, cell])
    view.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)


def _rows_text(view: QAbstractItemView) -> str:
    """Return the selected rows as tab-separated lines, in the shown order."""
    columns = range(view.model().columnCount())
    rows = sorted(view.selectionModel().selectedRows(), key=_path)
    return "\n".join("\t".join(_text(row.siblingAtColumn(at)) for at in columns) for row in rows)


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
