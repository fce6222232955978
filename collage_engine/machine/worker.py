"""Runs work in a child process; all work in child processes goes this way.

A ``Worker`` calls one function in a child (``child_process``) for every request. The child may
crash, hang, be killed, print, fork or eat memory: the caller gets an exception with the reason, and
the next call starts a new child. Memory is watched as resident private memory, not limited by
RLIMIT_AS: compilers and thread pools reserve far more address space than they use.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from collage_engine.machine.child_process import ChildProcess
from collage_engine.machine.device import memory_bytes
from collage_engine.machine.faults import AtRisk
from collage_engine.machine.processes import STEP_S
from collage_engine.support import errors
from collage_engine.support.errors import Cancelled, CollageError
from collage_engine.support.time_limits import Flag

TICK_S = STEP_S / 10
"""Seconds between looks at cancel, time and the memory of one process: ten to each at a whole
tree, which takes nearly a hundred times as long."""
TREE_FIRST_S, TREE_EVERY_S = 2 * STEP_S, 4 * STEP_S
"""Seconds until the memory of a child's own children is first added up, and between such sums: not
as often as where a placement's memory is the question, since measuring goes on beside."""

LEAST_SHARE = 0.05
"""Share of one processor below which a child counts as standing still, which is what its limits of
time are to end. One that has more computes: what it lacks of a whole processor is not counted, so
that it has at most twenty times as long as on a machine of its own. With a load of 16 on two
processors a thread has an eighth."""

MEMORY_SHARE = 0.7
"""Share of the machine's memory that a child and its children may take where nothing else is said;
chosen."""
JOB_MEMORY_SHARE = (1 + MEMORY_SHARE) / 2
"""Share of it for a child that has a measuring child below it: halfway from ``MEMORY_SHARE`` to all
of it, so that a candidate that takes too much costs only itself."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class WorkerError(CollageError):
    """Work in a child did not end with a result."""


class WorkerFault(WorkerError):
    """The child ended, or was ended, before it answered.

    Attributes:
        at_risk: Who was at risk in it (``OWN_RISK``); None: nobody, or the time of the whole call
            was over, so that nobody knows whether that would have ended in its own time.
        from_outside: Whether SIGKILL ended it, which no library sends to itself: a person did it,
            or the system for want of memory. What the child was doing is then hardly to blame.
    """

    at_risk: AtRisk | None = None
    from_outside = False

    @property
    def how(self) -> str:
        """Return what became of whom was at risk: follows "it"."""
        return f"crashed{self._while}: {self}"

    @property
    def _while(self) -> str:
        return f" while {self.at_risk.doing}" if self.at_risk and self.at_risk.doing else ""


class WorkerCrashed(WorkerFault):
    """The child ended before it answered, or was ended for its memory."""

    def __init__(self, reason: str, *, from_outside: bool = False) -> None:
        super().__init__(reason)
        self.from_outside = from_outside


class WorkerTimeout(WorkerFault):
    """No answer in time; the child was killed."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")
        self.seconds = seconds

    @property
    def how(self) -> str:
        """Return what became of whom was at risk: follows "it"."""
        return f"gave {self}{self._while}"


class RemoteError(WorkerError):
    """An exception in the child that is none of the engine's own error classes."""

    def __init__(self, kind: str, message: str, traceback: str = "") -> None:
        super().__init__(f"{kind}: {message}" if message else kind)
        self.add_note(traceback)


