"""What a long job is given to report its progress, to be told to stop, and to release resources."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from collage_engine.control.progress import Emit, StageReport
from collage_engine.records.errors import Cancelled
from collage_engine.records.event import SHOWN, Log, Stage, StageName

Resource = TypeVar("Resource")

_LOG = logging.getLogger(__name__)

ALWAYS_LISTED: tuple[StageName, ...] = (
    "import",
    "enumerate",
    "measure",
    "search",
    "build",
    "confirm",
)
"""Stages whose seconds a run's document always states, 0 where one did not run."""


class RunControl:
    """The control of one job: its listener, its cancel flag, its warnings and its resources.

    Whatever works for the job is handed this object. As a context manager it closes, when it
    ends, every resource that was opened through :meth:`open`.

    Attributes:
        emit: Takes every event; it is called from the thread that works.
        cancelled: Set by whoever wants the job to stop, also from a signal handler.
        warnings: What the user was warned of, in order, for the run's document.
        seconds: Seconds by stage, of the stages that have ended.
    """

    def __init__(self, emit: Emit | None = None, cancelled: threading.Event | None = None) -> None:
        self.emit: Emit = emit or _ignore
        self.cancelled = cancelled or threading.Event()
        self.warnings: list[str] = []
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()
        self._resources = ExitStack()

    def __enter__(self) -> RunControl:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def open(self, resource: AbstractContextManager[Resource]) -> Resource:
        """Enter a context that is left when the job ends, however it ends."""
        return self._resources.enter_context(resource)

    def check(self) -> None:
        """Raise Cancelled if the job is to stop."""
        if self.cancelled.is_set():
            raise Cancelled("cancelled; what was measured is kept")

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
        """Seconds by stage, and of the whole job until now as ``total``."""
        found: dict[str, float] = {name: self.seconds.get(name, 0.0) for name in ALWAYS_LISTED}
        found.update(self.seconds)
        found["total"] = time.perf_counter() - self._started
        return found

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
