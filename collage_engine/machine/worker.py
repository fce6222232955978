"""The one way to run work in a child process.

A ``Worker`` is a fresh Python (never a fork of this one) that calls one function for every
request. It may crash, hang, be killed, print, fork or eat memory: the caller gets an exception
with the reason, and the next call starts a new child.

* Requests and replies are pickled over pipes of their own; standard output and error are kept
  as a tail for reasons.
* The child sits in a session of its own below a *warden* process (``worker_child``). Closing
  the life pipe, or the death of this process however sudden, ends the child and all of its
  descendants.
* Memory is watched as resident private memory, not limited by RLIMIT_AS: compilers and thread
  pools reserve far more address space than they use.
"""

from __future__ import annotations

import contextlib
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
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from collage_engine.machine.processes import descendants, private_bytes, signal_name
from collage_engine.machine.worker_child import HEADER, pack_message
from collage_engine.records import errors
from collage_engine.records.errors import Cancelled, CollageError

TICK_S = 0.05
"""How often cancel, time and memory are looked at."""
TAIL_BYTES = 16384
FATAL = "Fatal Python error: "
FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')

_BOOT = (
    "import sys, json; c = json.loads(sys.argv[1]); sys.path[:] = c['path']; "
    "from collage_engine.machine.worker_child import main; main(*c['arguments'])"
)


class WorkerError(CollageError):
    """Work in a child did not end with a result."""


