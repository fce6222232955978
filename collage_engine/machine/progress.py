"""Reports of how far a stage of a run is."""

from __future__ import annotations

import time
from collections.abc import Callable

from collage_engine.records.event import Progress, StageName

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
