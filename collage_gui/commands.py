"""Undoable edits. A command holds ids and values, never widgets or documents themselves."""

from __future__ import annotations

from PySide6.QtGui import QUndoCommand

from collage_engine.records.pin import Pin


class SetPins(QUndoCommand):
    """Replace the pins of a document."""

    def __init__(
        self, key: str, before: tuple[Pin, ...], after: tuple[Pin, ...], text: str
    ) -> None:
        super().__init__(text)
        self._key, self._before, self._after = key, before, after

    def redo(self) -> None:
        _apply(self._key, self._after)

    def undo(self) -> None:
        _apply(self._key, self._before)


class EditRun(QUndoCommand):
    """Rename or annotate a run."""

    def __init__(self, key: str, run: str, field: str, before: str, after: str) -> None:
        super().__init__("Rename run" if field == "name" else "Edit note")
        self._key, self._run, self._field = key, run, field
        self._before, self._after = before, after

    def redo(self) -> None:
        self._edit(self._after)

    def undo(self) -> None:
        self._edit(self._before)

    def _edit(self, value: str) -> None:
        from collage_gui.session import find_document

        document = find_document(self._key)
        if document is not None:
            document.edit_run(self._run, **{self._field: value})


class HideRun(QUndoCommand):
    """Delete a run: hidden at once, deleted for good when the document is saved."""

    def __init__(self, key: str, run: str) -> None:
        super().__init__("Delete run")
        self._key, self._run = key, run

    def redo(self) -> None:
        self._hide(True)

    def undo(self) -> None:
        self._hide(False)

    def _hide(self, hidden: bool) -> None:
        from collage_gui.session import find_document

        document = find_document(self._key)
        if document is not None:
            document.hide_run(self._run, hidden)


def _apply(key: str, pins: tuple[Pin, ...]) -> None:
    from collage_gui.session import find_document

    document = find_document(key)
    if document is not None:
        document.put_pins(pins)
