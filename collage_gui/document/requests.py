"""Sends the questions of one document to the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, Signal

from collage_gui.engine_client import EngineClient


class EngineRequests(QObject):
    """Sends the requests of one document and drops answers that have become outdated."""

    failed = Signal(str)
    """A request failed: one sentence for the banner."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.client = client
        self.handle = ""
        """The engine's name of the document; empty while the engine does not have it."""
        self._newest: dict[str, int] = {}

    def send(
        self,
        method: str,
        params: Any,
        then: Callable[[Any], None] | None = None,
        failed: Callable[[str], None] | None = None,
        topic: str = "",
    ) -> None:
        """Send a request.

        Args:
            method: A method of the service's protocol.
            params: Its parameters.
            then: Called with the answer.
            failed: Called with a sentence when the request fails; without it, ``self.failed``
                is emitted.
            topic: An answer is dropped when a newer request of the same topic has been sent
                since, or the topic was dropped. Answers without a topic always arrive.
        """
        number = self._newest[topic] = self._newest.get(topic, 0) + 1

        def is_current() -> bool:
            return not topic or self._newest[topic] == number

        def on_result(result: Any) -> None:
            if is_current() and then is not None:
                then(result)

        def on_error(reason: str) -> None:
            if is_current():
                (failed or self.failed.emit)(reason)

        self.client.request(method, params, on_result, on_error)

    def drop(self, topic: str) -> None:
        """Drop the answers of this topic that are still awaited."""
        self._newest[topic] = self._newest.get(topic, 0) + 1

    def drop_all(self) -> None:
        """Drop all awaited answers that have a topic."""
        for topic in self._newest:
            self._newest[topic] += 1
