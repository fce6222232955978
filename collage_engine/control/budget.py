"""The time of a run, and of its parts."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from collage_engine.records.settings import RunSettings

Clock = Callable[[], float]
"""Seconds that only grow, such as ``time.monotonic``."""


class Budget:
    """A number of seconds that counts down from its creation; 0 seconds are spent at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = time.monotonic()

    @property
    def deadline(self) -> float:
        """Return when the budget ends, in seconds of the monotonic clock."""
        return self.started + self.seconds

    @property
    def left(self) -> float:
        """Return the seconds that are left, never less than 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def spent(self) -> bool:
        """Return whether nothing is left."""
        return self.left <= 0.0


@dataclass(frozen=True, kw_only=True)
class RunBudget:
    """The time of a whole run, from its start to the exported artifact.

    Every stage asks it how long it may work. What the end of the run needs is kept back once a
    stage has predicted it, so that an answer is confirmed and exported in time.

    Attributes:
        ends_at: When the run is to be over, on the clock.
        confirming_s: Seconds kept back for the confirmation.
        exporting_s: Seconds kept back for writing the artifact.
        added_s: Seconds that the user gave to tuning beside the budget; other stages leave them
            alone.
        has_answer: Whether a placement has run with right numbers; without one, there is nothing
            that is worth keeping time for, and measuring may take all of it.
        clock: Returns the time now, in seconds.
    """

    ends_at: float
    confirming_s: float = 0.0
    exporting_s: float = 0.0
    added_s: float = 0.0
    has_answer: bool = True
    clock: Clock = time.monotonic

    @classmethod
    def of(
        cls, settings: RunSettings, spent_s: float = 0.0, clock: Clock = time.monotonic
    ) -> RunBudget:
        """Return the budget of a run that begins now.

        Args:
            settings: The run's settings. Time for tuning is added to ``budget_s``.
            spent_s: Seconds of the budget that were spent before, such as on opening the model.
            clock: Returns the time now, in seconds.
        """
        added_s = settings.tune_budget_s
        ends_at = clock() + settings.budget_s + added_s - spent_s
        return cls(ends_at=ends_at, added_s=added_s, clock=clock)

    def keeping_back(
        self, confirming_s: float, exporting_s: float, *, has_answer: bool = True
    ) -> RunBudget:
        """Return the same budget with these seconds kept back for the end of the run."""
        return replace(
            self, confirming_s=confirming_s, exporting_s=exporting_s, has_answer=has_answer
        )

    @property
    def left_s(self) -> float:
        """Return seconds until the run is to be over, never negative."""
        return max(0.0, self.ends_at - self.clock())

    @property
    def to_improve_s(self) -> float:
        """Return seconds that stages may still spend on a better answer."""
        kept = self.confirming_s + self.exporting_s + self.added_s
        return max(0.0, self.left_s - kept)

    def given(self, seconds: float) -> float:
        """Return seconds for a stage that was given time of its own, as far as they are left."""
        kept = self.confirming_s + self.exporting_s
        return min(seconds, max(0.0, self.left_s - kept))
