"""Makes labels, buttons and layouts as all panels and dialogs have them."""

from __future__ import annotations

from typing import Any, TypeVar

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtWidgets import (
    QAbstractButton,
    QBoxLayout,
    QFormLayout,
    QLabel,
    QLayout,
    QLineEdit,
    QPushButton,
    QToolButton,
    QWidget,
)

W = TypeVar("W", bound=QWidget)
Box = TypeVar("Box", bound=QBoxLayout)


def named(widget: W, name: str, title: str = "", tip: str = "") -> W:
    """Give a widget its object name, what screen readers call it, and its tool tip."""
    widget.setObjectName(name)
    if title:
        widget.setAccessibleName(title)
    if tip:
        widget.setToolTip(tip)
    return widget


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
    margins: tuple[int, int, int, int] | None = None,
    spacing: int | None = None,
) -> Box:
    """Fill a layout.

    Args:
        box: The layout.
        parts: Widgets and layouts in order, each by itself or with its stretch and alignment as a
            tuple; a number is a gap of so many pixels, None one that takes what is left.
        margins: Pixels left, above, right and below; those of the style by default.
        spacing: Pixels between the parts; those of the style by default.
    """
    if margins is not None:
        box.setContentsMargins(*margins)
    if spacing is not None:
        box.setSpacing(spacing)
    for part in parts:
        if part is None:
            box.addStretch()
        elif isinstance(part, int):
            box.addSpacing(part)
        else:
            what, *more = part if isinstance(part, tuple) else (part,)
            (box.addLayout if isinstance(what, QLayout) else box.addWidget)(what, *more)
    return box
