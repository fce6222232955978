"""Makes labels, fields, buttons, windows and layouts as all panels and dialogs have them."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, TypeVar, cast

from PySide6.QtCore import QEvent, QObject, QPoint, QSize, Qt, Signal
from PySide6.QtGui import QAction, QPainter, QPaintEvent
from PySide6.QtWidgets import (
    QAbstractButton,
    QAbstractSpinBox,
    QBoxLayout,
    QComboBox,
    QDialog,
    QFormLayout,
    QHBoxLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QMainWindow,
    QPushButton,
    QSizePolicy,
    QSplitter,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from collage_engine.support.errors import InvalidValue
from collage_engine.support.time_limits import parse_duration
from collage_engine.wording.amounts import as_sentence, duration_text
from collage_gui.theme import NAME_LETTERS, UNIT, Theme

if TYPE_CHECKING:
    from collage_gui.document.document import Document

W = TypeVar("W", bound=QWidget)
Box = TypeVar("Box", bound=QBoxLayout)


class Panel(QWidget):
    """Shows a part of what is known of a document."""

    def __init__(self, document: Document, theme: Theme, name: str = "") -> None:
        super().__init__()
        self.document, self.theme = document, theme
        self.setObjectName(name)


def named(widget: W, name: str, title: str = "", tip: str = "") -> W:
    """Give a widget its object name, what screen readers call it, and its tool tip."""
    widget.setObjectName(name)
    if title:
        widget.setAccessibleName(title)
    if tip:
        widget.setToolTip(tip)
    return widget


def letters_px(widget: QWidget, letters: int) -> int:
    """Return how wide so many letters are in the font of a widget, in pixels, as in copyfitting."""
    return letters * widget.fontMetrics().horizontalAdvance(ascii_lowercase) // 26


def text_label(text: str = "", look: str = "", name: str = "", *, wraps: bool = True) -> QLabel:
    """Return a label that shows its text as it is: names from files may look like markup.

    Args:
        text: What it shows.
        look: ``quiet``, ``small``, ``heading`` or ``title``, as the style sheet has them.
        name: Its object name.
        wraps: Whether it breaks lines.
    """
    label = named(QLabel(text, wordWrap=wraps), name)
    label.setTextFormat(Qt.TextFormat.PlainText)
    if look:
        label.setProperty(look, True)
    return label


def push_button(text: str, name: str, do: Any, tip: str = "") -> QPushButton:
    """Return a button.

    Args:
        text: What stands on it.
        name: Its object name.
        do: A function or a signal, which a click calls or emits.
        tip: Its tool tip.
    """
    button = named(QPushButton(text), name, tip=tip)
    button.clicked.connect(do)
    return button


def tool_button(text: str, name: str, do: Any, title: str = "", tip: str = "") -> QToolButton:
    """Return a small button; ``title`` says in words what a sign such as ``✕`` means."""
    button = named(QToolButton(), name, title, tip)
    button.setText(text)
    if do is not None:
        button.clicked.connect(do)
    return button


def action_button(
    action: QAction, title: str = "", name: str = "", make: Any = push_button
) -> QAbstractButton:
    """Return a button that does what an action does, and can be pressed when that can.

    Args:
        action: The action.
        title: What stands on the button; the action's own title by default.
        name: The button's object name.
        make: Makes it: ``push_button`` or ``tool_button``.
    """
    button: QAbstractButton = make(
        title or action.text(), name, action.trigger, tip=action.toolTip()
    )
    button.setEnabled(action.isEnabled())
    action.enabledChanged.connect(button.setEnabled)
    return button


def filter_field(name: str, title: str, do: Any) -> QLineEdit:
    """Return a field whose text ``do`` gets with every letter."""
    field = named(QLineEdit(placeholderText=title, clearButtonEnabled=True), name, title)
    field.textChanged.connect(do)
    return field


def form_row(form: QFormLayout, label: str, field: W, name: str, tip: str = "") -> W:
    """Add a field to a form, below the others; as wide as the form where the field can be."""
    form.setFieldGrowthPolicy(QFormLayout.FieldGrowthPolicy.AllNonFixedFieldsGrow)
    form.addRow(text_label(label, wraps=False), named(field, name, label, tip))
    return field


def lay_out(
    box: Box,
    *parts: Any,
    edge: float | None = None,
    gap: float | None = None,
) -> Box:
    """Fill a layout.

    Args:
        box: The layout.
        parts: Widgets and layouts in order, each by itself or with its stretch and alignment as a
            tuple; a number is a gap of so many units, None one that takes what is left.
        edge: Units around the parts, but at most half a unit above and below a line of them; what
            the style has by default.
        gap: Units between the parts; what the style has by default.
    """
    if edge is not None:
        side = round(edge * UNIT)
        ends = min(side, UNIT // 2) if isinstance(box, QHBoxLayout) else side
        box.setContentsMargins(side, ends, side, ends)
    if gap is not None:
        box.setSpacing(round(gap * UNIT))
    for part in parts:
        if part is None:
            box.addStretch()
        elif isinstance(part, int):
            box.addSpacing(part * UNIT)
        else:
            what, *more = part if isinstance(part, tuple) else (part,)
            (box.addLayout if isinstance(what, QLayout) else box.addWidget)(what, *more)
    return box


def split_up(way: Qt.Orientation, *parts: QWidget, shares: Sequence[int] = ()) -> QSplitter:
    """Return widgets side by side, or one below the other, with borders that can be moved.

    Args:
        way: In which direction they follow each other.
        parts: The widgets.
        shares: How the length is shared out at first; what the widgets want by default.
    """
    split = QSplitter(way)
    for part in parts:
        split.addWidget(part)
    split.setChildrenCollapsible(False)
    if shares:
        split.setSizes([1000 * share for share in shares])  # more than any length
    return split


class ElidedLabel(QLabel):
    """Shows plain text and cuts what has no room; its tool tip has the whole text.

    A window that holds only such labels keeps its size whatever they say.
    """

    def __init__(self, look: str = "") -> None:
        """Make the label, in a look of the style sheet such as ``quiet``."""
        super().__init__()
        self.setProperty(look, True)
        self.setTextFormat(Qt.TextFormat.PlainText)
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)

    def minimumSizeHint(self) -> QSize:
        """Return the size of one line of a few letters."""
        return QSize(letters_px(self, NAME_LETTERS), super().minimumSizeHint().height())

    def sizeHint(self) -> QSize:
        """Return the size of one line, as wide as the text."""
        metrics = self.fontMetrics()
        return QSize(metrics.horizontalAdvance(self._one_line()) + 4, metrics.height() + 2)

    def paintEvent(self, event: QPaintEvent) -> None:
        """Paints the text with an ellipsis where it is cut."""
        painter = QPainter(self)
        area = self.contentsRect()
        text = self.fontMetrics().elidedText(
            self._one_line(), Qt.TextElideMode.ElideRight, area.width()
        )
        painter.setPen(self.palette().color(self.foregroundRole()))
        painter.drawText(area, int(self.alignment() | Qt.AlignmentFlag.AlignVCenter), text)

    def _one_line(self) -> str:
        return " ".join(self.text().split("\n"))


def plain_tip(text: str) -> str:
    """Return a tool tip that shows a text as it is, also where Qt would take it for markup."""
    return f"<span style='white-space:pre-wrap'>{escape(text)}</span>" if "<" in text else text


class SideWindow(QDialog):
    """Holds one widget beside the graph and blocks nothing; goes with the widget it belongs to.

    It is as large as its content, as far as that fits into the main window.
    """

    def __init__(self, title: str, content: QWidget, owner: QWidget) -> None:
        super().__init__(owner, Qt.WindowType.Tool)
        self._owner = owner
        self.setWindowTitle(title)
        self.setObjectName(f"{content.objectName()}Window")
        lay_out(QVBoxLayout(self), content, edge=0)
        for button in content.findChildren(QPushButton):
            button.setAutoDefault(False)  # Enter in a field presses none
        owner.installEventFilter(self)

    def open_at(self, corner: QPoint) -> None:
        """Open it within the main window, or bring it to the front.

        Args:
            corner: Where its upper left corner is, in the coordinates of its owner.
        """
        if not self.isVisible():
            window = self._owner.window()
            area = (isinstance(window, QMainWindow) and window.centralWidget()) or window
            if not self.testAttribute(Qt.WidgetAttribute.WA_Resized):
                self.resize(self.sizeHint())
            self.resize(self.size().boundedTo(area.size()))
            last = area.mapToGlobal(area.rect().bottomRight())
            last -= QPoint(self.width(), self.height())
            wanted = self._owner.mapToGlobal(corner)
            self.move(min(wanted.x(), last.x()), min(wanted.y(), last.y()))
        self.show()
        self.raise_()
        self.activateWindow()

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Close as another document comes to the front."""
        if watched is self._owner and event.type() == QEvent.Type.Hide:
            self.hide()
        return False


