"""What a run was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from collage_engine.candidates.open_model import OpenModel
from collage_engine.records.machine_state import MachineState
from collage_engine.records.pin import Pin
from collage_engine.records.placement import Run
from collage_engine.records.settings import RunSettings


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """What a run was asked for, and when it began.

    Attributes:
        open_model: The imported model, with the store.
        settings: The options of the run.
        pins: What the user demands of the placement.
        out: Folder of the artifact; None: nothing is exported.
        run_id: The run's name in its session.
        previous: The run before, which a quick confirmation compares with.
        started_at: When the run began, as ISO 8601 in UTC.
        machine_before: Clocks and load at its beginning.
    """

    open_model: OpenModel
    settings: RunSettings
    pins: tuple[Pin, ...]
    out: str | None
    run_id: str
    previous: Run | None
    started_at: str
    machine_before: MachineState

    @property
    def is_quick(self) -> bool:
        """Tell whether a few contenders are compared and nothing else is done."""
        return self.settings.confirmation == "quick"
