"""Copies cells out of any table or tree, by Ctrl+C and a context menu."""

from __future__ import annotations

from PySide6.QtCore import (
    QItemSelectionRange,
    QModelIndex,
    QObject,
    QPoint,
    Qt,
)
from PySide6.QtGui import QAction, QGuiApplication, QKeySequence
from PySide6.QtWidgets import QAbstractItemView, QMenu


class Copying(QObject):
    """Gives ``view`` the actions *Copy* (Ctrl+C) and *Copy rows*.

    *Copy* takes the selected cells as tab-separated lines, gaps as empty cells; without a
    selection the current cell.
    """

    def __init__(self, view: QAbstractItemView) -> None:
        super().__init__(view)
        self.view = view
        self.copy_action = QAction("Copy", view)
        self.copy_action.setShortcut(QKeySequence.StandardKey.Copy)
        self.copy_action.setShortcutContext(Qt.ShortcutContext.WidgetShortcut)
        self.copy_action.triggered.connect(self.copy)
        view.addAction(self.copy_action)
        view.setContextMenuPolicy(Qt.ContextMenuPolicy.CustomContextMenu)
        view.customContextMenuRequested.connect(self._popup)

    def copy(self) -> None:
        """Copies the selected cells as text, in the order in which they are shown."""
        cells = self._selected()
        if not cells:
            current = self.view.currentIndex()
            self._put([_text(current)] if current.isValid() else [])
            return
        columns = sorted({c for line in cells.values() for c in line})
        self._put(["\t".join(line.get(c, "") for c in columns) for line in cells.values()])

    def copy_rows(self) -> None:
        """Copies every cell of the rows that hold a selected cell."""
        columns = range(self.view.model().columnCount())
        rows = self._rows()
        self._put(["\t".join(_text(row.siblingAtColumn(c)) for c in columns) for row in rows])

    def menu(self) -> QMenu:
        """Returns a menu of what can be copied."""
        menu = QMenu(self.view)
        menu.addAction(self.copy_action)
        rows = len(self._selected())
        menu.addAction(f"Copy {rows} rows" if rows > 1 else "Copy row", self.copy_rows)
        return menu

    def _popup(self, where: QPoint) -> None:
        menu = self.menu()
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.popup(self.view.viewport().mapToGlobal(where))

    def _rows(self) -> list[QModelIndex]:
        rows: dict[tuple[int, ...], QModelIndex] = {}
        for part in ranges(self.view):
            for row in range(part.top(), part.bottom() + 1):
                index = self.view.model().index(row, 0, part.parent())
                rows[_path(index)] = index
        return [rows[path] for path in sorted(rows)]

    def _selected(self) -> dict[tuple[int, ...], dict[int, str]]:
        """Returns, by the place of a row, its selected cells' texts by column."""
        model = self.view.model()
        cells: dict[tuple[int, ...], dict[int, str]] = {}
        for part in ranges(self.view):
            for row in range(part.top(), part.bottom() + 1):
                first = model.index(row, 0, part.parent())
                line = cells.setdefault(_path(first), {})
                for column in range(part.left(), part.right() + 1):
                    line[column] = _text(first.siblingAtColumn(column))
        return dict(sorted(cells.items()))

    def _put(self, lines: list[str]) -> None:
        QGuiApplication.clipboard().setText("\n".join(lines))


def ranges(view: QAbstractItemView) -> list[QItemSelectionRange]:
    """Returns the selected blocks: few, however many cells are selected."""
    selection = view.selectionModel().selection()
    return [selection.at(at) for at in range(selection.count())]


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
