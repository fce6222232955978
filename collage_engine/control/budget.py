"""The time of a part of a run."""

from __future__ import annotations

import time


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
