"""Reads the clocks of processors, where the system reports them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from collage_engine.machine.device import allowed_processors, busy
from collage_engine.records.machine_state import MachineState

CPUS = Path("/sys/devices/system/cpu")


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


def governors(processors: Sequence[int], cpus: Path = CPUS) -> list[str]:
    """Return the different governors of these processors, in alphabetical order.

    Empty where untold.
    """
    found = {_text(cpus / f"cpu{n}" / "cpufreq" / "scaling_governor") for n in processors}
    return sorted(found - {""})


def _text(path: Path) -> str:
    """Return a small file's text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
