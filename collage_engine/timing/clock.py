"""The time of work on one thread, also where other programs take the processor away.

A program alone on its thread takes as much processor time as wall time. On a busy machine the wall
time also holds what others ran in between; the processor time does not. So the smaller of the two
is what the work takes when the machine is quiet. With more threads they are not comparable, and
the wall time stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from collage_engine.records.placement import TIE_SHARE

READING_S = 3e-6
"""Seconds that reading the processor time takes (Zen 4, ``python -m timeit -s 'import time'
'time.process_time()'``)."""
FROM_S = READING_S / TIE_SHARE
"""Seconds of a call from which processor time is read beside wall time: in a shorter one, which is
rarely interrupted, reading it would show."""


def timed(call: Callable[[], object], threads: int) -> float:
    """Return the seconds of one call."""
    if threads != 1:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    used, start = time.process_time(), time.perf_counter()
    call()
    wall = time.perf_counter() - start
    return wall if wall < FROM_S else min(wall, time.process_time() - used)


def undisturbed(seconds: Callable[[], float], threads: int) -> float:
    """Return what a function that times itself says, at most the processor time it took for it."""
    if threads != 1:
        return seconds()
    used = time.process_time()
    found = seconds()
    spent = time.process_time() - used
    return found if found < FROM_S else min(found, spent)
