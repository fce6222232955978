"""Explains the colours below the graph; a click isolates one of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape

from PySide6.QtCore import QBuffer, QByteArray, QIODevice, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QColor, QIcon, QPainter, QPen, QPolygonF
from PySide6.QtWidgets import QLabel, QSizePolicy, QWidget

from collage_engine.drawing.box_styles import LegendEntry
from collage_engine.drawing.palette import LIGHT, Colours
from collage_engine.support.text import counted
from collage_gui.graph_view.painter import CHIP, chip, small_picture
from collage_gui.theme import UNIT
from collage_gui.widgets import named, plain_tip

MARKS = {
    "transition": "transition",
    "expected": "expected, not confirmed",
    "pin": "pinned",
    "measured now": "being measured",
}
"""Marks of the picture that the legend explains, where they occur."""
ABOUT_MARKS = {
    "transition": "A value passes to another toolchain, format or device: its size, the conversion "
    "and its cost stand beside the arrow.",
    "expected": "Dashed boxes belong to a placement that no run has confirmed yet.",
    "pin": "A pin demands or forbids something here.",
    "measured now": "The run measures a candidate that consists of these operators.",
}

BETWEEN = 4 * "&nbsp;" + " "
"""The markup between two entries, at which lines break."""


def _paint_mark(mark: str, c: Colours, painter: QPainter, area: QRectF) -> None:
    """Paint a sample of a mark."""
    text = QColor(c.text)
    if mark == "transition":
        middle, right = area.center().y(), area.right()
        painter.setPen(QPen(text, 2))
        painter.drawLine(QPointF(area.left(), middle), QPointF(right - 6, middle))
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(text)
        tip = ((0, 0), (-9, -4), (-9, 4))
        painter.drawPolygon(QPolygonF([QPointF(right + x, middle + y) for x, y in tip]))
    elif mark == "pin":
        painter.setPen(Qt.PenStyle.NoPen)
        for colour, radius in ((text, 7), (QColor(c.canvas), 2.5)):
            painter.setBrush(colour)
            painter.drawEllipse(area.center(), radius, radius)
    else:
        expected = mark == "expected"
        line = Qt.PenStyle.DashLine if expected else Qt.PenStyle.DashDotLine
        painter.setPen(QPen(QColor(c.quiet) if expected else text, 1 if expected else 2, line))
        painter.drawRoundedRect(area.adjusted(1, 1, -1, -1), 3, 3)


class Legend(QLabel):
    """The legend below the graph: all entries side by side, and what the marks mean.

    It is one text of pictures and links, which Qt breaks into the lines that it needs: a legend
    that leaves an entry out explains nothing.
    """

    isolated = Signal(object)
    """LegendEntry, or None when all are shown again."""

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        named(self, "legend", "Legend")
        self.setTextFormat(Qt.TextFormat.RichText)
        self.setWordWrap(True)
        self.setContentsMargins(UNIT, UNIT // 2, UNIT, UNIT // 2)
        flag = Qt.TextInteractionFlag
        self.setTextInteractionFlags(flag.LinksAccessibleByMouse | flag.LinksAccessibleByKeyboard)
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Minimum)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        self.linkActivated.connect(lambda key: self.choose(self._entries[key]))
        self.linkHovered.connect(self._tell)
        self._entries: dict[str, LegendEntry] = {}
        self._marks: Sequence[str] = ()
        """The marks that are explained."""
        self._chosen: str | None = None
        self._colours = LIGHT
        self.hide()

    def show_entries(self, entries: list[LegendEntry], colours: Colours) -> None:
        """Show the entries of a picture; the isolated one stays so if it is among them."""
        self._colours = colours
        self._entries = {entry.key: entry for entry in entries}
        if self._chosen not in self._entries:
            self._chosen = None
        self._refresh()
        self.setVisible(bool(entries))

    def show_marks(self, marks: Sequence[str]) -> None:
        """Explain the marks that occur in the picture, by their keys in ``MARKS``."""
        if marks != self._marks:
            self._marks = marks
            self._refresh()

    def _refresh(self) -> None:
        colours, parts = self._colours, []
        for key, entry in self._entries.items():
            text = f"{entry.label}   {entry.detail or entry.count}"
            back = f"background-color: {colours.line};" if key == self._chosen else ""
            style = f"color: {colours.text}; text-decoration: none; {back}"
            part = _part(text, chip(entry, colours.line))
            parts.append(f"<a href='{escape(key)}' style='{style}'>{part}</a>")
        for mark in self._marks:
            sample = small_picture(partial(_paint_mark, mark, colours))
            parts.append(_part(MARKS[mark], sample))
        self.setText(BETWEEN.join(parts))
        said = (f"{each.label}: {counted(each.count, 'node')}" for each in self._entries.values())
        self.setAccessibleDescription("; ".join([*said, *map(MARKS.__getitem__, self._marks)]))
        self._tell("")

    def _tell(self, key: str) -> None:
        """Explain the entry under the pointer, or the marks."""
        entry = self._entries.get(key)
        marks = "\n".join(f"{MARKS[mark]}: {ABOUT_MARKS[mark]}" for mark in self._marks)
        text = f"{entry.label}: click to see only these." if entry is not None else marks
        self.setToolTip(plain_tip(text))

    def choose(self, entry: LegendEntry) -> None:
        """Isolates an entry in the graph, or shows all again when it is isolated already."""
        self._chosen = None if self._chosen == entry.key else entry.key
        self._refresh()
        self.isolated.emit(entry if self._chosen is not None else None)


def _part(text: str, icon: QIcon) -> str:
    """Return a picture and a text as markup that no line end divides."""
    content = QByteArray()
    buffer = QBuffer(content)
    buffer.open(QIODevice.OpenModeFlag.WriteOnly)
    icon.pixmap(CHIP, 2.0).save(buffer, "PNG")
    source = f"data:image/png;base64,{bytes(content.toBase64().data()).decode()}"
    size = f"width='{CHIP.width()}' height='{CHIP.height()}' style='vertical-align: middle'"
    return f"<img src='{source}' {size}>&nbsp;" + escape(text).replace(" ", "&nbsp;")
