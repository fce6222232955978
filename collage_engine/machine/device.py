"""Describes this machine's processor: the cores that we may use, its caches, clocks and name.

Containers and batch systems limit it by control groups, of which the tightest along the path up
counts. The second version of the kernel's interface is read; without it, the machine's own figures
hold.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from collage_engine.records.placement import MachineState
from collage_engine.records.toolchain import Device

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


def processor_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Return how many processors' time the control group grants; None where there is no limit."""
    quotas = (_quota_of(folder) for folder in _folders(root, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def memory_bytes(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes of memory that this process may ever have."""
    limits = [limit for limit, _ in _memory_limits(root, own)]
    return min([int(psutil.virtual_memory().total), *limits])


def available_bytes(root: Path = ROOT, own: Path = OWN) -> int:
    """Return the bytes that may be taken now without anything being swapped or killed."""
    left = [max(0, limit - used) for limit, used in _memory_limits(root, own)]
    return min([int(psutil.virtual_memory().available), *left])


def _folders(root: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of our group and of those above it, which may hold limits."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::/"):
            here = root / line.removeprefix("0::/")
            yield from (f for f in (here, *here.parents) if f.is_relative_to(root))


def _quota_of(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory_limits(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes; what the kernel would give back at once does not count as used."""
    for folder in _folders(root, own):
        try:
            most = int((folder / "memory.max").read_text())
            taken = int((folder / "memory.current").read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
            kept = int(dict(line.split() for line in lines).get("inactive_file", 0))
        except (OSError, ValueError):
            continue  # no such file, or "max"
        yield most, taken - kept


_CPU = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Processor:
    """A processor as far as measured times depend on it: neither its host's name nor its load."""

    model: str
    flags: tuple[str, ...]
    """Instruction sets that the processor has, sorted by name."""
    caches: tuple[tuple[int, str, int], ...]
    """(level, type, bytes) of the first core's caches."""
    kernel: str
    """System and major version of its kernel."""


@cache
def processor() -> Processor:
    """Return the processor as the system describes it."""
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
    except OSError:
        pass
    model = fields.get("model name") or fields.get("cpu model") or platform.processor() or "unknown"
    numbers = [fields.get(k, "") for k in ("vendor_id", "cpu family", "model", "stepping")]
    return Processor(
        model=" ".join([model, *filter(None, numbers)]),
        flags=tuple(sorted((fields.get("flags") or fields.get("features") or "").split())),
        caches=_caches(_CPU / "cpu0" / "cache"),
        kernel=f"{platform.system()} {platform.release().split('.')[0]} {platform.machine()}",
    )


def _caches(folder: Path) -> tuple[tuple[int, str, int], ...]:
    caches = []
    for entry in sorted(folder.glob("index*")):
        try:
            level = int((entry / "level").read_text())
            kind = (entry / "type").read_text().strip()
            caches.append((level, kind, parse_size((entry / "size").read_text())))
        except (OSError, ValueError):
            continue
    return tuple(sorted(caches))


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``491520K`` means."""
    matched = re.fullmatch(r"(\d+)\s*([KMG]?)B?", text.strip(), re.IGNORECASE)
    if matched is None:
        raise ValueError(f"no size: {text!r}")
    power = " KMG".index(matched[2].upper() or " ")
    return int(matched[1]) << (10 * power)


def cache_bytes(level: int, default: int) -> int:
    """Return the bytes of a core's data cache at a level; ``default`` where none is stated."""
    sizes = [b for at, kind, b in processor().caches if at == level and kind != "Instruction"]
    return max(sizes, default=default)


def last_level_cache_bytes() -> int:
    """Return the largest cache a core can reach (on a virtual machine, the host's).

    32 MiB if unknown.
    """
    sizes = [b for _, kind, b in processor().caches if kind != "Instruction"]
    return max(sizes, default=32 << 20)


def allowed_processors() -> tuple[int, ...]:
    """Return the numbers of the logical processors that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def one_of_each_core() -> list[int]:
    """Return the number of one logical processor of each core that this process may run on."""
    cores: dict[tuple[str, str], int] = {}
    for number in allowed_processors():
        folder = _CPU / f"cpu{number}" / "topology"
        try:
            package = (folder / "physical_package_id").read_text().strip()
            cores.setdefault((package, (folder / "core_id").read_text().strip()), number)
        except OSError:
            cores[("", str(number))] = number
    return list(cores.values())


def physical_cores() -> int:
    """Return how many cores we may use.

    Hyper-threads of a core count once; affinity and the control group's quota are respected.
    """
    cores, quota = len(one_of_each_core()), processor_quota()
    return max(1, min(cores, math.ceil(quota) if quota is not None else cores))


@cache
def fingerprint() -> str:
    """Return a hash of what the times of this machine depend on: part of a measurement's key."""
    text = json.dumps([asdict(processor()), physical_cores()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def device() -> Device:
    """Return the processor as the device ``cpu``."""
    cores = physical_cores()
    name = processor().model.split(" GenuineIntel")[0].split(" AuthenticAMD")[0]
    cache_mib = last_level_cache_bytes() / 2**20
    plural = "" if cores == 1 else "s"
    return Device(
        name="cpu",
        description=f"{name}, {cores} core{plural}, {cache_mib:g} MiB cache",
        threads=cores,
        fingerprint=fingerprint(),
    )


@cache
def cpu_target() -> dict[str, Any]:
    """Return what ``tvm.target.Target`` takes for this processor. Imports TVM."""
    from tvm.target import codegen

    # "native" is no valid mcpu (it falls back to a generic processor), so ask LLVM by name.
    return {
        "kind": "llvm",
        "mtriple": codegen.llvm_get_system_triple(),
        "mcpu": codegen.llvm_get_system_cpu(),
        "num-cores": physical_cores(),
    }


BUSY_SHARE = 0.15
"""Share of our processors that others use, from which on timings suffer; chosen."""


def busy(window_s: float = 0.3) -> str | None:
    """Return a sentence if other programs or guests use our processors, else None.

    Looks for ``window_s`` seconds; this process and its children do not count if they idle.
    """
    mine = sum(os.times()[:4])
    before = _processor_seconds()
    time.sleep(window_s)
    after = _processor_seconds()
    mine = sum(os.times()[:4]) - mine
    total, used, stolen = (b - a for a, b in zip(before, after, strict=True))
    if total <= 0:
        return None
    used, stolen = (used - mine) / total, stolen / total
    guests = stolen > BUSY_SHARE / 3
    if not guests and used <= BUSY_SHARE:
        return None
    who = "other guests of the host take" if guests else "other programs use"
    share = f"{100 * (stolen if guests else used):.0f} %"
    return f"{who} {share} of this machine's processors; timings are less certain"


def _processor_seconds() -> tuple[float, float, float]:
    """Return the seconds of our processors since they started: all, in use, stolen by the host."""
    times = psutil.cpu_times(percpu=True)
    ours = [times[number] for number in allowed_processors() if number < len(times)]

    def seconds(*kinds: str) -> float:
        return sum(getattr(our, kind, 0.0) for our in ours for kind in kinds)

    in_use, stolen = seconds("user", "nice", "system", "irq", "softirq"), seconds("steal")
    return in_use + stolen + seconds("idle", "iowait"), in_use, stolen


LEAST_KEPT, KEPT_OF = 3, 6
"""Runs that are kept of a profile, at least (the fewest with a median), and of how many one is
kept: at a load of four programs a processor a fifth of calls of 2 ms were measured undisturbed."""
WARM_S = 0.005
"""Seconds of work before the first timing, because clocks rise when work comes; chosen."""


def machine_state() -> MachineState:
    """Read clock, governor and load now; takes 0.3 s, in which the load is watched.

    Virtual machines often report a constant clock, or none.
    """
    allowed = allowed_processors()
    mhz: list[float] = []
    governors: set[str] = set()
    with contextlib.suppress(OSError, NotImplementedError):  # no clock, or one that is not read
        clocks = psutil.cpu_freq(percpu=True)
        mhz = [clock.current for number, clock in enumerate(clocks) if number in allowed]
    for number in allowed:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            governor = _CPU / f"cpu{number}" / "cpufreq" / "scaling_governor"
            governors.add(governor.read_text().strip())
    return MachineState(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        mhz=statistics.median(mhz) if mhz else None,
        governor=", ".join(sorted(governors - {""})),
        busy=busy(),
    )


def least_disturbed(runs: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the runs of a computation that other programs disturbed least: the shortest ones.

    On a busy machine most calls that take milliseconds are interrupted, and few that take
    microseconds are, so that medians of all runs would favour short calls.

    Args:
        runs: The times of each run's steps.
    """
    return sorted(runs, key=sum)[: max(LEAST_KEPT, len(runs) // KEPT_OF)]
