"""Speaks JSON-RPC 2.0 over standard input and output.

The loop reads one request a line and never computes: quick methods answer from the engine's
records, long ones run in threads that wait for a child process, so that ``run.cancel`` is
answered while TVM compiles.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import msgspec

from collage_engine.records.event import Event
from collage_engine.records.protocol import (
    Hello,
    Notification,
    PinsSet,
    Request,
    RequestCancel,
    RunCancel,
    RunStart,
)
from collage_engine.service.engine import HANDLERS, Engine
from collage_engine.service.run_client import Ticket
from collage_engine.support.errors import CollageError, UsageError, truncated
from collage_engine.support.typed import convert, decode

_LOG = logging.getLogger(__name__)

KINDS: list[type[Request[Any]]] = [*HANDLERS, RequestCancel]
METHODS = {kind.method: kind for kind in KINDS}
"""The requests by their methods. Errors: code −32000 with the sentence as message and
``data: {kind, exit_status}``; −32601 unknown method; −32602 bad params, naming the field."""


class _Message(msgspec.Struct):
    """A line of JSON-RPC; without an id it is not answered."""

    method: str
    id: int | str | None = None
    params: dict[str, Any] | None = None


class Server:
    """Serves one client with one engine."""

    def __init__(self, source: IO[bytes], sink: IO[bytes]) -> None:
        self._source = source
        self._sink = sink
        self._lock = threading.Lock()
        self.engine = Engine(self._notify)
        self._threads = ThreadPoolExecutor(max_workers=32, thread_name_prefix="request")
        self._tickets: dict[int | str | None, Ticket] = {}
        """Of the requests that wait or are worked on, by their JSON-RPC ids."""

    def serve(self) -> None:
        """Answer until the input ends; then stop every child."""
        try:
            for line in self._source:
                if line.strip():
                    self._receive(line)
        finally:
            self.engine.close()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _receive(self, line: bytes) -> None:
        try:
            message = decode(line, _Message)
        except msgspec.ValidationError as error:
            self._fail(None, -32600, UsageError(f"not a JSON-RPC request: {error}"))
            return
        except msgspec.MsgspecError as error:
            self._fail(None, -32700, UsageError(f"not a JSON document: {error}"))
            return
        method, identity = message.method, message.id
        if method not in METHODS:
            text = f"there is no method {method!r}; known are {', '.join(METHODS)}"
            self._fail(identity, -32601, UsageError(text))
            return
        try:
            request = convert(message.params or {}, METHODS[method], json=True)
        except msgspec.ValidationError as error:
            self._fail(identity, -32602, UsageError(f"{method}: {error}"))
            return
        if isinstance(request, RequestCancel):
            ticket = self._tickets.get(request.request)
            if ticket is not None:
                self.engine.cancel_request(ticket)
            if identity is not None:
                self._write({"jsonrpc": "2.0", "id": identity, "result": None})
        elif isinstance(request, (Hello, PinsSet, RunStart, RunCancel)):
            # A search or a run that a client asks for after new pins must find them, and no others.
            self._answer(identity, request)
        else:
            self._tickets[identity] = Ticket()
            self._threads.submit(self._answer, identity, request)

    def _answer(self, identity: int | str | None, request: Request[Any]) -> None:
        try:
            result = self.engine.request(request, self._tickets.get(identity))
            if identity is not None:
                self._write({"jsonrpc": "2.0", "id": identity, "result": result})
        except CollageError as error:
            self._fail(identity, -32000, error)
        except Exception as error:
            # A defect of ours: the client gets a sentence, the log gets the trace.
            _LOG.exception("request %s failed by a defect", request.method)
            text = f"the engine failed in {request.method}: {error!r}"
            self._fail(identity, -32603, CollageError(text))
        finally:
            self._tickets.pop(identity, None)

    def _fail(self, identity: int | str | None, code: int, error: CollageError) -> None:
        data = {
            "kind": type(error).__name__,
            "exit_status": error.exit_status,
            "details": getattr(error, "details", None),
        }
        told = {"code": code, "message": truncated(str(error)), "data": data}
        self._write({"jsonrpc": "2.0", "id": identity, "error": told})

    def _notify(self, document: str, event: Event) -> None:
        told = Notification(document=document, event=event)
        method = type(event).__struct_config__.tag
        self._write({"jsonrpc": "2.0", "method": method, "params": told})

    def _write(self, message: dict[str, Any]) -> None:
        data = msgspec.json.encode(message) + b"\n"
        with self._lock:
            try:
                self._sink.write(data)
                self._sink.flush()
            except (BrokenPipeError, ValueError):
                # The client is gone; `serve` ends when its side of the input closes.
                pass


def main(verbosity: int = 0) -> int:
    """Serve, as ``collage serve`` does.

    Args:
        verbosity: How much of the log standard error shows, see ``machine.logs.configure``.
    """
    import os

    from collage_engine.machine import logs

    # The desktop keeps the engine's standard error: a defect's trace belongs there.
    logs.configure(verbosity, "collage serve", quietly=logging.ERROR)
    _LOG.info("the engine serves")
    # Children and scratch folders go away in order when a system or a parent ends this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    # Libraries print to file descriptor 1 as they please; the protocol keeps a private copy of
    # it, and whatever they print joins the log on standard error.
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    Server(sys.stdin.buffer, sink).serve()
    return 0
