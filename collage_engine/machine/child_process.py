"""Starts a child process, exchanges messages with it by pipes, and ends it.

The child is a fresh Python (never a fork of this one) in a session of its own, below a *warden*
process (``worker_child``). Requests and replies are pickled over pipes of their own; of what it
prints to standard output and error the end is kept, for reasons. Closing the life pipe, or the
death of this process however sudden, ends the child and all of its descendants.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import pickle
import re
import select
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from collage_engine.machine.logs import for_children
from collage_engine.machine.processes import (
    descendants,
    kill,
    private_bytes,
    signal_name,
    tree_private_bytes,
)
from collage_engine.machine.worker_child import HEADER, pack_message
from collage_engine.records.reasons import MOST_CHARACTERS, last_line, place_in_file
from collage_engine.records.time_limits import LEAST_S

TAIL_BYTES = 1 << 16
"""Bytes of the child's output that are read at once, and kept: as many as a pipe holds (pipe(7)),
so that one read takes all that a dead child left."""
PIPE_BYTES = 1 << 20
"""Size in bytes that is asked for the reply pipe, and read at a time: the most that Linux gives
without privileges (``pipe-max-size`` in pipe(7)), so that arrays need few turns of the loop."""
END_S = 2.0
"""Seconds that a child may take to end after its life pipe was closed, or after it closed its own
pipes; chosen: the warden needs milliseconds unless the machine is swapping."""
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
        """Whether the child has closed its side, or is gone."""
        self._outgoing = memoryview(b"")
        self._incoming = bytearray()
        self._tail = b""
        self._life = self._requests = self._replies = -1
        life_child, self._life = os.pipe()
        requests_child, self._requests = os.pipe()
        self._replies, replies_child = os.pipe()
        theirs = (life_child, requests_child, replies_child)
        log = dataclasses.asdict(for_children())
        config = {
            "path": [p or os.getcwd() for p in sys.path],
            "arguments": [target, *theirs, name, os.getpid(), log],
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **env},
                pass_fds=theirs,
                start_new_session=True,
            )
        except OSError:
            self._close_pipes()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        assert self._process.stderr is not None
        self._errors = self._process.stderr
        os.set_blocking(self._requests, False)
        os.set_blocking(self._errors.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):  # the system may allow no larger pipe
            fcntl.fcntl(self._replies, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._replies, selectors.EVENT_READ)
        self._selector.register(self._errors.fileno(), selectors.EVENT_READ)

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

    # -- requests and replies ----------------------------------------------------------

    def send(self, message: Any) -> None:
        """Queues a request, which ``exchange`` writes."""
        self._outgoing = memoryview(pack_message(message))
        self._selector.register(self._requests, selectors.EVENT_WRITE)

    def exchange(self, wait_s: float) -> None:
        """Write and read what the pipes take and hold, waiting up to ``wait_s`` for something."""
        for key, _ in self._selector.select(wait_s):
            if key.fd == self._requests:
                self._write()
            elif key.fd == self._replies:
                self.ended |= not self._receive()
            elif not self._keep_output():
                self._selector.unregister(key.fd)
        if not self.alive:
            # The child's last message, such as what is at fault, may still lie in the pipe.
            while select.select([self._replies], [], [], 0)[0] and self._receive():
                pass
            self.ended = True

    def messages(self) -> Iterator[tuple[str, Any]]:
        """Take the complete messages (kind, body) that have arrived."""
        while len(self._incoming) >= HEADER.size:
            size = HEADER.size + HEADER.unpack_from(self._incoming)[0]
            if len(self._incoming) < size:
                return
            body = bytes(memoryview(self._incoming)[HEADER.size : size])
            del self._incoming[:size]
            yield pickle.loads(body)

    def _write(self) -> None:
        try:
            self._outgoing = self._outgoing[os.write(self._requests, self._outgoing) :]
        except BrokenPipeError:
            self.ended = True
        if self.ended or not self._outgoing:
            self._selector.unregister(self._requests)

    def _receive(self) -> bool:
        """Take what lies in the reply pipe; False at its end."""
        data = os.read(self._replies, PIPE_BYTES)
        self._incoming += data
        return bool(data)

    def _keep_output(self) -> bool:
        """Keep the end of what it printed; False at the end of the stream."""
        try:
            data = os.read(self._errors.fileno(), TAIL_BYTES)
        except BlockingIOError:
            return True
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        return bool(data)

    # -- the end -----------------------------------------------------------------------

    def how_it_ended(self) -> str:
        """Return why the child ended: its signal or status, and the last line it printed."""
        try:
            code: int | None = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            code = None  # it closed its pipe but lives on, or the warden still clears up
        self._keep_output()
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
        self._close_pipes()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(self._process.pid), self._process.pid]:
                kill(pid)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver
                self._process.wait(LEAST_S)
        self._errors.close()

    def _close_pipes(self) -> None:
        if hasattr(self, "_selector"):
            self._selector.close()
        for descriptor in (self._life, self._requests, self._replies):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._life = self._requests = self._replies = -1

    def __del__(self) -> None:
        # kill() would wait. Without the life pipe the warden ends the child.
        self._close_pipes()


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
