"""Reads the clocks of processors and devices, where the system reports them."""

from __future__ import annotations

import re
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import psutil

from collage_engine.machine.device import allowed_processors, busy, one_of_each_core
from collage_engine.records.machine_state import MachineState

QUERY_S = 5.0
"""Seconds that NVIDIA's tool may take; chosen, some ten times what it takes."""
CPUS = Path("/sys/devices/system/cpu")
ROUND_TRIP = Path(__file__).with_name("round_trip.cc")
ROUND_TRIP_S = 5.0
"""Seconds that compiling and running it may take each; chosen: on a quiet machine 0.1."""


def machine_state(device: str = "cpu", compiler: Sequence[str] = ()) -> MachineState:
    """Read clocks, governor and load now; takes 0.3 s, in which the load is watched.

    Args:
        device: The target of a run; an NVIDIA device's clocks are read where it begins with
            ``cuda``.
        compiler: The command of a C++ compiler, by which the round trip between two cores is
            measured; empty: it is not.
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
                    command, capture_output=True, text=True, timeout=ROUND_TRIP_S, check=True
                )
            return float(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None


def _text(path: Path) -> str:
    """Return a small file's text; empty where it cannot be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
