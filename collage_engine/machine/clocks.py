"""Reads the clocks of processors and devices, where the system reports them."""

from __future__ import annotations

import re
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from collage_engine.machine.device import allowed_processors, busy
from collage_engine.records.machine_state import MachineState

QUERY_S = 5.0
"""Seconds that NVIDIA's tool may take; chosen, some ten times what it takes."""
CPUS = Path("/sys/devices/system/cpu")


def machine_state(device: str = "cpu") -> MachineState:
    """Read clocks, governor and load now; takes 0.3 s, in which the load is watched.

    Args:
        device: The target of a run; an NVIDIA device's clocks are read where it begins with
            ``cuda``.
    """
    allowed = sorted(allowed_processors())
    clocks = processor_mhz(allowed)
    device_mhz, device_memory_mhz = cuda_mhz() if device.startswith("cuda") else (None, None)
    return MachineState(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        mhz=statistics.median(clocks) if clocks else None,
        lowest_mhz=min(clocks, default=None),
        highest_mhz=max(clocks, default=None),
        governor=", ".join(governors(allowed)),
        device_mhz=device_mhz,
        device_memory_mhz=device_memory_mhz,
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


def cuda_mhz(command: str = "nvidia-smi") -> tuple[float | None, float | None]:
    """Return the first NVIDIA device's clocks in MHz, cores and memory; None where untold.

    Args:
        command: NVIDIA's tool.
    """
    try:
        done = subprocess.run(
            [command, "--query-gpu=clocks.sm,clocks.mem", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=QUERY_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None, None
    matched = re.match(r"\s*(\d+)\s*,\s*(\d+)", done.stdout)
    return (float(matched[1]), float(matched[2])) if matched else (None, None)


def _text(path: Path) -> str:
    """Return a small file's text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
