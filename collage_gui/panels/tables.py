"""Sorts and filters the rows of a table model by an index list, and copies rows and cells.

``QSortFilterProxyModel`` over a Python model needs 16 s to sort 50,000 rows (measured), since it
asks for each value many times. Rows are any objects; columns are data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from PySide6.QtCore import (
    QAbstractTableModel,
    QItemSelectionModel,
    QModelIndex,
    QPersistentModelIndex,
    QSignalBlocker,
    Qt,
)
from PySide6.QtGui import (
    QAction,
    QFont,
    QGuiApplication,
    QIcon,
    QKeyEvent,
    QKeySequence,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QAbstractItemView,
    QMenu,
    QTableView,
    QToolButton,
    QWidget,
)

from collage_engine.drawing.palette import Look, toolchain_look
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.format import border_words
from collage_engine.records.placement import Partition
from collage_engine.wording.amounts import (
    DASH,
    LEAST_US,
    MINUS,
    bytes_text,
    number_text,
    significant,
)
from collage_engine.wording.titles import toolchain_title
from collage_gui.graph_view.painter import CHIP, chip
from collage_gui.theme import Theme
from collage_gui.widgets import named, plain_tip, tool_button


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
    rows = view.selectionModel().selectedRows()
    rows.sort(key=lambda row: view.visualRect(row).top())
    return "\n".join("\t".join(_text(row.siblingAtColumn(at)) for at in columns) for row in rows)


def _text(index: QModelIndex) -> str:
    """Return a cell on one line, so that tabs and line ends keep their meaning."""
    value = index.data(Qt.ItemDataRole.DisplayRole)
    return "" if value is None else " ".join(str(value).split())


Index = QModelIndex | QPersistentModelIndex


@dataclass(frozen=True)
class Column:
    """A column of a table, which shows a value of each row and can be sorted by it."""

    title: str
    value: Callable[[Any], Any]
    kind: Literal["text", "number", "time", "signed-time", "percent", "bytes"] = "text"
    about: str = ""
    """The tip of the column's header, which says what the column is."""
    tip: Callable[[Any], str] | None = None
    """The tip of a cell; by default its whole text."""
    toolchain: Callable[[Any], str | None] | None = None
    """A toolchain whose chip is drawn before the text."""
    width: int = 0
    """Least width at first, in pixels at 100 %; never less than the title needs."""
    stretches: bool = False
    """Whether it takes the width that the other columns leave."""
    optional: bool = False
    """Whether it is hidden while no row has a value."""
    extra: bool = False
    """Whether it is hidden until the user asks for it, in the list of columns."""

    @property
    def unit(self) -> str:
        """Returns the unit that its title names where no value asks for another one."""
        times = self.kind in ("time", "signed-time")
        return "µs" if times else "%" if self.kind == "percent" else ""


def toolchain_column(
    title: str, instance: Callable[[Any], str | None], tip: Callable[[Any], str] | None = None
) -> Column:
    """Return a column of toolchains by their titles, each after its chip; None leaves a gap."""
    return Column(
        title,
        lambda row: toolchain_title(instance(row)),
        tip=tip,
        toolchain=instance,
        width=TOOLCHAIN_PX,
    )


def border_text(row: Partition | CandidateRecord) -> str | None:
    """Return the formats of what is taken and given; None where all is plain."""
    return border_words(row.takes, row.gives) or None


