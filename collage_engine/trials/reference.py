"""The reference of trials: one placement that all others are read beside.

The machine's speed drifts. What the reference takes now, over what it took first, is how much
slower the machine is now; whatever is read of another placement at about the same moment is divided
by it. This is the only model of that drift.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from collage_engine.records.errors import Cancelled, CollageError
from collage_engine.trials.placement_process import PlacementProcess

Reading = Sequence[float]
"""Microseconds of the parts of a placement at one moment."""
Read = Callable[[PlacementProcess], Reading]
"""Takes a reading of a placement."""


class Reference:
    """The first placement that runs, and what it took first.

    Should the reference fail, the next placement that runs takes its place, at its own speed.

    Attributes:
        process: the placement; None: none ran yet, or the last one failed.
    """

    def __init__(self) -> None:
        self.process: PlacementProcess | None = None
        self._first_us: float | None = None
        """What the reference took first."""

    def readings(self, process: PlacementProcess, read: Read, count: int) -> list[list[float]]:
        """Return readings of a placement as they would be at the reference's first speed.

        Args:
            process: The placement; it becomes the reference where there is none.
            read: Takes one reading.
            count: How many readings are wanted.

        Raises:
            Cancelled: The user stopped it.
            CollageError: The placement failed.
        """
        if self.process is not None and self.process is not process:
            found = self._beside(process, read, count)
            if found is not None:
                return found
        found = [list(read(process)) for _ in range(count)]
        self.process = process
        self._first_us = statistics.median(map(sum, found))
        return found

    def _beside(
        self, process: PlacementProcess, read: Read, count: int
    ) -> list[list[float]] | None:
        """Take readings, each beside one of the reference, which comes before and after it in turn.

        Returns:
            The readings at the reference's first speed; None where the reference failed, so that
            there is none any more.
        """
        found: list[list[float]] = []
        while len(found) < count:
            reference_first = len(found) % 2 == 0
            before = self._read_reference(read) if reference_first else None
            if reference_first and before is None:
                return None
            reading = read(process)
            now_us = before if reference_first else self._read_reference(read)
            if now_us is None:
                return None
            first_us = self._first_us or now_us
            factor = first_us / now_us if first_us > 0 and now_us > 0 else 1.0
            found.append([us * factor for us in reading])
        return found

    def _read_reference(self, read: Read) -> float | None:
        """Return what the reference takes now, in µs; None: it failed, and is dismissed."""
        assert self.process is not None
        try:
            return sum(read(self.process))
        except Cancelled:
            raise
        except CollageError:
            self.process.discard()
            self.process = None
            self._first_us = None
            return None
