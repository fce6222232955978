"""What a long job is given to report its progress, to be told to stop, and to release resources."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

import msgspec

from collage_engine.machine.faults import FaultTracker
from collage_engine.records.event import (
    SHOWN,
    Log,
    Progress,
    Provisional,
    Stage,
    StageName,
)
from collage_engine.support.errors import Cancelled
from collage_engine.support.time_limits import Flag, FlagWhen

Emit = Callable[[object], None]
"""Takes the events of a job (``records.event``) and its partial results."""


class StageReport:
    """Progress within a stage; the rate and the time left follow from what was done so far.

    Attributes:
        detail: One line about what the stage did, shown when it has ended.
    """

    def __init__(self, name: StageName, emit: Emit) -> None:
        self._name = name
        self._emit = emit
        self._began = time.perf_counter()
        self.detail = ""

    def progress(self, done: int, total: int, now: str = "") -> None:
        """Report that ``done`` of ``total`` pieces are done, and what is worked on now."""
        spent = time.perf_counter() - self._began
        rate = done / spent if done and spent else None
        self._emit(
            Progress(
                stage=self._name,
                done=done,
                total=total,
                now=now,
                rate=rate,
                left_s=(total - done) / rate if rate else None,
            )
        )


Resource = TypeVar("Resource")

_LOG = logging.getLogger(__name__)

ALWAYS_LISTED: tuple[StageName, ...] = (
    "import",
    "enumerate",
    "measure",
    "search",
    "confirm",
)
"""Stages whose seconds a run's document always states, 0 where one did not run."""


class RunControl:
    """The control of one job: its listener, its cancel flag, its warnings and its resources.

    Whatever works for the job is handed this object. As a context manager it closes, when it
    ends, every resource that was opened through :meth:`open`.

    Attributes:
        cancelled: Set when the job is to stop, by any thread, also from a signal handler.
        keep: Set when the job is to end soon and to keep the best answer that it has.
        ends_at: When the job's budget ends, on the monotonic clock; infinite: it has none.
        cut_short: Stages that were left out or did not finish for want of time, in order.
        faults: Which toolchains crashed or hung in this job; the user is warned of each that goes
            out of it.
        warnings: What the user was warned of, in order, for the run's document.
        seconds: Seconds by stage, of the stages that have ended.
        first_answer_s: Seconds from the job's begin to the first provisional placement.
        peak_memory: Returns the largest memory of the job's processes together, in bytes; None
            where nobody watches it.
    """

    def __init__(
        self,
        emit: Emit | None = None,
        cancelled: Flag | None = None,
        keep: Flag | None = None,
    ) -> None:
        self._listener: Emit = emit or _ignore
        self.cancelled: Flag = cancelled or threading.Event()
        self.keep: Flag = keep or threading.Event()
        self.ends_at = math.inf
        self._part_ends_at = math.inf
        self.cut_short: list[StageName] = []
        self.warnings: list[str] = []
        self.faults = FaultTracker(self.warn)
        self.seconds: dict[str, float] = {}
        self.first_answer_s: float | None = None
        self.peak_memory: Callable[[], int | None] = lambda: None
        self._started = time.perf_counter()
        self._resources = ExitStack()

    def __enter__(self) -> RunControl:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def emit(self, event: object) -> None:
        """Tell listeners an event; a time left is never more than the budget leaves."""
        if isinstance(event, Progress):
            event = self._within_budget(event)
        elif isinstance(event, Provisional) and self.first_answer_s is None:
            self.first_answer_s = time.perf_counter() - self._started
        self._listener(event)

    def _within_budget(self, event: Progress) -> Progress:
        job_left_s = self.left_s()
        run_left_s = job_left_s if math.isfinite(job_left_s) else None
        part_left_s = max(0.0, self._part_ends_at - time.monotonic())
        left_s = None if event.left_s is None else min(event.left_s, job_left_s, part_left_s)
        return msgspec.structs.replace(event, left_s=left_s, run_left_s=run_left_s)

    def left_s(self) -> float:
        """Return the seconds that the job's budget has left; infinite where it has none."""
        return max(0.0, self.ends_at - time.monotonic())

    def open(self, resource: AbstractContextManager[Resource]) -> Resource:
        """Enter a context that is left when the job ends, however it ends."""
        return self._resources.enter_context(resource)

    def check(self) -> None:
        """Raise Cancelled if the job is to stop."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled; what was measured is kept")

    def within(self, seconds: float) -> RunControl:
        """Return a control of a part of this job that is to end sooner than the job.

        The part's ``cancelled`` is set too when its time is over or when the job is to end and to
        keep what it has; ``Cancelled`` is then no cancel of the job (see ``cut``).

        Args:
            seconds: How long the part may work.
        """
        ends_at = time.monotonic() + seconds

        def is_over() -> bool:
            return self.cancelled.is_set() or self.keep.is_set() or time.monotonic() >= ends_at

        part = copy.copy(self)
        part.cancelled = FlagWhen(is_over)
        part._part_ends_at = min(ends_at, self._part_ends_at)
        return part

    def cut(self, name: StageName) -> None:
        """Note that a stage was left out or did not finish for want of time.

        Raises:
            Cancelled: The whole job is to stop.
        """
        self.check()
        if name not in self.cut_short:
            self.cut_short.append(name)
        _LOG.info("stage %s is cut short: the time is over", name)

    @contextmanager
    def stage(self, name: StageName) -> Iterator[StageReport]:
        """Report the begin and the end of a stage and add up its seconds.

        Raises:
            Cancelled: The job was to stop before the stage began.
        """
        self.check()
        report = StageReport(name, self.emit)
        self.emit(Stage(stage=name))
        _LOG.info("stage %s begins", name, extra=SHOWN)
        began = time.perf_counter()
        try:
            yield report
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            _LOG.info("stage %s: %.1f s %s", name, spent, report.detail, extra=SHOWN)
        self.emit(Stage(stage=name, done=True, seconds=spent, detail=report.detail))

    def total_seconds(self) -> dict[str, float]:
        """Return seconds by stage, and of the whole job until now as ``total``."""
        seconds: dict[str, float] = {name: self.seconds.get(name, 0.0) for name in ALWAYS_LISTED}
        seconds.update(self.seconds)
        seconds["total"] = time.perf_counter() - self._started
        return seconds

    def warn(self, text: str) -> None:
        """Warn the user now, and keep the warning for the run's document."""
        self.warnings.append(text)
        _LOG.warning("%s", text, extra=SHOWN)
        self.emit(Log(level="warning", text=text))

    def log(self, text: str) -> None:
        """Tell listeners something that needs no action."""
        _LOG.info("%s", text, extra=SHOWN)
        self.emit(Log(text=text))


def _ignore(event: object) -> None:
    """Listen to nothing."""
