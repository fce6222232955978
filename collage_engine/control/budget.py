"""The time a run may spend on measuring."""

from __future__ import annotations

import time


class Budget:
    """Counts down from ``seconds``; a budget of 0 is spent at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.started = time.monotonic()

    @property
    def deadline(self) -> float:
        """On the monotonic clock."""
        return self.started + self.seconds

    @property
    def left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    @property
    def spent(self) -> bool:
        return self.left <= 0.0
