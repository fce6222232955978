"""Reads what the control group, which containers and batch systems set, leaves us of the machine.

The tightest limit along the path up counts. Both versions of the kernel's interface are read; where
there is neither, the machine's own figures hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def processor_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return how many processors' time the control group grants; None where there is no limit."""
    quotas = (_quota_of(folder) for folder in _folders("cpu", root, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_bytes(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes of memory that this process may ever have."""
    limits = [limit for limit, _ in _memory_limits(root, own)]
    return min([int(psutil.virtual_memory().total), *limits])


def available_bytes(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes that may be taken now without anything being swapped or killed."""
    left = [max(0, limit - used) for limit, used in _memory_limits(root, own)]
    return min([int(psutil.virtual_memory().available), *left])


def _folders(controller: str, root: Path, own: Path) -> Iterator[Path]:
    """Yields the folders of our group and of those above it that may hold a controller's limits."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root if not controllers else root / controllers
        if controllers and controller not in controllers.split(","):
            continue
        here = base / path.lstrip("/")
        for folder in (here, *here.parents):
            if not folder.is_relative_to(base):
                break
            yield folder


def _quota_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        period_us = int((folder / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def _memory_limits(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes; what the kernel would give back at once does not count as used."""
    for folder in _folders("memory", root, own):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            try:
                most = int((folder / limit).read_text())
                taken = int((folder / used).read_text())
                lines = (folder / "memory.stat").read_text().splitlines()
                kept = int(dict(line.split() for line in lines).get(cache, 0))
            except (OSError, ValueError):
                continue  # no such file, or "max"
            yield most, taken - kept
