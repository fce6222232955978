"""Reads the clocks of processors, where the system reports them."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from collage_engine.machine.device import allowed_processors, busy
from collage_engine.records.placement import MachineState

CPUS = Path("/sys/devices/system/cpu")
LEAST_KEPT, KEPT_OF = 3, 6
"""Runs that are kept of a profile, at least (the fewest with a median), and of how many one is
kept: at a load of four programs a processor a fifth of calls of 2 ms were measured undisturbed."""
WARM_S = 0.005
"""Seconds of work before the first timing, because clocks rise when work comes; chosen."""


def machine_state() -> MachineState:
    """Read clock, governor and load now; takes 0.3 s, in which the load is watched."""
    allowed = sorted(allowed_processors())
    clocks = processor_mhz(allowed)
    return MachineState(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        mhz=statistics.median(clocks) if clocks else None,
        governor=", ".join(governors(allowed)),
        busy=busy(),
    )


def processor_mhz(processors: Sequence[int]) -> list[float]:
    """Return the clocks of processors in MHz, from cpufreq or what the kernel prints.

    Args:
        processors: Their numbers.

    Returns:
        One for each processor whose clock is reported; virtual machines often report a constant, or
        nothing.
    """
    try:
        clocks = psutil.cpu_freq(percpu=True)
    except (OSError, NotImplementedError):  # no such thing here, or a clock that cannot be read
        return []
    return [clocks[number].current for number in processors if number < len(clocks)]


def governors(processors: Sequence[int]) -> list[str]:
    """Return the different governors of these processors, in alphabetical order.

    Empty where untold.
    """
    found = set()
    for number in processors:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.add((CPUS / f"cpu{number}/cpufreq/scaling_governor").read_text().strip())
    return sorted(found - {""})


def least_disturbed(runs: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the runs of a computation that other programs disturbed least: the shortest ones.

    On a busy machine most calls that take milliseconds are interrupted, and few that take
    microseconds are, so that medians of all runs would favour short calls.

    Args:
        runs: The times of each run's steps.
    """
    return sorted(runs, key=sum)[: max(LEAST_KEPT, len(runs) // KEPT_OF)]
