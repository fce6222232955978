"""The clock of a race: how much time it has, and what its steps are likely to take."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from collage_engine.machine.device import LEAST_KEPT
from collage_engine.support.time_limits import LEAST_S, STEP_SHARE, Flag
from collage_engine.trials.standings import COMMON_ROUNDS, UNKNOWN_ROUND_S, Standings

SETTLE_S = 3.0
"""Seconds after which contenders that have just entered wait with their further rounds for the
others to enter, too: slow models would take the time of those; chosen."""
UNKNOWN_LOAD_S = SETTLE_S
"""Seconds for loading, where none was seen yet: as many as for a contender's first rounds."""
RUNS_PER_PROFILE = LEAST_KEPT
"""Runs of a contender of several partitions that are profiled after each of its first rounds, of
which there are ``COMMON_ROUNDS``."""
MOST_RUNS_OF_LAYERS, LAYERS_S = 200, 0.5
"""Runs of the winner that are profiled layer by layer at most, and seconds for them; chosen: many
where they are short, so that some of them are not interrupted."""


def runs_of_layers(us: float) -> int:
    """Return how many runs of so many microseconds are profiled layer by layer."""
    return max(RUNS_PER_PROFILE, min(MOST_RUNS_OF_LAYERS, int(LAYERS_S * 1e6 / us)))


def layers_s(us: float) -> float:
    """Return the seconds of the two profiles of the layers of a placement of so many µs."""
    return 2 * (runs_of_layers(us) + 2) * us / 1e6  # each profile has two more runs, to begin with


@dataclass(eq=False)
class RaceClock:
    """How much time a race has, and what its steps take by the loads and rounds so far."""

    standings: Standings
    """The race's entries, whose loads and rounds say what such steps take."""
    ends_at: float = math.inf
    """When the race is to be over, on the clock."""
    keep: Flag | None = None
    """Set when the race is to end soon and to keep its leader."""
    now: Callable[[], float] = time.monotonic
    """Returns the time now, in seconds."""

    @property
    def left_s(self) -> float:
        """Return the seconds until the race is to be over; 0 once the user keeps what there is."""
        if self.keep is not None and self.keep.is_set():
            return 0.0
        return max(0.0, self.ends_at - self.now())

    @property
    def kept_s(self) -> float:
        """Return what one more cover and the last steps take, by the loads and rounds so far.

        Building a cover whose kernels are kept takes as long as loading it. All together is at most
        a third of the time that is left: on a busy machine loads take long compared with a short
        budget, and what they are kept for has to be found first.
        """
        rounds_s = min(SETTLE_S, COMMON_ROUNDS * (self.round_s + UNKNOWN_ROUND_S))
        last_s = 0.0 if self.standings.leader is None else self.last_steps_s
        return min(2 * self.load_s + rounds_s + last_s, self.left_s / 3)

    @property
    def to_improve_s(self) -> float:
        """Return the seconds that may be spent on finding better placements."""
        return self.left_s - self.kept_s

    @property
    def for_step_s(self) -> float:
        """Return the seconds that one step may spend on that: half of them.

        It gets no less than is worth beginning with; 0 where even all of them are less.
        """
        if self.to_improve_s < LEAST_S:
            return 0.0
        return max(LEAST_S, STEP_SHARE * self.to_improve_s)

    def is_over(self, ends_at: float) -> bool:
        """Tell whether the time is over for everything but the last steps."""
        return self.left_s <= self.last_steps_s or self.now() >= ends_at

    @property
    def load_s(self) -> float:
        """Return the seconds for loading and checking a placement."""
        loads = [e.process.load_s for e in self.standings.entries if e.process.load_s > 0]
        return statistics.median(loads) if loads else UNKNOWN_LOAD_S

    @property
    def round_s(self) -> float:
        """Return the seconds of one round of all that take part."""
        return sum(entry.round_s for entry in self.standings.present) or UNKNOWN_ROUND_S

    @property
    def last_steps_s(self) -> float:
        """Return the seconds kept for timing the winner in a fresh process and profiling it.

        Three times what loading took: its runtimes are asked for their layers in another process,
        and a step that was begun before may take longer than was predicted.
        """
        leader = self.standings.leader
        us = None if leader is None else self.standings.time_us(leader)
        return 3 * self.load_s + self.fresh_rounds_s + (layers_s(us) if us else 0.0)

    @property
    def fresh_rounds_s(self) -> float:
        """Return the seconds of the winner's fresh rounds."""
        leader = self.standings.leader
        return 2 * COMMON_ROUNDS * (UNKNOWN_ROUND_S if leader is None else leader.round_s)
