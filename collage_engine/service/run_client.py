"""Talks to the pipeline's child process: one job at a time, events on the way, cancel any time."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from collage_engine.machine.cgroups import memory_bytes
from collage_engine.machine.scratch import Scratch
from collage_engine.machine.whole_folder import tidy
from collage_engine.machine.worker import (
    JOB_MEMORY_SHARE,
    RemoteError,
    Worker,
    WorkerCrashed,
    WorkerTimeout,
)
from collage_engine.records.errors import Cancelled, CollageError, ModelError
from collage_engine.toolchains.at_risk import LEFT_OUT, NOTE, read_note

_LOG = logging.getLogger(__name__)

GRACE_S = 0.8
"""Seconds that a cancelled job may take to end by itself before its process is killed; chosen: a
cancel is answered within a second."""
OPEN_LIMIT_S = 300.0
"""Seconds for opening a model; chosen, some ten times the largest seen."""
_LIMITS_S = {
    "open": OPEN_LIMIT_S,
    "shapes": OPEN_LIMIT_S,
    "dimensions": OPEN_LIMIT_S,
    "prepare": OPEN_LIMIT_S,
    "forget": 60.0,
    "preflight": 1800.0,
    "enumerate": 1800.0,
    "inside": 1800.0,
    "measure": 3600.0,
    "export": 3600.0,
    "export_shapes": 3600.0,
}
"""Seconds for each job but a run, which has its budget; chosen: some ten times the longest seen,
with runtimes that have to be compiled first."""
_SILENCE_S = {"run": 3600.0, "run_shared": 3600.0}
"""Seconds without any event after which a job is given up; chosen: no stage of a run is that long
without one unless something hangs."""
_WITH_MODEL = {"preflight", "enumerate", "run", "run_shared", "measure", "inside", "export"}
"""Jobs that need the model, which is opened first, within the limit of opening."""


class Ticket:
    """One job, from before it is asked for to its end: cancelled before, it never starts."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.kill = threading.Event()
        """Its process is not waited for any longer."""
        self.kept = threading.Event()
        """It was told to end soon and to keep the best that it has."""