class Worker:
    """A child process that calls ``target`` (``package.module:function``) for each request.

    The target takes the payload, and may take a second positional parameter: a function that
    sends a message to ``on_message``. A class is instantiated once per child and its instance
    called, so it can keep state. The child starts at the first call, and anew after a crash.

    Args:
        target: What the child calls.
        env: Environment variables to set beside this process's own.
        memory_limit_bytes: Resident private memory above which the child is ended; None: a share
            of what the machine has.
        name: Name of the process, as ``ps`` and the log show it.

    Attributes:
        generation: How many children were started, so that a caller can tell that the state of
            an earlier one is gone.
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
        self.memory_limit_bytes = memory_limit_bytes or int(memory_bytes() * MEMORY_SHARE)
        self.name = name
        self.generation = 0
        self._child: ChildProcess | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Return whether there is a child that runs."""
        child = self._child
        return child is not None and child.alive

    @property
    def pid(self) -> int | None:
        """Return the serving process, once it has said hello."""
        child = self._child
        return child.server_pid if child is not None and child.alive and child.server_pid else None

    @property
    def warden_pid(self) -> int | None:
        """Returns the process that watches over the serving one, from its start to its end."""
        child = self._child
        return child.warden_pid if child is not None else None

    def call(
        self,
        payload: Any,
        timeout_s: float | None = None,
        cancel: Flag | None = None,
        on_message: Callable[[Any], None] | None = None,
        silence_s: float | None = None,
        idle_s: float | None = None,
    ) -> Any:
        """Run the target on ``payload`` in the child and return what it returns.

        Args:
            payload: What the target is called with; it is pickled.
            timeout_s: Seconds that the whole call may take, the child's start included. These and
                all other limits leave out what others had of the processor (``LEAST_SHARE``).
            cancel: Ends the call (and the child) when it is set.
            on_message: Takes what the target sends on the way.
            silence_s: Seconds that may pass without any message.
            idle_s: Seconds that may pass in which the child and all below it do nothing.

        Returns:
            What the target returned.

        Raises:
            WorkerTimeout: A limit of time was passed, or that of who is at risk in the child; it
                is ended.
            WorkerCrashed: The child ended, or used too much memory; it is ended.
            Cancelled: ``cancel`` was set; the child is ended.
            CollageError: An error of the engine that the target raised; the child lives on.
            RemoteError: Any other exception of the target; the child lives on.
        """
        with self._lock:
            if cancel is not None and cancel.is_set():
                raise Cancelled("stopped before the work began")
            child = self._running_child()
            child.risk.clear()
            limits = _Limits(timeout_s, silence_s, idle_s, cancel, self.memory_limit_bytes)
            try:
                kind, body = self._converse(child, payload, limits, on_message)
            except BaseException as error:
                if isinstance(error, WorkerFault):
                    late = isinstance(error, WorkerTimeout) and limits.call_is_over
                    error.at_risk = None if late else child.risk.get()
                log.info("child %s is ended: %s", self.name, error or type(error).__name__)
                self._end()
                raise
            if kind == "result":
                return body
            raise _error_from(body)

    def close(self) -> None:
        """End the child and everything below it."""
        with self._lock:
            self._end()

    def _running_child(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        self._end()
        try:
            self._child = ChildProcess(self.target, self.env, self.name)
        except OSError as error:
            raise WorkerCrashed(f"the child process could not be started: {error}") from error
        self.generation += 1
        log.info(
            "child %s started: %s below process %d, number %d",
            self.name,
            self.target,
            self._child.warden_pid,
            self.generation,
        )
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        was_alive = child.alive
        child.kill()
        log.info("child %s %s", self.name, "ended by its owner" if was_alive else "is gone")

    @staticmethod
    def _converse(
        child: ChildProcess,
        payload: Any,
        limits: _Limits,
        on_message: Callable[[Any], None] | None,
    ) -> tuple[str, Any]:
        """Send a request and wait for its answer, ("result", value) or ("error", description)."""
        child.send(payload)
        while not child.ended:
            message = child.receive(TICK_S)
            if message is not None:
                limits.heard = time.monotonic() - limits.lost_s
                kind, body = message
                if kind == "hello":
                    child.server_pid = body
                elif kind != "message":
                    return kind, body
                elif on_message is not None:
                    on_message(body)
            limits.check(child)
        raise WorkerCrashed(child.how_it_ended(), from_outside=child.killed)


@dataclass
class _Limits:
    """The limits that end a call before its answer: a cancel, time, silence, or memory."""

    timeout_s: float | None
    silence_s: float | None
    idle_s: float | None
    cancel: Flag | None
    most_bytes: int
    call_is_over: bool = False
    """Whether the time of the whole call was passed."""

    def __post_init__(self) -> None:
        now = time.monotonic()
        self.began = self.heard = now
        """Moments of the begin and of the last message, less ``lost_s`` at that time."""
        self.busy = now
        """Moment of the last look at which its processes had used the processor."""
        self.lost_s = 0.0
        """Seconds in which the child computed and others had the processor, which do not count."""
        self.next_look, self.next_tree = now, now + TREE_FIRST_S
        self._counted, self._used_s = now, math.nan
        """When the time of its processes was last looked at, and their processor time then."""
        self._at_risk: AtRisk | None = None
        self._lost_before_s = 0.0
        """Who is at risk, and ``lost_s`` when that began."""

    def _passed_s(self, at_risk: AtRisk | None, now: float) -> float | None:
        """Return the first limit of time that is passed, in seconds; None: none is."""
        own = now - self.lost_s
        if at_risk != self._at_risk:
            self._at_risk, self._lost_before_s = at_risk, self.lost_s
        if at_risk is not None and own + self._lost_before_s > at_risk.until_s:
            return at_risk.limit_s
        self.call_is_over = self.timeout_s is not None and own - self.began > self.timeout_s
        if self.call_is_over:
            return self.timeout_s
        if self.silence_s is not None and own - self.heard > self.silence_s:
            return self.silence_s
        if self.idle_s is not None and now - self.busy > self.idle_s:
            return self.idle_s
        return None

    def _count_lost(self, child: ChildProcess, now: float) -> None:
        """Look what processor time the child had, and count as lost what it did not get."""
        used_s = child.processor_s()
        passed_s, got_s = now - self._counted, used_s - self._used_s
        if got_s != 0.0:
            self.busy = now
        if got_s >= LEAST_SHARE * passed_s:
            self.lost_s += max(0.0, passed_s - got_s)
        self._counted, self._used_s = now, used_s

    def check(self, child: ChildProcess) -> None:
        """Raise the error of the first limit that is passed."""
        now = time.monotonic()
        if self.cancel is not None and self.cancel.is_set():
            raise Cancelled("stopped by the user")
        at_risk = child.risk.get()
        if self._passed_s(at_risk, now) is not None and now - self._counted >= STEP_S:
            self._count_lost(child, now)
            passed_s = self._passed_s(at_risk, now)
            if passed_s is not None:
                raise WorkerTimeout(passed_s)
        if now < self.next_look:
            return
        self.next_look, whole_tree = now + TICK_S, now >= self.next_tree
        if whole_tree:
            self.next_tree = now + TREE_EVERY_S
            self._count_lost(child, now)
        if child.used_bytes(whole_tree=whole_tree) > self.most_bytes:
            limit = f"{self.most_bytes / 2**30:.3g} GiB"
            raise WorkerCrashed(f"used more than {limit} of memory")


def _error_from(body: dict[str, Any]) -> Exception:
    """Return the exception that a child described: the engine's own class, or a ``RemoteError``."""
    kind = getattr(errors, body["type"], None) if body["module"] == errors.__name__ else None
    if isinstance(kind, type) and issubclass(kind, CollageError):
        error = kind(body["message"])
        if body["details"] is not None:
            error.details = body["details"]  # type: ignore[attr-defined]
        return error
    return RemoteError(body["type"], body["message"], body["traceback"])


def call_again(
    call: Callable[[], Result],
    leave_out: Callable[[WorkerFault], bool] = lambda fault: False,
    prepare: Callable[[], object] = lambda: None,
) -> Result:
    """Return what a call to a child returns, made again each time the child ends before its time.

    One that something outside killed is nobody's fault: the call is made once more as it was. Any
    other end is the fault of what was at risk, and the next call goes without it.

    Args:
        call: Calls the child.
        leave_out: Has later calls go without what ended the child; returns whether there is such a
            thing, so that another attempt is worth making.
        prepare: Is called before each further attempt: clears up after a child, or makes again
            what it held.

    Raises:
        WorkerFault: The child ended, and nothing is left out for it.
    """
    was_killed = False
    while True:
        try:
            return call()
        except WorkerFault as fault:
            is_luck = fault.from_outside and not was_killed
            if not is_luck and not leave_out(fault):
                raise
            was_killed |= is_luck
            log.warning("%s: it is tried again", fault)
        prepare()


def call_in_child(
    target: str,
    payload: Any,
    *,
    timeout_s: float | None = None,
    cancel: Flag | None = None,
    env: Mapping[str, str] | None = None,
) -> Any:
    """Run one request in a child of its own; errors are those of ``Worker.call``.

    The request is made a second time where something outside kills the child.

    Args:
        target: The function that the child calls, as ``module:name``.
        payload: What the function is given.
        timeout_s: Seconds until the call is given up; None: no limit.
        cancel: Ends the call when it is set.
        env: Environment variables to set beside this process's.

    Returns:
        What the function returns.
    """
    with Worker(target, env=env) as worker:
        return call_again(lambda: worker.call(payload, timeout_s, cancel))