class RowsModel(QAbstractTableModel):
    """Rows under an index list: ``order[i]`` is the number of the row at place ``i``."""

    def __init__(self, columns: Sequence[Column], parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.columns = list(columns)
        self.rows: list[Any] = []
        self.order: list[int] = []
        self._sorted: tuple[int, Qt.SortOrder] | None = None
        self._filter = ""
        self._units = [(column.unit, 1.0) for column in self.columns]
        """What a column's title says its numbers are in, and the factor that makes them so."""
        self.bold: Callable[[Any], bool] | None = None
        self.faded: Callable[[Any], bool] | None = None

    # -- content -----------------------------------------------------------------------

    def set_rows(self, rows: Sequence[Any]) -> None:
        """Show other rows, in the order and with the filter of the earlier ones."""
        self.beginResetModel()
        self.rows = list(rows)
        self._choose_units()
        self._reorder()
        self.endResetModel()

    def refresh(self) -> None:
        """Show new values of the same rows."""
        self.layoutAboutToBeChanged.emit()
        shown = [id(self.rows[at]) for at in self.order]
        persistent = self.persistentIndexList()
        held = [(index, shown[index.row()]) for index in persistent if index.row() < len(shown)]
        self._choose_units()
        self._reorder()
        row_of = {id(self.rows[at]): i for i, at in enumerate(self.order)}
        for index, row in held:
            now = row_of.get(row, -1)
            to = self.index(now, index.column()) if now >= 0 else QModelIndex()
            self.changePersistentIndex(index, to)
        self.layoutChanged.emit()

    def set_filter(self, text: str) -> None:
        """Show only the rows whose shown text contains all words of ``text``."""
        self.beginResetModel()
        self._filter = text.strip().lower()
        self._reorder()
        self.endResetModel()

    def row(self, index: Index) -> Any:
        """Return the row at an index."""
        return self.rows[self.order[index.row()]]

    def _choose_units(self) -> None:
        """Time share one unit in a table, which the headers name."""
        times = [at for at, column in enumerate(self.columns) if column.unit == "µs"]
        numbers = (abs(v) for at in times for v in self._numbers(self.columns[at]))
        finite = [v for v in numbers if math.isfinite(v)]
        middle = statistics.median(finite) if finite else 0.0
        for at in times:
            self._units[at] = ("ms", 1e-3) if middle >= 10_000 else ("µs", 1.0)

    def _numbers(self, column: Column) -> list[float]:
        values = (column.value(row) for row in self.rows)
        return [float("nan") if value is None else float(value) for value in values]

    def _reorder(self) -> None:
        words = self._filter.split()
        order = [at for at, row in enumerate(self.rows) if self._matches(row, words)]
        if self._sorted is not None:
            number, direction = self._sorted
            column = self.columns[number]
            keys = {at: _sort_key(column, self.rows[at]) for at in order}
            # Unknown and infinite values come last, whatever the direction.
            with_key = [at for at in order if keys[at] is not None]
            with_key.sort(key=keys.__getitem__, reverse=direction == Qt.SortOrder.DescendingOrder)
            order = with_key + [at for at in order if keys[at] is None]
        self.order = order

    def _matches(self, row: Any, words: list[str]) -> bool:
        if not words:
            return True
        text = " ".join(self._text(row, at) for at in range(len(self.columns))).lower()
        return all(word in text for word in words)

    def _text(self, row: Any, at: int) -> str:
        column = self.columns[at]
        value = column.value(row)
        if value is None:
            return DASH
        if column.kind == "text":
            return str(value)
        if column.kind == "bytes":
            return bytes_text(value)
        if column.kind == "number":
            return number_text(value) if isinstance(value, int) else significant(value)
        digits = 3
        if column.unit == "µs" and abs(value) < 10 * LEAST_US:
            digits, value = 1, value if abs(value) >= LEAST_US else 0.0
        value = float(value) * self._units[at][1]
        if math.isnan(value):
            return DASH
        if column.kind == "percent":
            return f"{'+' if value > 0 else MINUS if value < 0 else ''}{abs(value):.1f}"
        text = significant(value, digits)
        return "+" + text if column.kind == "signed-time" and value > 0 else text

    # -- Qt ----------------------------------------------------------------------------

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - an invalid index is immutable
        """Return how many rows the filter lets through."""
        return 0 if parent.isValid() else len(self.order)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008 - an invalid index is immutable
        """Return how many columns there are; rows have no children."""
        return 0 if parent.isValid() else len(self.columns)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = 0) -> Any:
        """Return a column's title with its unit, its alignment, and its explanation as a tip."""
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            unit = self._units[section][0]
            return f"{self.columns[section].title}, {unit}" if unit else self.columns[section].title
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(section)
        if role == Qt.ItemDataRole.ToolTipRole:
            return self.columns[section].about or None
        return None

    def _alignment(self, section: int) -> int:
        side = (
            Qt.AlignmentFlag.AlignLeft
            if self.columns[section].kind == "text"
            else Qt.AlignmentFlag.AlignRight
        )
        return int(side | Qt.AlignmentFlag.AlignVCenter)

    def data(self, index: Index, role: int = 0) -> Any:
        """Return a cell's text, alignment, tip, icon, font and colour."""
        if not index.isValid():
            return None
        row = self.row(index)
        column = self.columns[index.column()]
        if role in (Qt.ItemDataRole.DisplayRole, Qt.ItemDataRole.AccessibleTextRole):
            return self._text(row, index.column())
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return self._alignment(index.column())
        if role == Qt.ItemDataRole.ToolTipRole:
            tip = column.tip(row) if column.tip is not None else self._text(row, index.column())
            return plain_tip(tip)
        if role == Qt.ItemDataRole.DecorationRole and column.toolchain is not None:
            name = column.toolchain(row)
            return toolchain_icon(name) if name else None
        if role == Qt.ItemDataRole.FontRole and self.bold is not None and self.bold(row):
            font = QGuiApplication.font()
            font.setWeight(QFont.Weight.DemiBold)
            return font
        if role == Qt.ItemDataRole.ForegroundRole and self.faded is not None and self.faded(row):
            return QGuiApplication.palette().placeholderText()
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column; unknown values come last."""
        self._sorted = (column, order) if 0 <= column < len(self.columns) else None
        self.refresh()


def _sort_key(column: Column, row: Any) -> Any:
    """Return by what a row is sorted; None where that is unknown or infinite."""
    value = column.value(row)
    if column.kind == "text":
        return str(value or "").lower()
    return None if value is None or not math.isfinite(value) else value


TOOLCHAIN_PX = 148
"""Width of a column of toolchains, in pixels: a chip and the longest title without options."""
TITLE_PX = 24
"""Width of the margins of a column's title, in pixels; the style sheet's, and room for rounding."""
_icons: dict[Look, QIcon] = {}


def toolchain_icon(toolchain: str) -> QIcon:
    """Return a toolchain's colour, pattern and letters as a small picture.

    Args:
        toolchain: Its name, or the id of an instance.
    """
    look = toolchain_look(toolchain.split("[", 1)[0])
    if look not in _icons:
        _icons[look] = chip(look, look.colour)
    return _icons[look]


class Table(QTableView):
    """A sortable table without a grid, of which rows are chosen: the graph shows them."""

    def __init__(self, model: RowsModel, name: str, title: str, theme: Theme) -> None:
        super().__init__()
        self.rows_model = model
        self.theme = theme
        self.setModel(model)
        named(self, name, title)
        self.setShowGrid(False)
        self.setWordWrap(False)
        self.setSelectionBehavior(QAbstractItemView.SelectionBehavior.SelectRows)
        self.setSelectionMode(QAbstractItemView.SelectionMode.ExtendedSelection)
        self.setSortingEnabled(True)
        self.horizontalHeader().setSortIndicator(-1, Qt.SortOrder.AscendingOrder)
        self.setHorizontalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setVerticalScrollMode(QAbstractItemView.ScrollMode.ScrollPerPixel)
        self.setTabKeyNavigation(False)
        self.setIconSize(CHIP)
        self.verticalHeader().hide()
        header = self.horizontalHeader()
        header.setHighlightSections(False)
        header.setDefaultAlignment(Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter)
        header.setStretchLastSection(not any(column.stretches for column in model.columns))
        header.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        for at, column in enumerate(model.columns):
            if column.extra:
                self.hideColumn(at)
                action = QAction(column.title, header, checkable=True, toolTip=column.about)
                action.toggled.connect(partial(self._want, at))
                header.addAction(action)
        self.setTextElideMode(Qt.TextElideMode.ElideMiddle)
        allow_copying(self)
        model.modelReset.connect(self._show_known)
        model.layoutChanged.connect(self._show_known)
        self.scaled()
        self._show_known()
        theme.changed.connect(self.scaled)

    def scaled(self) -> None:
        """Take the row height and the column widths of the text size."""
        self.verticalHeader().setDefaultSectionSize(self.theme.scaled(26))
        for at, column in enumerate(self.rows_model.columns):
            title = str(self.rows_model.headerData(at, Qt.Orientation.Horizontal))
            least = self.horizontalHeader().fontMetrics().horizontalAdvance(title) + TITLE_PX
            self.setColumnWidth(at, max(least, self.theme.scaled(column.width)))
        self._stretch()

    def resizeEvent(self, event: QResizeEvent) -> None:
        """Give the width that is left over to the column that stretches."""
        super().resizeEvent(event)
        self._stretch()

    def _show_known(self) -> None:
        """Hide the optional columns that would hold dashes only."""
        rows = self.rows_model.rows
        for at, column in enumerate(self.rows_model.columns):
            if column.optional:
                self.setColumnHidden(at, all(column.value(row) is None for row in rows))
        self._stretch()

    def column_button(self, name: str = "") -> QToolButton:
        """Return a button, by its object name, with the list of the columns hidden at first.

        The right button of the mouse opens the same list over the titles.
        """
        button = tool_button("Columns", name, None, tip="Choose more columns")
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(button)
        menu.addActions(self.horizontalHeader().actions())
        menu.setToolTipsVisible(True)
        button.setMenu(menu)
        return button

    def _want(self, at: int, wanted: bool) -> None:
        self.setColumnHidden(at, not wanted)
        self._stretch()

    def _stretch(self) -> None:
        columns = self.rows_model.columns
        wide = next((at for at, column in enumerate(columns) if column.stretches), None)
        if wide is None:
            return
        # The columns beyond are reached by scrolling where there is no room for all.
        others = sum(self.columnWidth(at) for at in range(len(columns)) if at != wide)
        left = self.viewport().width() - others
        self.setColumnWidth(wide, max(self.theme.scaled(columns[wide].width), left))

    def select_nodes(
        self, nodes_of: Callable[[Any], Iterable[int]], select: Callable[[list[int]], None]
    ) -> None:
        """Have the nodes of the rows that are chosen from now on selected, if there are any."""

        def changed() -> None:
            nodes = [node for row in self.chosen() for node in nodes_of(row)]
            if nodes:
                select(nodes)

        self.selectionModel().selectionChanged.connect(changed)

    def chosen(self) -> list[Any]:
        """Return the chosen rows, from the top."""
        rows = sorted(self.selectionModel().selectedRows(), key=QModelIndex.row)
        return [self.rows_model.row(index) for index in rows]

    def show_rows(self, is_shown: Callable[[Any], bool]) -> None:
        """Choose the rows of what is selected elsewhere, without selecting it in turn."""
        selection, flags = self.selectionModel(), QItemSelectionModel.SelectionFlag
        indexes = [self.rows_model.index(row, 0) for row in range(self.rows_model.rowCount())]
        indexes = [index for index in indexes if is_shown(self.rows_model.row(index))]
        with QSignalBlocker(selection):
            selection.clearSelection()
            for index in indexes:
                selection.select(index, flags.Select | flags.Rows)
        if indexes:
            self.scrollTo(indexes[0])
        self.viewport().update()

    def keyPressEvent(self, event: QKeyEvent) -> None:
        """Leaves letters to the window, whose actions of one key they are."""
        if event.text().isprintable() and event.text().strip():
            # Letters are the window's keys (P pins, K keeps); rows are found with the filter.
            event.ignore()
        else:
            super().keyPressEvent(event)
