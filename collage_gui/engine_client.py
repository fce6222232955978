"""Runs the engine for the desktop: where it runs, its process, and what documents ask it.

The window must survive anything that process does. It may crash (its requests fail with the
reason, ``stopped`` is emitted), hang (a watchdog pings it and says so), answer late (answers find
their request by id, answers nobody waits for are dropped), speak another version or no protocol at
all. Nothing here blocks.
"""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, QTimer, Signal

import collage_engine
from collage_engine.records import protocol
from collage_engine.records.protocol import Answer, answer_type
from collage_engine.support.files import LARGEST_TEXT
from collage_engine.support.time_limits import ANSWER_S
from collage_engine.support.typed import decode
from collage_gui.theme import ATTENTION_MS, FLOW_MS

Kind = Literal["local", "ssh", "command"]


@dataclass(frozen=True)
class Connection:
    """A way to start an engine: which program, and on which machine.

    ``target`` is a host for ``ssh``, and a command line for ``command``.
    """

    kind: Kind = "local"
    target: str = ""

    @property
    def command(self) -> list[str]:
        """Returns the command line that starts the engine."""
        if self.kind == "ssh":
            # A password prompt would hang a process without a terminal, and so would a host that is
            # gone: ssh ends when it has not answered three times.
            options = ["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15"]
            return ["ssh", *options, "--", self.target, "collage", "serve"]
        if self.kind == "command":
            return shlex.split(self.target)
        return [sys.executable, "-P", "-m", "collage_engine", "serve"]

    @property
    def is_remote(self) -> bool:
        """Tells whether it is another machine, to which models must be sent by value."""
        return self.kind == "ssh"

    @property
    def title(self) -> str:
        """Says where the engine runs, as the window says it."""
        return {
            "local": "this machine",
            "ssh": f"ssh {self.target}",
            "command": "a given command",
        }[self.kind]


def parse_connection(text: str) -> Connection:
    """Read a connection as it is typed.

    Args:
        text: ``local``, ``ssh:HOST`` or ``command:…``.

    Raises:
        ValueError: The text is none of these.
    """
    kind, _, target = text.partition(":")
    if kind == "local":
        return Connection()
    if kind in ("ssh", "command") and target.strip():
        target = target.strip()
        if kind == "ssh" and target.startswith("-"):
            raise ValueError(f"{target!r} is no host name")
        return Connection(kind, target)  # type: ignore[arg-type]
    raise ValueError(f"{text!r}: a connection is local, ssh:HOST or command:…")


def python_environment() -> QProcessEnvironment:
    """Return an environment in which Python finds the same packages, also from a checkout."""
    environment = QProcessEnvironment.systemEnvironment()
    root = os.path.dirname(os.path.dirname(os.path.abspath(collage_engine.__file__)))
    python_path = environment.value("PYTHONPATH")
    environment.insert("PYTHONPATH", root + (os.pathsep + python_path if python_path else ""))
    return environment


SILENCE_S = ATTENTION_MS / 1000 / 2
"""Seconds after which an engine that owes an answer and is silent is pinged, and after as many more
is called unresponsive: the user hears of it while the attention lasts."""


class _Message(msgspec.Struct):
    id: int | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: dict[str, Any] | None = None


OnResult = Callable[[Any], None]
OnError = Callable[[str], None]


@dataclass
class _Pending:
    request: protocol.Request[Any]
    on_result: OnResult
    on_error: OnError
    sent: float = field(default_factory=time.monotonic)