class WorkerCrashed(WorkerError):
    """The child ended before it answered, or was ended for its memory; ``reason`` says how."""

    def __init__(self, reason: str, tail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.tail = tail


class WorkerTimeout(WorkerError):
    """No answer in time; the child was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.reason = str(self)
        self.seconds = seconds


class RemoteError(WorkerError):
    """An exception in the child that is none of the engine's own error classes."""

    def __init__(self, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.kind = kind
        self.message = message
        self.traceback = traceback


class Worker:
    """A child process that calls ``target`` (``package.module:function``) for each request.

    The target takes the payload, and may take a second positional parameter: a function that
    sends a message to ``on_message``. A class is instantiated once per child and its instance
    called, so it can keep state. The child starts at the first call, and anew after a crash;
    ``generation`` counts starts, so that a caller can tell that the state is gone.
    """

    def __init__(
        self,
        target: str,
        *,
        env: Mapping[str, str] | None = None,
        memory_limit_bytes: int | None = None,
        name: str = "collage-worker",
    ) -> None:
        self.target = target
        self.env = dict(env or {})
        self.memory_limit_bytes = memory_limit_bytes
        self.name = name
        self.generation = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._server = 0
        self._life = self._requests = self._replies = -1
        self._incoming = bytearray()
        self._tail: deque[bytes] = deque()
        self._lock = threading.RLock()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """The serving process, once it said hello."""
        return self._server if self.alive and self._server else None

    def tail(self) -> str:
        """The end of what the child printed."""
        return b"".join(self._tail).decode(errors="replace")

    def call(
        self,
        payload: Any,
        timeout_s: float | None = None,
        cancel: threading.Event | None = None,
        on_message: Callable[[Any], None] | None = None,
        silence_s: float | None = None,
    ) -> Any:
        """Run the target on ``payload`` in the child and return what it returns.

        ``timeout_s`` limits the whole call (the child's start included), ``silence_s`` the time
        without any message. Raises ``WorkerTimeout``, ``WorkerCrashed``, ``Cancelled`` (the
        child is ended in these three cases), an engine error as itself, or ``RemoteError``.
        """
        with self._lock:
            if cancel is not None and cancel.is_set():
                raise Cancelled("stopped before the work began")
            if not self.alive:
                self._kill()
                self._start()
            try:
                return self._converse(payload, timeout_s, cancel, on_message, silence_s)
            except (RemoteError, _Answered) as error:
                raise (error.error if isinstance(error, _Answered) else error) from None
            except BaseException:
                self._kill()
                raise

    def close(self) -> None:
        """End the child and everything below it."""
        with self._lock:
            self._kill()

    # ------------------------------------------------------------------ the conversation

    def _converse(
        self,
        payload: Any,
        timeout_s: float | None,
        cancel: threading.Event | None,
        on_message: Callable[[Any], None] | None,
        silence_s: float | None,
    ) -> Any:
        process = self._process
        assert process is not None and process.stderr is not None
        outgoing = memoryview(pack_message(payload))
        began = heard = time.monotonic()
        next_tree_look = began + 1.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._replies, selectors.EVENT_READ)
            selector.register(process.stderr.fileno(), selectors.EVENT_READ)
            selector.register(self._requests, selectors.EVENT_WRITE)
            while True:
                ended = False
                for key, _ in selector.select(TICK_S):
                    if key.fd == self._requests:
                        try:
                            outgoing = outgoing[os.write(self._requests, outgoing) :]
                        except BrokenPipeError:
                            ended = True
                        if ended or not outgoing:
                            selector.unregister(self._requests)
                    elif key.fd == self._replies:
                        ended |= not self._receive()
                    elif not self._drain_stderr():
                        selector.unregister(key.fd)
                if process.poll() is not None:
                    # Its last words, who is to blame for one, may still lie in the pipe.
                    ended = True
                    while select.select([self._replies], [], [], 0)[0] and self._receive():
                        pass
                for kind, body in self._messages():
                    heard = time.monotonic()
                    if kind == "hello":
                        self._server = body
                    elif kind == "message":
                        if on_message is not None:
                            on_message(body)
                    elif kind == "result":
                        return body
                    else:
                        raise _remote(body)
                if ended:
                    raise self._crash()
                now = time.monotonic()
                if cancel is not None and cancel.is_set():
                    raise Cancelled("stopped by the user")
                if timeout_s is not None and now - began > timeout_s:
                    raise WorkerTimeout(timeout_s)
                if silence_s is not None and now - heard > silence_s:
                    raise WorkerTimeout(silence_s)
                if self.memory_limit_bytes is not None:
                    look_at_tree = now >= next_tree_look
                    if look_at_tree:
                        next_tree_look = now + 2.0
                    self._check_memory(look_at_tree)

    def _receive(self) -> bool:
        """Take what lies in the reply pipe; False at its end."""
        data = os.read(self._replies, 1 << 20)
        self._incoming += data
        return bool(data)

    def _messages(self) -> Iterable[tuple[str, Any]]:
        while len(self._incoming) >= HEADER.size:
            size = HEADER.size + HEADER.unpack_from(self._incoming)[0]
            if len(self._incoming) < size:
                return
            body = bytes(memoryview(self._incoming)[HEADER.size : size])
            del self._incoming[:size]
            yield pickle.loads(body)

    def _check_memory(self, whole_tree: bool) -> None:
        assert self._process is not None and self.memory_limit_bytes is not None
        if whole_tree:
            used = sum(private_bytes(pid) for pid in descendants(self._process.pid))
        else:
            used = private_bytes(self._server) if self._server else 0
        if used > self.memory_limit_bytes:
            raise WorkerCrashed(
                f"used more than {self.memory_limit_bytes / 2**30:.3g} GiB of memory", self.tail()
            )

    def _drain_stderr(self) -> bool:
        """Read what is there; False at the end of the stream."""
        assert self._process is not None and self._process.stderr is not None
        try:
            data = os.read(self._process.stderr.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        self._tail.append(data[-TAIL_BYTES:])
        while len(self._tail) > 1 and sum(map(len, self._tail)) - len(self._tail[0]) > TAIL_BYTES:
            self._tail.popleft()
        return bool(data)

    def _crash(self) -> WorkerCrashed:
        """Why the child ended: its signal or status, and the last line it printed."""
        assert self._process is not None
        try:
            code = self._process.wait(2)
        except subprocess.TimeoutExpired:
            # It closed its pipe but lives on, or the warden still clears up.
            code = None
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline and self._process.stderr is not None:
            before = len(self._tail)
            if not self._drain_stderr() or len(self._tail) == before:
                break
        if code is None:
            how = "closed its connection"
        elif code < 0:
            how = f"killed by {signal_name(-code)}"
        else:
            how = f"ended with status {code}"
        last = last_words(self.tail())
        return WorkerCrashed(f"{how}: {last[:300]}" if last else how, self.tail())

    # ------------------------------------------------------------------ start and end

    def _start(self) -> None:
        life_child, self._life = os.pipe()
        requests_child, self._requests = os.pipe()
        self._replies, replies_child = os.pipe()
        theirs = (life_child, requests_child, replies_child)
        arguments = [self.target, *theirs, self.name, os.getpid()]
        config = {"path": [p or os.getcwd() for p in sys.path], "arguments": arguments}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, **self.env},
                pass_fds=theirs,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerCrashed(f"the child process could not be started: {error}") from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        os.set_blocking(self._requests, False)
        with contextlib.suppress(OSError, AttributeError):  # a larger pipe: fewer turns
            fcntl.fcntl(self._replies, fcntl.F_SETPIPE_SZ, 1 << 20)
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)
        self._server = 0
        self._incoming.clear()
        self._tail.clear()
        self.generation += 1

    def _kill(self) -> None:
        """Let go of the life pipe: the warden ends all below it. Then make sure."""
        process, self._process = self._process, None
        for descriptor in (self._life, self._requests, self._replies):
            if descriptor >= 0:
                os.close(descriptor)
        self._life = self._requests = self._replies = -1
        if process is None:
            return
        try:
            process.wait(2)
        except subprocess.TimeoutExpired:
            for pid in [*descendants(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver
                process.wait(5)
        if process.stderr is not None:
            process.stderr.close()

    def __del__(self) -> None:
        # Not the whole of close(): that waits. Without the life pipe the warden ends the child.
        for descriptor in (self._life, self._requests, self._replies):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


class _Answered(Exception):
    """Carries an engine error out of the conversation: the child answered and lives on."""

    def __init__(self, error: CollageError) -> None:
        super().__init__(str(error))
        self.error = error


def _remote(body: dict[str, Any]) -> Exception:
    kind = getattr(errors, body["type"], None) if body["module"] == errors.__name__ else None
    if isinstance(kind, type) and issubclass(kind, CollageError):
        error = kind(body["message"])
        if body["details"] is not None:
            error.details = body["details"]  # type: ignore[attr-defined]
        return _Answered(error)
    return RemoteError(body["type"], body["message"], body["traceback"])


def last_words(text: str) -> str:
    """The last line that a process wrote; of one that crashed in a call from Python, that before
    the crash, or else the call it crashed in."""
    before, fatal, after = text.partition(FATAL)
    last = next((s for s in reversed(before.splitlines()) if s.strip()), "").strip()
    frame = FRAME.search(after.partition("Current thread")[2] or after) if fatal else None
    if last or frame is None:
        return last
    where = "/".join(Path(frame["file"]).parts[-2:])
    return f"in {frame['name']} ({where}, line {frame['line']})"
