"""Talks to the pipeline's child process: one job at a time, events on the way, cancel any time."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec

from collage_engine.machine.device import memory_bytes
from collage_engine.machine.folders import Scratch, remove_leftovers
from collage_engine.machine.worker import (
    JOB_MEMORY_SHARE,
    RemoteError,
    Worker,
    WorkerFault,
    WorkerTimeout,
    call_again,
)
from collage_engine.records.protocol import ChildRequest, Job, ModelOpen, Outcome, RunStart
from collage_engine.support.errors import Cancelled, CollageError, ModelError
from collage_engine.support.time_limits import SHORTEST_RUN_S

_LOG = logging.getLogger(__name__)

GRACE_S = 0.8
"""Seconds that a cancelled job may take to end by itself before its process is killed: of the
second within which a cancel is answered (``RunCancel``), a fifth is left for that."""
KILLED_FROM_OUTSIDE = (
    "its process was ended twice by SIGKILL, which the system does when memory runs out, or a "
    "person; that says nothing about the model: see that memory is free, and start again"
)


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

    def __init__(self, name: str) -> None:
        """Prepare; no process is started yet.

        Args:
            name: Of the child, as ``ps`` and the log show it.
        """
        self._scratch = Scratch()
        """Recorded values and built modules, up to gigabytes: gone with the child, even killed."""
        self._worker = Worker(
            "collage_engine.run.child:serve",
            name=name,
            env={"TMPDIR": str(self._scratch.path)},
            memory_limit_bytes=int(memory_bytes() * JOB_MEMORY_SHARE),
        )
        self._turn = threading.Condition()  # reentrant: Ctrl-C's handler cancels where it strikes
        self._left_out: dict[str, str] = {}
        """Toolchains that ended a child when it asked them about a model, with the reasons."""
        self._queue: list[Ticket] = []
        """The job that runs, and those that wait for it."""
        self._closed = False

    @property
    def busy(self) -> bool:
        """Return whether a job runs, so that another would wait."""
        return bool(self._queue)

    def job(
        self,
        job: Job[ChildRequest[Any, Outcome]],
        *,
        ticket: Ticket | None = None,
        on_event: Callable[[object], None] | None = None,
    ) -> Outcome:
        """Have a job done by ``run.child`` and return its answer.

        Where the child is killed from outside, or a toolchain that it asks about the model ends it
        or does not answer, the job is done once more, in the time that it has left and without
        that toolchain.

        Args:
            job: The job.
            ticket: By which it can be cancelled, also before it begins.
            on_event: Takes the events and partial results on the way.

        Raises:
            Cancelled: ``cancel`` was called.
            CollageError: The job's own error, or the reason why the child died.
        """
        ticket = ticket or Ticket()
        self._wait_for_its_turn(ticket)
        began, again = time.monotonic(), job
        step: Job[Any] = job

        def call(asked: Job[Any], listener: Callable[[object], None] | None = None) -> Any:
            nonlocal step
            step = asked
            # A run that is to be kept while its model is only being opened has nothing to keep.
            if ticket.cancelled.is_set() or ticket.kept.is_set():
                raise Cancelled("cancelled before it began")
            return self._worker.call(
                replace(asked, left_out=dict(self._left_out)),
                silence_s=asked.request.limit_s,
                cancel=ticket.kill,
                on_message=listener,
            )

        def attempt() -> Outcome:
            if job.request.on_model:
                call(Job(request=ModelOpen(), path=job.path, shapes=job.shapes))
            return cast(Outcome, call(again, on_event))

        def prepare() -> None:
            nonlocal again
            if ticket.cancelled.is_set():
                raise Cancelled("cancelled; what was measured is kept")
            self._clear_up(job)
            again = _in_time_left(job, time.monotonic() - began)

        try:
            return call_again(attempt, self._leave_out_culprit, prepare)
        except WorkerFault as error:
            if ticket.cancelled.is_set():
                # The signal came before the child could handle it.
                raise Cancelled("cancelled; what was measured is kept") from None
            raise _given_up(step, error) from error
        except RemoteError as error:
            error.args = (
                f"a defect of Collage Explorer, in its step {job.request.method!r}: {error}",
            )
            raise
        finally:
            self._clear_up(job)
            self._leave(ticket)

    def _leave_out_culprit(self, fault: WorkerFault) -> bool:
        """Leave out the toolchain that the child was asking when it ended, from the next child on.

        Returns:
            Whether there was one, so that the job is worth another attempt.
        """
        at_risk = fault.at_risk
        if at_risk is None or at_risk.who in self._left_out or fault.from_outside:
            return False
        self._left_out[at_risk.who] = f"the process that asked it about the model ended: {fault}"
        return True

    def _clear_up(self, job: Job[Any]) -> None:
        """Remove what a child left that has ended."""
        if not self._worker.alive:
            self._scratch.empty()
            if job.out is not None:
                remove_leftovers(Path(job.out))

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


def _in_time_left(job: Job[Any], spent_s: float) -> Job[Any]:
    """Return a job as it is done again: a run has less of its budget left by then."""
    request = job.request
    if not isinstance(request, RunStart):
        return job
    most_s = request.settings.budget_s + request.settings.tune_budget_s - SHORTEST_RUN_S
    spent_s = max(request.spent_s, min(request.spent_s + spent_s, most_s))
    return replace(job, request=msgspec.structs.replace(request, spent_s=spent_s))


def _given_up(job: Job[Any], error: WorkerFault) -> CollageError:
    """Return why a job was not done whose child ended, or was ended."""
    method = job.request.method
    if error.from_outside:
        return CollageError(f"{job.path}, step {method!r}: {KILLED_FROM_OUTSIDE}")
    if isinstance(error, WorkerTimeout):
        if job.request.opens:
            return ModelError(
                f"{job.path} was not opened within {error.seconds:g} s and is given up: the file "
                "may be broken, or the machine too busy"
            )
        return CollageError(
            f"the step {method!r} was ended after {error.seconds:g} s without an answer; what "
            "was measured is kept"
        )
    if job.request.opens:
        return ModelError(f"{job.path} cannot be opened: {error}")
    return CollageError(
        f"the engine's pipeline process died during {method}: {error}; what was measured is "
        "kept, start again to go on"
    )
