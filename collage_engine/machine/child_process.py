"""Starts a child process, exchanges messages with it by pipes, and ends it.

The child is a fresh Python (never a fork of this one) in a session of its own, below a *warden*
process (``worker_child``). Requests and replies are pickled over a connection of their own; of what
it prints to standard output and error the end is kept, for reasons. Closing its standard input (the
life pipe), or the death of this process however sudden, ends the child and all of its descendants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import IO, Any

from collage_engine.machine.faults import RISK_BYTES, RiskMarker
from collage_engine.machine.logs import for_children
from collage_engine.machine.processes import (
    descendants,
    kill,
    private_bytes,
    processor_s,
    signal_name,
    tree_private_bytes,
)
from collage_engine.support.errors import MOST_CHARACTERS, last_line, place_in_file
from collage_engine.support.time_limits import LEAST_S

TAIL_BYTES = 1 << 16
"""Bytes of the child's output that are read at once and kept: as many as a pipe holds (pipe(7))."""
END_S = LEAST_S / 2
"""Seconds that a child may take to end after its life pipe was closed or after it closed its
connection, and that reading what a dead one left may take: half of the least that any step gets.
Both take milliseconds unless the machine is swapping."""
FATAL = "Fatal Python error: "
"""The beginning of what ``faulthandler`` writes when a library crashes."""
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
"""A line of the stack that ``faulthandler`` writes."""

_BOOT = (
    "import sys, json; c = json.loads(sys.argv[1]); sys.path[:] = c['path']; "
    "from collage_engine.machine.worker_child import main; main(*c['arguments'])"
)


class ChildProcess:
    """A running child that serves requests to one function.

    Args:
        target: The function, as ``package.module:function``.
        env: Environment variables to set beside this process's own.
        name: Name of the process, as ``ps`` shows it.

    Raises:
        OSError: The process could not be started.
    """

    def __init__(self, target: str, env: Mapping[str, str], name: str) -> None:
        self.server_pid = 0
        """The process that serves, once it has said hello; 0 before."""
        self.ended = False
        """Whether the child has closed its side, or is gone, and all its messages were taken."""
        self._connection, theirs = Pipe()
        risk = os.memfd_create("collage-risk")
        os.truncate(risk, RISK_BYTES)
        self.risk = RiskMarker(risk)
        """Who is at risk there, as ``OWN_RISK`` of the server says."""
        log = for_children()
        inherited = [theirs.fileno(), risk] + ([log.shown_by] if log.shown_by >= 0 else [])
        config = {
            "path": [p or os.getcwd() for p in sys.path],
            "arguments": [
                target,
                theirs.fileno(),
                risk,
                name,
                os.getpid(),
                dataclasses.asdict(log),
            ],
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                pass_fds=inherited,
                start_new_session=True,
            )
        except OSError:
            self._connection.close()
            raise
        finally:
            theirs.close()
            os.close(risk)
        assert self._process.stdin is not None and self._process.stderr is not None
        self._life, errors = self._process.stdin, self._process.stderr
        self._arrived: SimpleQueue[bytes | None] = SimpleQueue()
        self._tail = bytearray()
        # Functions, not methods: a thread must not keep a child alive that nobody holds any more.
        self._threads = [
            _start(_receive, self._connection, self._arrived),
            _start(_keep_output, errors, self._tail),
        ]

    @property
    def alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.poll() is None

    @property
    def warden_pid(self) -> int:
        """Return the process that watches over the server, its parent."""
        return self._process.pid

    def used_bytes(self, *, whole_tree: bool) -> int:
        """Return the private memory of the server, or of the server and all that it started."""
        if whole_tree:
            return tree_private_bytes(self._process.pid)
        return private_bytes(self.server_pid) if self.server_pid else 0

    def processor_s(self) -> float:
        """Return the processor time of the child and of all that it started, in seconds."""
        return processor_s((self._process.pid, *descendants(self._process.pid)))

    # -- requests and replies ----------------------------------------------------------

    def send(self, message: Any) -> None:
        """Send a request, in a thread of its own, because a child that hangs does not read it."""
        _start(_send, self._connection, pickle.dumps(message, protocol=5))

    def receive(self, wait_s: float) -> tuple[str, Any] | None:
        """Return the next message (kind, body); None: none came in ``wait_s``, or it has ended.

        What a dead child sent before it died is waited for, however small ``wait_s`` is.
        """
        alive = self.alive
        with contextlib.suppress(Empty):
            packed = self._arrived.get(timeout=wait_s if alive else END_S)
            if packed is not None:
                message: tuple[str, Any] = pickle.loads(packed)
                return message
            alive = False
        self.ended = not alive
        return None

    # -- the end -----------------------------------------------------------------------

    def how_it_ended(self) -> str:
        """Return why the child ended: its signal or status, and the last line it printed."""
        try:
            code: int | None = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None  # it closed its connection but lives on, or the warden still clears up
        self._threads[1].join(END_S)
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"killed by {signal_name(-code)}"
        else:
            how = f"ended with status {code}"
        last = last_words(self._tail.decode(errors="replace"))
        return f"{how}: {last[:MOST_CHARACTERS]}" if last else how

    @property
    def killed(self) -> bool:
        """Return whether it was ended by SIGKILL."""
        return self._process.poll() == -signal.SIGKILL

    def kill(self) -> None:
        """End the child and all below it: close the life pipe for the warden, then make sure."""
        self._life.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(self._process.pid), self._process.pid]:
                kill(pid)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver
                self._process.wait(LEAST_S)
        for thread in self._threads:
            thread.join(END_S)


def _start(work: Callable[..., None], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, name="collage-child", daemon=True)
    thread.start()
    return thread


def _receive(connection: Connection, arrived: SimpleQueue[bytes | None]) -> None:
    """Queue the messages of a child, and None at their end.

    The connection is not closed here: a request may still be on its way by it, and the number of a
    closed descriptor may be that of another file by then.
    """
    with contextlib.suppress(EOFError, OSError, MemoryError):
        while True:
            arrived.put(connection.recv_bytes())
    arrived.put(None)


def _send(connection: Connection, packed: bytes) -> None:
    with contextlib.suppress(OSError):  # the child has ended
        connection.send_bytes(packed)


def _keep_output(errors: IO[bytes], tail: bytearray) -> None:
    """Keep the end of what a child prints."""
    with errors:
        while data := os.read(errors.fileno(), TAIL_BYTES):
            tail += data
            del tail[:-TAIL_BYTES]


def last_words(text: str) -> str:
    """Return the last line that a process wrote before it ended.

    Of one that crashed in a library called from Python: the last line before the crash, or, where
    there is none, the Python function that it crashed in.
    """
    before, fatal, after = text.partition(FATAL)
    last = last_line(before)
    frame = FRAME.search(after.partition("Current thread")[2] or after) if fatal else None
    if last or frame is None:
        return last
    return f"in {frame['name']} ({place_in_file(frame['file'], frame['line'])})"
