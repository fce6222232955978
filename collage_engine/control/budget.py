"""The time a run may spend on measuring."""

from __future__ import annotations

import time


class Budget:
    """A number of seconds that counts down from its creation; a budget of 0 is spent at once."""

    def __init__(self, seconds: float) -> None:
        """Start the budget.

        Args:
            seconds: How long it lasts.
        """
        self.seconds = seconds
        self.started = time.monotonic()

    @property
    def deadline(self) -> float:
        """When it will be spent, in :func:`time.monotonic` seconds."""
        return self.started + self.seconds

    @property
    def left(self) -> float:
        """The seconds that are left, 0 when it is spent."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self.left <= 0.0
