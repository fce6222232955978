"""Progress of a run: which stage runs, how far it is, and how long stages took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collage_engine.control import cancel
from collage_engine.records.event import Log, Progress, Stage, StageName

Emit = Callable[[object], None]
"""Passes an event on to whoever listens."""
MEASURABLE_S = 0.2
"""Seconds after which the rate of a stage is reported (chosen: before, it jumps)."""


class Stages:
    """Reports the stages of a run and measures how long each takes."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    @contextmanager
    def stage(self, name: StageName) -> Iterator[StageReport]:
        """Report a stage's begin and end.

        Args:
            name: The stage.

        Yields:
            What reports progress within the stage.

        Raises:
            Cancelled: The user has cancelled the work before the stage.
        """
        cancel.check()
        report = StageReport(name, self.emit)
        self.emit(Stage(stage=name))
        began = time.perf_counter()
        try:
            yield report
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.emit(Stage(stage=name, done=True, seconds=spent, detail=report.detail))

    def total(self) -> dict[str, float]:
        """Return the seconds of every stage, 0 for one that did not run, and of the whole run."""
        names = ("import", "enumerate", "measure", "search", "build", "confirm")
        found = {name: self.seconds.get(name, 0.0) for name in names}
        found.update(self.seconds)
        found["total"] = time.perf_counter() - self._started
        return found

    def warn(self, text: str) -> None:
        """Log a warning for the user."""
        self.emit(Log(level="warning", text=text))

    def say(self, text: str) -> None:
        """Log a message for the user."""
        self.emit(Log(text=text))


class StageReport:
    """Reports progress within a stage, with rate and time left by what was done so far."""

    def __init__(self, name: StageName, emit: Emit) -> None:
        self._name = name
        self._emit = emit
        self._began = time.perf_counter()
        self.detail = ""

    def progress(self, done: int, total: int, now: str = "") -> None:
        """Report that so many of all pieces of work are done.

        Args:
            done: Pieces that are done.
            total: All pieces.
            now: What is worked on, in words.
        """
        spent = time.perf_counter() - self._began
        rate = done / spent if done and spent > MEASURABLE_S else None
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
