"""Reads the clocks of processors, where the system reports them."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from collage_engine.machine.device import allowed_processors, busy, one_of_each_core
from collage_engine.records.placement import MachineState
from collage_engine.support.time_limits import LEAST_S

CPUS = Path("/sys/devices/system/cpu")
LEAST_KEPT, KEPT_OF = 3, 6
"""Runs that are kept of a profile, at least (the fewest with a median), and of how many one is
kept: at a load of four programs a processor a fifth of calls of 2 ms were measured undisturbed."""
WARM_S = 0.005
"""Seconds of work before the first timing, because clocks rise when work comes; chosen."""
ROUND_TRIP = Path(__file__).with_name("core_round_trip.cc")


def machine_state(compiler: Sequence[str] = ()) -> MachineState:
    """Read clock, governor and load now; takes 0.3 s, in which the load is watched.

    Args:
        compiler: The command of a C++ compiler, by which the round trip between two cores is
            measured; empty: it is not.
    """
    allowed = sorted(allowed_processors())
    clocks = processor_mhz(allowed)
    return MachineState(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        mhz=statistics.median(clocks) if clocks else None,
        governor=", ".join(governors(allowed)),
        round_trip_ns=round_trip_ns(compiler) if compiler else None,
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


def round_trip_ns(compiler: Sequence[str]) -> float | None:
    """Return the nanoseconds that a cache line takes from one core to another and back.

    Args:
        compiler: The command of a C++ compiler.

    Returns:
        The figure for two cores that this process may run on; None where there is one, or where it
        cannot be measured.
    """
    cores = one_of_each_core()
    if len(cores) < 2:
        return None
    with tempfile.TemporaryDirectory(prefix="collage-round-trip-") as folder:
        program = f"{folder}/round_trip"
        commands = (
            [*compiler, "-O2", "-pthread", str(ROUND_TRIP), "-o", program],
            [program, *map(str, cores[:2])],
        )
        try:
            for command in commands:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=LEAST_S, check=True
                )
            return float(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None


def least_disturbed(runs: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the runs of a computation that other programs disturbed least: the shortest ones.

    On a busy machine most calls that take milliseconds are interrupted, and few that take
    microseconds are, so that medians of all runs would favour short calls.

    Args:
        runs: The times of each run's steps.
    """
    return sorted(runs, key=sum)[: max(LEAST_KEPT, len(runs) // KEPT_OF)]
