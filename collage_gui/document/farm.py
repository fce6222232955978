"""Asks for the state of the farm that measures for a document, where one is configured."""

from __future__ import annotations

from PySide6.QtCore import QObject, QTimer, Signal

from collage_engine.records.farm import FarmStatus
from collage_engine.service import protocol
from collage_gui.document.requests import EngineRequests

ASK_EVERY_MS = 2000
"""Milliseconds between questions for a farm's state; chosen: tasks take seconds."""


class Farm(QObject):
    """Asks the engine for the state of a farm, again and again while one is configured."""

    changed = Signal()

    def __init__(self, requests: EngineRequests, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._requests = requests
        self.address = ""
        """Address of its scheduler, or path of a scheduler file; empty: none is configured."""
        self.status: FarmStatus | None = None
        """What the farm said last; None before its first answer."""
        self.error = ""
        """Why it did not answer the last time; empty where it did."""
        self._asked = 0
        """Number of the question whose answer counts."""
        self._waiting = False
        """Whether an answer is awaited: a farm that is gone is given up after many seconds only."""
        self._timer = QTimer(self, interval=ASK_EVERY_MS)
        self._timer.timeout.connect(self.ask)

    def configure(self, address: str) -> None:
        """Ask another farm from now on; an empty address: none."""
        address = address.strip()
        if address == self.address:
            return
        self.address, self.status, self.error = address, None, ""
        self._forget()
        if address:
            self._timer.start()
            self.ask()
        else:
            self._timer.stop()
        self.changed.emit()

    def stop(self) -> None:
        """Ask no more: the document closes."""
        self._timer.stop()
        self._forget()

    def _forget(self) -> None:
        """Take no notice of the answer that is awaited."""
        self._asked, self._waiting = self._asked + 1, False

    def ask(self) -> None:
        """Ask for the state now, unless an answer is awaited."""
        if self._waiting or not self.address or not self._requests.handle:
            return
        self._forget()
        self._waiting, number = True, self._asked

        def told(status: FarmStatus | None, error: str) -> None:
            if number != self._asked:
                return
            self._waiting = False
            self.status, self.error = status or self.status, error
            self.changed.emit()

        self._requests.send(
            "farm.status",
            protocol.FarmQuery(address=self.address),
            lambda answer: told(answer, ""),
            lambda reason: told(None, reason),
        )
