"""The engine behind the main window: started, lost, restarted, elsewhere; recovery copies."""

from __future__ import annotations

import os
from collections.abc import Callable

from PySide6.QtCore import QTimer
from PySide6.QtWidgets import (
    QInputDialog,
    QLineEdit,
)

from collage_engine.drawing.palette import learn
from collage_engine.service import protocol
from collage_gui import recovery
from collage_gui.connections import parse_connection
from collage_gui.document_window import DocumentWindow
from collage_gui.window_chrome import WindowChrome


class WindowEngine(WindowChrome):
    """What the window does when the engine comes and goes."""

    closing: bool
    _remove: Callable[[DocumentWindow], None]
    _copies: dict[str, recovery.Copy]

    def start_engine(self) -> None:
        self.client.start()

    def _engine_ready(self, hello: protocol.HelloAnswer) -> None:
        self.banner.clear("engine")
        self._show_device()
        self.client.request(
            "toolchains.list",
            None,
            self._toolchains_arrived,
            lambda reason: self.banner.say(reason, "error"),
        )
        for page in self.pages:
            page.run_settings.show_device(self._device_text())
            if not page.document.handle and page.property("opened"):
                self._reopen(page)
        self._update()

    def _reopen(self, page: DocumentWindow) -> None:
        """After a restart: the document as it was last kept, then its pins."""
        document = page.document
        copy = self._copies.get(document.key)
        if copy is not None and copy.session.exists():
            document.open_session(str(copy.session), recovered=True)
        elif document.session_path and os.path.exists(document.session_path):
            document.open_session(document.session_path)
        else:
            document.open_model(document.path)

    def _toolchains_arrived(self, answer: protocol.Toolchains) -> None:
        self.states = answer.toolchains
        learn(self.states)
        hello = self.client.hello
        self.welcome.show_engine(hello.host if hello else "", self.states)
        for page in self.pages:
            page.show_toolchains(self.states)

    def _engine_stopped(self, reason: str) -> None:
        doing = next((p.document.progress.now for p in self.pages if p.document.progress), "")
        for page in self.pages:
            if not page.property("opened"):
                self._remove(page)
            else:
                page.document.engine_lost()
        text = reason + (f" while measuring {doing}" if doing else "")
        self.banner.say(
            f"{text}. What was measured is kept.",
            "error",
            "Restart the engine",
            self.restart_engine,
            topic="engine",
        )
        self.welcome.show_engine_trouble(reason)
        self._show_device()
        self._update()

    def _engine_unresponsive(self, silent: bool) -> None:
        if silent:
            self.banner.say(
                "The engine does not answer. What was measured is kept.",
                "warning",
                "Restart the engine",
                self.restart_engine,
                topic="engine",
            )
        else:
            self.banner.clear("engine")

    def restart_engine(self) -> None:
        for page in self.pages:
            page.document.engine_lost()
        self.banner.clear("engine")
        self.client.restart()
        self._show_device()

    def choose_connection(self) -> None:
        text, accepted = QInputDialog.getText(
            self,
            "Connection",
            "Where the engine runs:\nlocal, ssh:HOST, or python:/path/to/python",
            QLineEdit.EchoMode.Normal,
            self.connection.text,
        )
        if accepted:
            self.connect_to(text)

    def connect_to(self, text: str) -> None:
        """Use another engine; open documents are opened there anew."""
        try:
            connection = parse_connection(text)
        except ValueError as error:
            self.banner.say(str(error), "error")
            return
        self.connection = self.client.connection = connection
        for page in self.pages:
            page.document.engine_lost()
        self.client.restart()
        self._show_device()

    def _engine_logged(self, text: str) -> None:
        for page in self.pages:
            page.document.add_log("engine", text)

    def _device_text(self) -> str:
        hello = self.client.hello if self.client.state == "ready" else None
        if hello is None:
            return {"starting": "starting the engine…", "stopped": "no engine"}.get(
                self.client.state, "no engine"
            )
        where = f" on {hello.host}" if self.connection.kind == "ssh" else ""
        text = hello.device.description or hello.device.name
        for mark in ("(R)", "(TM)", " Processor", " CPU"):
            text = text.replace(mark, "")
        return f"{text}{where}"

    def _show_device(self) -> None:
        text = self._device_text()
        self.device.setText(f"{text} · {self.connection.title}")
        short = text if len(text) < 34 else text[:32] + "…"
        self.device_button.setText(short)
        self.device_button.setToolTip(
            f"{text}\nEngine: {self.connection.title}\nClick to connect elsewhere."
        )

    # -- recovery ----------------------------------------------------------------------

    def autosave(self) -> None:
        for page in self.pages:
            if page.document.unsaved:
                self._save_copy(page)

    def _save_later(self, page: DocumentWindow) -> None:
        if page.document.unsaved and not page.property("copying"):
            page.setProperty("copying", True)
            QTimer.singleShot(1500, page, lambda: self._save_copy(page))

    def _save_copy(self, page: DocumentWindow) -> None:
        page.setProperty("copying", False)
        document = page.document
        if (
            not self.preferences.get("autosave")
            or not document.handle
            or document.read_only
            or self.connection.is_remote
            or self.client.state != "ready"
            or self.closing
        ):
            return
        try:
            copy = self._copies.get(document.key)
            if copy is None:
                copy = recovery.new_copy(document.path, document.session_path)
                self._copies[document.key] = copy
        except OSError as error:
            document.add_log("warning", f"no recovery copy: {error}")
            return
        document.autosave(str(copy.session), lambda: None)
