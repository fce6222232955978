"""Durations as people write them, limits of time, and what tells work that it is to stop."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from collage_engine.support.errors import InvalidValue

LONGEST_S = 1e9
"""Seconds above which neither a budget nor a time is believed, 30 years; chosen."""
_SECONDS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600}
"""Seconds of each unit."""
_PART = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([a-z]*)\s*")


def parse_duration(text: str, *, or_none: bool = False) -> float:
    """Read a duration whose parts each have a unit: ``25s``, ``2 min 30 s``, ``1.5h``.

    Args:
        text: What was written.
        or_none: Whether ``0s`` is a duration too: that of what is not done.

    Returns:
        Seconds.

    Raises:
        InvalidValue: A number has no unit, which could mean seconds or minutes; or the text is no
            duration that a run can have.
    """
    seconds, at, lowered = 0.0, 0, text.strip().lower()
    while at < len(lowered):
        match = _PART.match(lowered, at)
        if match is None or match[2] not in ("", *_SECONDS):
            raise InvalidValue(f"{text!r} is no duration: write 90s, 10m or 1h")
        if not match[2]:
            number = match[1] if float(match[1]) else "2"
            raise InvalidValue(f"{text!r} has no unit: write {number}s or {number}m")
        seconds += float(match[1]) * _SECONDS[match[2]]
        at = match.end()
    if not (0 < seconds < LONGEST_S or (or_none and text.strip() and seconds == 0)):
        raise InvalidValue(f"{text!r} is no duration above 0: write 90s, 10m or 1h")
    return seconds


ANSWER_S = 60.0
"""Seconds after which a process that is asked for something small counts as hanging: an answer of a
toolchain or a driver, one candidate, the layout of a graph, reading a file. Chosen: some ten to a
thousand times what any of it takes on a busy machine."""
WORK_S = 10 * ANSWER_S
"""Seconds after which one piece of work counts as hanging: compiling a file, opening a model,
building a placement, measuring constants. The longest seen takes as long as one answer may."""
JOB_S = 6 * WORK_S
"""Seconds after which a whole job counts as hanging that no budget ends, such as compiling a
library of kernels or the long benchmark of an artifact: the longest seen, with the runtimes that
have to be compiled first, is done within one piece of work's time."""
SHORTEST_RUN_S = 10.0
"""Seconds of the shortest budget within which a run places a model: what a run that is started
again has at least, and what toolchains have for being set up. Measured: first answers come after
4.4 to 14.4 s ("Budgets" in ``tests/benchmarks/RESULTS.md``)."""
LEAST_S = SHORTEST_RUN_S / 2
"""Seconds that a step gets however little time its run has left, and what measuring or calibration
is worth beginning with: of the shortest run one such step leaves as much for the rest. An answer
takes less than one, and a first one may load a library."""

WEIGHTS_BYTES_PER_S = 10e6
"""Bytes of weights a second that a step gets through at the least; chosen: a tenth of what a hard
disk reads, since a runtime reads, packs and hands on the weights several times, on a busy machine
too."""

STEP_SHARE = 0.5
"""Share of the time that a run has left which one step may take: as much is left after one that
hangs, for another one and for exporting it."""


def within_budget(
    limit_s: float, left_s: float, least_s: float = LEAST_S, share: float = STEP_SHARE
) -> float:
    """Return the seconds after which a step is ended and what it tried is out.

    Args:
        limit_s: Seconds after which it counts as hanging however much time is left.
        left_s: Seconds that the run has left.
        least_s: Seconds that it gets even where the run has less left: enough for one that does not
            hang, so that what began in time comes to its end.
        share: Share of the time left that it may take.
    """
    return min(limit_s, max(share * left_s, least_s))


def with_weights(limit_s: float, weights_bytes: int, copies: int = 1) -> float:
    """Return the seconds after which a step that reads a model's weights counts as hanging.

    Args:
        limit_s: Seconds for the same step with a model that has hardly any weights.
        weights_bytes: Size of the model's weights.
        copies: How many times the step reads them, as several instances do.
    """
    return limit_s + copies * weights_bytes / WEIGHTS_BYTES_PER_S


class Flag(Protocol):
    """Something that is set once the work is to stop; ``threading.Event`` is one."""

    def is_set(self) -> bool:
        """Tell whether the work is to stop."""
        ...


@dataclass(frozen=True)
class FlagWhen:
    """A flag that is set whenever a condition holds."""

    condition: Callable[[], bool]

    def is_set(self) -> bool:
        """Tell whether the condition holds now."""
        return self.condition()