class PipelineClient:
    """Starts the child at the first job and again after it died; the child keeps open models.

    Jobs of several threads are done in the order they came in.
    """

    def __init__(self, name: str, env: Mapping[str, str] | None = None) -> None:
        """Prepare; no process is started yet.

        Args:
            name: Of the child, as ``ps`` and the log show it.
            env: Environment variables to set beside this process's own.
        """
        self._scratch = Scratch()
        """Recorded values and built modules, up to gigabytes: gone with the child, even killed."""
        self._worker = Worker(
            "collage_engine.run.child:serve",
            name=name,
            env={**(env or {}), "TMPDIR": str(self._scratch.path), NOTE: str(self._scratch.note)},
            memory_limit_bytes=int(memory_bytes() * JOB_MEMORY_SHARE),
        )
        self._turn = threading.Condition()  # reentrant: Ctrl-C's handler cancels where it strikes
        self._killed: set[str] = set()
        """Toolchains that were being asked when a child was killed from outside."""
        self._queue: list[Ticket] = []
        """The job that runs, and those that wait for it."""
        self._closed = False

    @property
    def busy(self) -> bool:
        """Return whether a job runs, so that another would wait."""
        return bool(self._queue)

    def forget(self, path: str) -> None:
        """Let the child drop a model that nobody has open any more, unless it is at work."""
        if self.busy or not self._worker.alive:
            return  # it keeps few models in any case
        with contextlib.suppress(CollageError):
            self.job("forget", path=path)

    def job(
        self,
        name: str,
        *,
        ticket: Ticket | None = None,
        on_event: Callable[[object], None] | None = None,
        **arguments: Any,
    ) -> Any:
        """Run a job of ``run.child`` and return what it returns.

        Args:
            name: The job.
            ticket: By which it can be cancelled, also before it begins.
            on_event: Takes the events and partial results on the way.
            arguments: What the job takes.

        Raises:
            Cancelled: ``cancel`` was called.
            CollageError: The job's own error, or the reason why the child died.
        """
        ticket = ticket or Ticket()
        self._wait_for_its_turn(ticket)
        try:
            while True:
                try:
                    if name in _WITH_MODEL:
                        model = {key: arguments[key] for key in ("path", "shapes")}
                        self._call("prepare", model, ticket, None)
                    if ticket.kept.is_set():  # the model was only being opened
                        raise Cancelled("cancelled before it began")
                    return self._call(name, arguments, ticket, on_event)
                except WorkerCrashed as error:
                    if ticket.cancelled.is_set() or not self._without_culprit(error):
                        raise
        except WorkerCrashed as error:
            if ticket.cancelled.is_set():
                # The signal came before the child could handle it.
                raise Cancelled("cancelled; what was measured is kept") from None
            if name in ("open", "shapes", "dimensions", "prepare"):
                raise ModelError(f"{arguments['path']} cannot be opened: {error}") from error
            raise CollageError(
                f"the engine's pipeline process died during {name}: {error}; "
                "what was measured is kept, start again to go on"
            ) from error
        except RemoteError as error:
            error.args = (f"a defect of Collage Explorer, in its step {name!r}: {error}",)
            raise
        finally:
            if not self._worker.alive:
                self._scratch.empty()
                if arguments.get("out") is not None:
                    tidy(Path(arguments["out"]))
            self._leave(ticket)

    def _without_culprit(self, error: WorkerCrashed) -> bool:
        """Leave out the toolchain that the child was asking when it died, from the next child on.

        Where the child was killed from outside it is asked once more.

        Returns:
            Whether there was one, so that the job is worth another attempt.
        """
        toolchain = read_note(self._scratch.note)
        known = json.loads(self._worker.env.get(LEFT_OUT, "{}"))
        if not toolchain or toolchain in known:
            return False
        self._scratch.note.unlink(missing_ok=True)
        if error.from_outside and toolchain not in self._killed:
            self._killed.add(toolchain)
            return True
        _LOG.warning("the child died while it asked %s: %s", toolchain, error)
        known[toolchain] = f"the process that asked it about the model ended: {error}"
        self._worker.env[LEFT_OUT] = json.dumps(known)
        return True

    def _call(
        self,
        name: str,
        arguments: dict[str, Any],
        ticket: Ticket,
        on_event: Callable[[object], None] | None,
    ) -> Any:
        """Do one job in the child, within its limits."""
        if ticket.cancelled.is_set():
            raise Cancelled("cancelled before it began")
        try:
            return self._worker.call(
                (name, arguments),
                timeout_s=_LIMITS_S.get(name),
                silence_s=_SILENCE_S.get(name),
                cancel=ticket.kill,
                on_message=on_event,
            )
        except WorkerTimeout as error:
            if name in ("open", "shapes", "dimensions", "prepare"):
                raise ModelError(
                    f"{arguments['path']} was not opened within {error.seconds:g} s and is given "
                    "up: "
                    "the file may be broken, or the machine too busy"
                ) from None
            raise CollageError(
                f"the step {name!r} was ended after {error.seconds:g} s without an answer; what "
                "was "
                "measured is kept"
            ) from None

    def _wait_for_its_turn(self, ticket: Ticket) -> None:
        with self._turn:
            self._queue.append(ticket)
            try:
                self._turn.wait_for(
                    lambda: self._closed or ticket.cancelled.is_set() or self._queue[0] is ticket
                )
                if self._closed or ticket.cancelled.is_set():
                    raise Cancelled("cancelled before it began")
            except BaseException:
                self._leave(ticket)
                raise

    def _leave(self, ticket: Ticket) -> None:
        with self._turn:
            self._queue.remove(ticket)
            self._turn.notify_all()

    def cancel(self, ticket: Ticket | None = None) -> bool:
        """Stop a job (all of them, without ``ticket``); False if there was none to stop.

        One that waits does not start; one that runs is asked to end, and its process is killed when
        it does not in ``GRACE_S``. A ticket may be cancelled before its job is asked for.
        """
        with self._turn:
            chosen = list(self._queue) if ticket is None else [ticket]
            running = self._queue[0] if self._queue else None
            for each in chosen:
                each.cancelled.set()
            self._turn.notify_all()
        if running is not None and running in chosen:
            self._stop(running)
        return bool(chosen)

    def keep(self, ticket: Ticket | None = None) -> bool:
        """Have a running job end soon and keep the best that it has; a second call cancels it.

        A job that waits, or whose process is only being started, has nothing to keep and is
        cancelled.

        Args:
            ticket: The job; None: the one that runs.

        Returns:
            Whether there was a job to end.
        """
        with self._turn:
            running = self._queue[0] if self._queue else None
            pid = self._worker.pid
            if running is None or pid is None or ticket not in (None, running):
                return self.cancel(ticket)
            if running.kept.is_set():
                return self.cancel(running)
            running.kept.set()
        _LOG.info("the job under way is asked to end with the best that it has")
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR2)
        return True

    def _stop(self, ticket: Ticket) -> None:
        pid = self._worker.pid
        if pid is None:
            ticket.kill.set()  # it is only being started
            return
        _LOG.info("the job under way is asked to end")
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
        timer = threading.Timer(GRACE_S, ticket.kill.set)
        timer.daemon = True
        timer.start()

    def close(self) -> None:
        """Stop the child, whatever it does; jobs that wait, and later ones, raise Cancelled."""
        with self._turn:
            self._closed = True
            for ticket in self._queue:
                ticket.cancelled.set()
                ticket.kill.set()
            self._turn.notify_all()
        self._worker.close()
        self._scratch.close()