class EngineClient(QObject):
    """Runs one engine process; ``state`` is starting, ready or stopped."""

    ready = Signal(object)
    """A signal with the engine's ``HelloAnswer``, once it has said hello."""
    stopped = Signal(str)
    """A signal with the reason why the engine is gone; it is not emitted when the engine was shut
    down on purpose."""
    unresponsive = Signal(bool)
    notified = Signal(str, object)
    """A signal with the handle of a document and an event of it."""
    logged = Signal(str)
    """A signal with a line of the engine's standard error."""

    def __init__(self, connection: Connection, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.connection = connection
        self.state = "stopped"
        self.hello: protocol.HelloAnswer | None = None
        self._process: QProcess | None = None
        self._pending: dict[int, _Pending] = {}
        self._next = 1
        self._buffer = bytearray()
        self._lines: deque[bytes] = deque()
        """What has arrived and was not read: also where reading a line has failed."""
        self._errors: deque[str] = deque(maxlen=8)
        self._heard = time.monotonic()
        self._silent = False
        self._watch = QTimer(self, interval=FLOW_MS)
        self._watch.timeout.connect(self._watchdog)

    # -- life --------------------------------------------------------------------------

    def start(self) -> None:
        """Start the process; ``ready`` or ``stopped`` follows."""
        if self._process is not None:
            return
        self.state = "starting"
        self._buffer.clear()
        self._lines.clear()
        self._errors.clear()
        process = QProcess(self)
        environment = python_environment()
        environment.insert("PYTHONUNBUFFERED", "1")
        process.setProcessEnvironment(environment)
        process.readyReadStandardOutput.connect(self._read)
        process.readyReadStandardError.connect(self._read_errors)
        process.finished.connect(self._finished)
        process.errorOccurred.connect(self._failed)
        self._process = process
        self._heard = time.monotonic()
        command = self.connection.command
        process.start(command[0], command[1:])
        if self._process is None:
            return
        self.request(protocol.Hello(), self._greeted, self._end)
        self._watch.start()

    def shutdown(self, wait_ms: int = 1500) -> None:
        """End the process: it sees its input close, and is killed if that does not do."""
        self._release(wait_ms)
        self._fail_all("the engine was shut down")

    def _release(self, wait_ms: int) -> None:
        """Stop listening to the process, and kill it if it does not end within so long."""
        process, self._process = self._process, None
        self._watch.stop()
        self.state = "stopped"
        if process is None:
            return
        process.blockSignals(True)
        if process.state() != QProcess.ProcessState.NotRunning:
            process.closeWriteChannel()
            if not wait_ms or not process.waitForFinished(wait_ms):
                process.kill()
                process.waitForFinished(1000)
        process.deleteLater()

    # -- requests ----------------------------------------------------------------------

    def request(
        self,
        request: protocol.Request[Any],
        on_result: OnResult,
        on_error: OnError,
    ) -> None:
        """Send a request; one of the two functions is called later, with the result or a sentence.

        The engine answers those made before it has said hello after its hello.
        """
        if self.state == "stopped":
            # It is called later, as with every answer: no call is answered within itself.
            reason = "the engine is not running: restart it"
            QTimer.singleShot(0, self, lambda: on_error(reason))
            return
        number, self._next = self._next, self._next + 1
        self._pending[number] = _Pending(request, on_result, on_error)
        message = {"jsonrpc": "2.0", "id": number, "method": request.method, "params": request}
        if self._process is not None:
            self._process.write(msgspec.json.encode(message) + b"\n")

    # -- what arrives ------------------------------------------------------------------

    def _read(self) -> None:
        if self._process is None:
            return
        self._heard = time.monotonic()
        if self._silent:
            self._silent = False
            self.unresponsive.emit(False)
        arrived = self._process.readAllStandardOutput().data()
        self._buffer += arrived
        if len(self._buffer) > LARGEST_TEXT:
            self._end("the engine sent a line longer than 256 MiB")
            return
        if b"\n" not in arrived:
            return
        *lines, rest = self._buffer.split(b"\n")
        self._buffer = rest
        self._lines.extend(bytes(line) for line in lines if line.strip())
        while self._lines:
            self._line(self._lines.popleft())

    def _line(self, line: bytes) -> None:
        try:
            message = decode(line, _Message)
        except msgspec.MsgspecError:
            text = line[:200].decode("utf-8", "replace")
            self.logged.emit(f"not a message of the protocol: {text}")
            return
        if message.method is not None:
            self._notification(message.params)
            return
        waiting = self._pending.pop(message.id, None) if message.id is not None else None
        if waiting is None:
            return
        if message.error is not None:
            waiting.on_error(str(message.error.get("message", "the engine gave no reason")))
            return
        try:
            result = decode(message.result or b"null", answer_type(type(waiting.request)))
        except msgspec.MsgspecError as error:
            if isinstance(waiting.request, protocol.Hello):
                self._end(f"the engine speaks another protocol ({error})")
            else:
                method = waiting.request.method
                waiting.on_error(f"the engine's answer to {method} is malformed: {error}")
            return
        waiting.on_result(result)

    def _notification(self, raw: msgspec.Raw) -> None:
        try:
            told = decode(raw, protocol.Notification)
        except msgspec.MsgspecError as error:
            self.logged.emit(f"malformed notification: {error}")
            return
        self.notified.emit(told.document, told.event)

    def _read_errors(self) -> None:
        if self._process is None:
            return
        text = bytes(self._process.readAllStandardError().data()).decode("utf-8", "replace")
        for line in text.splitlines()[-200:]:
            if line.strip():
                self._errors.append(line.strip())
                self.logged.emit(line.rstrip())

    # -- trouble -----------------------------------------------------------------------

    def _greeted(self, answer: protocol.HelloAnswer) -> None:
        self.hello = answer
        self.state = "ready"
        self.ready.emit(answer)

    def _watchdog(self) -> None:
        now = time.monotonic()
        pings = [w.sent for w in self._pending.values() if isinstance(w.request, protocol.Hello)]
        if self.state == "starting":
            # Where other programs use the processors, engines were seen to start in over 20 s.
            if pings and now - min(pings) > ANSWER_S:
                engine = f"the engine ({self.connection.title})"
                self._end(f"{engine} did not answer within {ANSWER_S:.0f} s")
        elif pings:
            if now - max(min(pings), self._heard) > SILENCE_S and not self._silent:
                self._silent = True
                self.unresponsive.emit(True)
        elif self._pending:
            oldest = min(w.sent for w in self._pending.values())
            if now - max(oldest, self._heard) > SILENCE_S:
                self.request(protocol.Hello(), lambda _: None, lambda _: None)

    def _failed(self, error: QProcess.ProcessError) -> None:
        if error == QProcess.ProcessError.FailedToStart:
            self._end(f"the engine could not be started: {self.connection.command[0]} not found")

    def _finished(self, code: int, status: QProcess.ExitStatus) -> None:
        self._read_errors()
        self._read()
        if status == QProcess.ExitStatus.CrashExit:
            what = f"the engine crashed (signal {code})" if code else "the engine crashed"
        else:
            what = f"the engine ended with exit status {code}"
        last = self._errors[-1] if self._errors else ""
        self._end(f"{what}: {last}" if last else what)

    def _end(self, reason: str) -> None:
        if self._process is None and self.state == "stopped":
            return
        self._silent = False
        self._release(0)
        self._fail_all(reason)
        self.stopped.emit(reason)

    def _fail_all(self, reason: str) -> None:
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not isinstance(waiting.request, protocol.Hello):
                waiting.on_error(reason)


def model_by_value(path: str) -> protocol.ModelOpen:
    """Return the request that opens a model by its content, for an engine elsewhere.

    Args:
        path: An ONNX file.

    Raises:
        OSError: The file cannot be read.
    """
    with open(path, "rb") as file:
        return protocol.ModelOpen(content=file.read(), name=os.path.basename(path))


class EngineRequests(QObject):
    """Sends the requests of one document and drops answers that have become outdated."""

    failed = Signal(str)
    """A request failed: one sentence for the banner."""
    logged = Signal(str, str)
    """A line for the document's log: its level (``info``, ``warning``, ``error``, or ``engine`` for
    the engine's standard error) and its text."""

    def __init__(self, client: EngineClient, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.client = client
        self.handle = ""
        """The engine's name of the document; empty while the engine does not have it."""
        self._newest: dict[str, int] = {}

    def send(
        self,
        request: protocol.Request[Answer],
        then: Callable[[Answer], None] | None = None,
        failed: Callable[[str], None] | None = None,
        topic: str = "",
    ) -> None:
        """Send a request.

        Args:
            request: The request.
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

        self.client.request(request, on_result, on_error)

    def drop(self, topic: str) -> None:
        """Drop the answers of this topic that are still awaited."""
        self._newest[topic] = self._newest.get(topic, 0) + 1

    def drop_all(self) -> None:
        """Drop all awaited answers that have a topic."""
        for topic in self._newest:
            self._newest[topic] += 1