class _WordsSelector(QObject):
    """Selects the words that a field says for its least value when it is clicked."""

    def __init__(self, edit: QLineEdit, words: str) -> None:
        super().__init__(edit)
        self._words = words

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Select after a click: behind words a number could not be typed."""
        if event.type() == QEvent.Type.MouseButtonRelease:
            edit = cast(QLineEdit, watched)
            if edit.text() == self._words:
                edit.selectAll()
        return False


def show_words(field: QAbstractSpinBox, words: str) -> None:
    """Has a field say words for its least value, which a click selects, to be typed over."""
    field.setSpecialValueText(words)
    edit = field.lineEdit()
    edit.installEventFilter(_WordsSelector(edit, words))


class DurationField(QLineEdit):
    """A field of a duration that reads and shows ``30 s``, ``2 min 30 s``, ``1 h``."""

    valueChanged = Signal()
    refused = Signal(str)
    """Why a text was replaced by the earlier duration; empty once another text is typed."""

    def __init__(self, none: str = "") -> None:
        """Make the field; ``none`` is what it says without a duration, where none is allowed."""
        super().__init__(placeholderText=none)
        self._seconds = 0.0
        self.editingFinished.connect(self.read)
        self.textEdited.connect(lambda _: self.refused.emit(""))

    def value(self) -> float:
        """Return the seconds; 0 is none."""
        return self._seconds

    def setValue(self, seconds: float) -> None:
        """Show a duration in seconds."""
        self._seconds = seconds
        self.setText(duration_text(seconds) if seconds else "")
        self.valueChanged.emit()

    def read(self) -> None:
        """Take what was typed; the earlier duration replaces a text that is none."""
        text, or_none = self.text().strip(), bool(self.placeholderText())
        if self.isModified():
            try:
                none = or_none and not text
                self.setValue(0.0 if none else parse_duration(text, or_none=or_none))
            except InvalidValue as error:
                self.setValue(self._seconds)
                stays = self.text() or self.placeholderText()
                self.refused.emit(f"{as_sentence(str(error))} It stays {stays}.")


class _WheelGuard(QObject):
    """Hands the wheel of a field that has no focus to what lies around the field."""

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        """Ignores the wheel over a field without the focus."""
        turned = event.type() == QEvent.Type.Wheel
        if turned and isinstance(watched, QWidget) and not watched.hasFocus():
            event.ignore()
            return True
        return False


def keep_from_wheel(parent: QWidget) -> None:
    """Let the wheel change only that choice or number below a widget that has the focus."""
    guard = _WheelGuard(parent)
    for kind in (QAbstractSpinBox, QComboBox):
        for field in parent.findChildren(kind):
            field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
            field.installEventFilter(guard)


def pad_spin_boxes(parent: QWidget) -> None:
    """Give the text in the spin boxes of a widget the room that line edits have.

    A style sheet's padding does not reach the line edit inside a spin box.
    """
    for edit in parent.findChildren(QLineEdit, "qt_spinbox_lineedit"):
        edit.setTextMargins(5, 0, 0, 0)
