"""Starts the engine behind the window, and starts it again when it is lost or elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from PySide6.QtCore import QObject, Signal
from PySide6.QtWidgets import QWidget

from collage_engine.records import protocol
from collage_engine.records.event import Event, Probing
from collage_engine.records.toolchain import ToolchainState
from collage_engine.wording.titles import register_toolchains
from collage_gui.engine_client import EngineClient
from collage_gui.main_window.documents import Documents
from collage_gui.messages import Messages
from collage_gui.recovery import RecoveryCopies
from collage_gui.welcome import WelcomePage

if TYPE_CHECKING:
    from collage_gui.document.document import Document


class Engine(QObject):
    """Tells the documents what becomes of the engine, and opens them again after a restart."""

    changed = Signal()
    """The engine's state or its device changed."""

    def __init__(
        self,
        client: EngineClient,
        documents: Documents,
        welcome: WelcomePage,
        recovery_copies: RecoveryCopies,
        messages: Messages,
        window: QWidget,
    ) -> None:
        super().__init__(window)
        self._client, self._documents = client, documents
        self._welcome, self._copies, self._messages = welcome, recovery_copies, messages
        self.states: tuple[ToolchainState, ...] = ()
        """The engine's toolchains; empty until it has named them."""
        self._unopened: list[str] = []
        """Files that wait for an engine, since the first one did not start."""
        client.ready.connect(self._ready)
        client.stopped.connect(self._stopped)
        client.unresponsive.connect(self._unresponsive)
        client.logged.connect(self._logged)
        client.notified.connect(self._notified)
        documents.page_added.connect(lambda page: page.show_toolchains(self.states))
        documents.open_failed.connect(self._open_failed)

    def start(self) -> None:
        """Start the engine's process."""
        self._client.start()
        self.changed.emit()

    def restart(self) -> None:
        """End the engine's process and start another one; the documents are opened again."""
        for page in self._documents.pages:
            page.document.engine_lost()
        self._messages.clear("engine")
        self._client.shutdown()
        self._client.start()
        self.changed.emit()

    @property
    def device_text(self) -> str:
        """Returns the device of the engine, or what the engine does."""
        hello = self._client.hello if self._client.state == "ready" else None
        if hello is None:
            return "starting the engine…" if self._client.state == "starting" else "no engine"
        connection = self._client.connection
        where = f" on {hello.host}" if connection.kind == "ssh" else ""
        text = hello.device.description or hello.device.name
        for mark in ("(R)", "(TM)", " Processor", " CPU"):
            text = text.replace(mark, "")
        return f"{text}{where}"

    # -- the engine's news -------------------------------------------------------------

    def _ready(self, hello: protocol.HelloAnswer) -> None:
        self._messages.clear("engine")
        self._client.request(
            protocol.ToolchainsList(),
            self._toolchains_arrived,
            lambda reason: self._messages.show_message(reason, "error"),
        )
        for page in self._documents.pages:
            if not page.document.handle and page.document.is_open:
                self._reopen(page.document)
        waiting, self._unopened = self._unopened, []
        for path in waiting:
            self._documents.open_path(path)
        self.changed.emit()

    def _reopen(self, document: Document) -> None:
        """Open a document as it was last kept; it sends its pins afterwards."""
        copy = self._copies.copy_of(document)
        if copy is not None:
            document.open_session(str(copy), recovered=True)
        elif document.session_path and os.path.exists(document.session_path):
            document.open_session(document.session_path)
        else:
            document.open_model(document.path)

    def _toolchains_arrived(self, states: tuple[ToolchainState, ...]) -> None:
        self.states = states
        register_toolchains(self.states)
        for page in self._documents.pages:
            page.show_toolchains(self.states)
        hello = self._client.hello
        self._welcome.show_engine(hello.host if hello is not None else "", self.states)

    def _stopped(self, reason: str) -> None:
        pages = self._documents.pages
        progress = (page.document.execution.progress for page in pages)
        measuring = next((p.now for p in progress if p is not None), "")
        for page in pages:
            page.document.requests.logged.emit("error", f"{reason[:1].upper()}{reason[1:]}.")
            if page.document.is_open:
                page.document.engine_lost()
            else:
                if self._client.hello is None:
                    self._unopened.append(page.document.path)
                self._documents.remove(page)
        text = f"{reason}, under way: {measuring}" if measuring else reason
        self._offer_restart(f"{text}. What was measured is kept.", "error")
        self._welcome.show_engine_trouble(reason)
        self.changed.emit()

    def _unresponsive(self, silent: bool) -> None:
        if silent:
            self._offer_restart("The engine does not answer. What was measured is kept.", "warning")
        else:
            self._messages.clear("engine")

    def _logged(self, text: str) -> None:
        for page in self._documents.pages:
            page.document.requests.logged.emit("engine", text)

    def _notified(self, _document: str, event: Event) -> None:
        if isinstance(event, Probing) and not self.states:
            self._welcome.show_probing(event.number, event.total)

    # -- pages -------------------------------------------------------------------------

    def _open_failed(self, reason: str) -> None:
        if self._client.state == "stopped":
            self._offer_restart(reason, "error")
        else:
            # Several files may have been dropped at once: each has its line.
            lines = dict.fromkeys([*self._messages.text("open").splitlines(), reason])
            self._messages.show_message("\n".join(lines), "error", topic="open")

    def _offer_restart(self, text: str, kind: str) -> None:
        self._messages.show_message(text, kind, "Restart the engine", self.restart, topic="engine")
