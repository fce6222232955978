"""Defines the undoable edits of a document."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from PySide6.QtGui import QUndoCommand

T = TypeVar("T")


class SetValue(QUndoCommand, Generic[T]):
    """Replaces one value of a document, and puts the earlier one back when it is undone."""

    def __init__(self, text: str, apply: Callable[[T], None], before: T, after: T) -> None:
        """Receives what it changes.

        Args:
            text: What the menu calls this edit.
            apply: Puts a value into the document, as a method of the part that holds it.
            before: The value that undoing puts back.
            after: The value that doing and redoing put in.
        """
        super().__init__(text)
        self._apply, self._before, self._after = apply, before, after

    def redo(self) -> None:
        """Put the new value in."""
        self._apply(self._after)

    def undo(self) -> None:
        """Put the earlier value back."""
        self._apply(self._before)
