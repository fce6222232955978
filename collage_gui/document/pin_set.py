"""Keeps the pins of one document and what became of them, and writes them as people do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QUndoCommand, QUndoStack

from collage_engine.drawing.operators import OperatorGraph
from collage_engine.records import protocol
from collage_engine.records.pin import Pin, PinVerdict, written_name
from collage_engine.wording.sentences import NOT_MEASURED
from collage_engine.wording.titles import toolchain_title
from collage_gui.document.shown import Shown, ShownPlacement
from collage_gui.engine_client import EngineRequests

PIN_DEMANDS = {
    "on": "on {toolchain}",
    "never": "never on {toolchain}",
    "exactly": "exactly one partition",
    "exactly on": "exactly one partition of {toolchain}",
    "together": "together in one partition",
    "device": "on device {device}",
}
"""The sentence of what a pin demands, by the pin's kind."""

MARKS = {"on": "●", "never": "⊘", "exactly": "▣", "together": "∪", "device": "@"}
"""The mark of each kind of pin in the graph and in tables."""


def pin_demand(pin: Pin) -> str:
    """Return what a pin demands, e.g. ``never on oneDNN``."""
    kind = "exactly on" if pin.kind == "exactly" and pin.toolchain else pin.kind
    template = PIN_DEMANDS[kind]
    return template.format(toolchain=toolchain_title(pin.toolchain), device=pin.device)


def command_line_text(graph: OperatorGraph, pin: Pin) -> str:
    """Return a pin as the command line writes it, e.g. ``/conv1/Conv=!tvm``."""
    # An ONNX node that was lowered to several operators is named once.
    names = dict.fromkeys(map(graph.names.__getitem__, pin.nodes))
    demand = {
        "on": pin.toolchain,
        "never": f"!{pin.toolchain}",
        "together": "together",
        "device": f"@{pin.device}",
        "exactly": "exactly" + (f":{pin.toolchain}" if pin.toolchain else ""),
    }[pin.kind]
    return ",".join(map(written_name, names)) + f"={demand}"


class PinSet(QObject):
    """Pins are edited undoably and sent to the engine at once."""

    changed = Signal()
    """A signal that the pins or their verdicts have changed."""
    edited = Signal()
    """The user changed the pins: the document has something to save."""
    accepted = Signal()
    """The engine has the pins: a search may follow."""

    def __init__(
        self,
        requests: EngineRequests,
        undo: QUndoStack,
        placement: ShownPlacement,
        parent: QObject | None = None,
    ) -> None:
        super().__init__(parent)
        self._requests, self._undo, self._placement = requests, undo, placement
        self.restored = False
        """Whether the pins of now were put back together with the placement that was shown then."""
        self.current: tuple[Pin, ...] = ()
        self.verdicts: tuple[PinVerdict, ...] = ()
        """What became of each pin, in their order; empty before a search."""
        self.together_us: float | None = None
        """What all pins cost together, in microseconds; None: it is not known."""
        self.infeasible: dict[str, Any] | None = None
        """What the last search said when no placement satisfies the pins and limits."""

    @property
    def written(self) -> tuple[str, ...]:
        """Return the pins as the command line writes them, by which placements name theirs."""
        return tuple(pin.written for pin in self.current)

    @property
    def wait_for_costs(self) -> bool:
        """Tell whether only what was not measured yet keeps the pins from a placement."""
        return self.infeasible is not None and self.infeasible["reason"] == NOT_MEASURED

    def verdict_of(self, at: int) -> PinVerdict | None:
        """Return what became of a pin, by its place; None before a search."""
        return self.verdicts[at] if at < len(self.verdicts) else None

    def edit(self, pins: Iterable[Pin], text: str) -> None:
        """Replace the pins undoably; nothing happens when they demand the same.

        Args:
            pins: All pins from now on.
            text: What the menu calls this edit.
        """
        after = tuple(pins)
        if [pin.written for pin in after] != [*self.written]:
            self._undo.push(PinEdit(text, self, self._placement, after))

    def put(self, pins: tuple[Pin, ...], shown: Shown | None = None) -> None:
        """Replace the pins and send them; this is what undo and redo call.

        Args:
            pins: All pins from now on.
            shown: The placement that was shown with them before; None: they are new.
        """
        if shown is not None and shown.provisional:
            shown = None  # the run went on, and may have ended with another one
        self.current = pins
        self.restored = shown is not None
        self.verdicts, self.together_us = (), None
        self.infeasible = None
        self.edited.emit()
        self.changed.emit()
        self.send()
        if shown is not None:
            self._placement.show(shown)

    def set_verdicts(self, verdicts: Iterable[PinVerdict], together_us: float | None) -> None:
        """Take the verdicts of a placement that satisfies the pins, and their price together."""
        self.verdicts, self.together_us, self.infeasible = tuple(verdicts), together_us, None
        self.changed.emit()

    def send(self) -> None:
        """Tell the engine the pins, if it has the document."""
        if not self._requests.handle:
            return

        params = protocol.PinsSet(document=self._requests.handle, pins=self.current)

        def arrived(_: None) -> None:
            if not self.verdicts:
                pins = (pin.written for pin in params.pins)
                self.verdicts = tuple(PinVerdict(pin=pin, state="pending") for pin in pins)
                self.changed.emit()
            self.accepted.emit()

        self._requests.send(params, arrived, topic="pins")


class PinEdit(QUndoCommand):
    """Replaces the pins; undoing brings back what was shown with the earlier ones, too."""

    def __init__(
        self, text: str, pins: PinSet, placement: ShownPlacement, after: tuple[Pin, ...]
    ) -> None:
        """Receives what it changes.

        Args:
            text: What the menu calls this edit.
            pins: The document's pins.
            placement: What is shown of the document.
            after: All pins from now on.
        """
        super().__init__(text)
        self._pins, self._placement = pins, placement
        self._before, self._after = pins.current, after
        self._shown_before = placement.shown
        self._shown_after: Shown | None = None

    def redo(self) -> None:
        """Put the new pins in, with what was shown when they were undone."""
        self._shown_before = self._placement.shown
        self._pins.put(self._after, self._shown_after)

    def undo(self) -> None:
        """Put the earlier pins back, with what was shown with them."""
        self._shown_after = self._placement.shown
        self._pins.put(self._before, self._shown_before)
