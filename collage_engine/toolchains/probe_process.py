"""Runs the process that probes one toolchain, and ends it at a limit of time, idleness or memory.

It is no ``machine.worker``: what a probe says of a library must not depend on a process that other
work has run in, and a command line that only lists toolchains starts as few processes as it can.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from collage_engine.machine.cgroups import memory_bytes
from collage_engine.machine.processes import STEP_S, descendants, tree_private_bytes
from collage_engine.machine.worker import MEMORY_SHARE
from collage_engine.records.errors import ToolchainError
from collage_engine.records.time_limits import WORK_S

_LOG = logging.getLogger(__name__)

LIFE = "COLLAGE_PROBE_LIFE"
"""Environment variable of a probe: a descriptor that is closed when its parent ends."""

_children: set[subprocess.Popen[str]] = set()
"""Processes of the probes that are under way."""
_lock = threading.Lock()
"""A lock that is held while ``_children`` is read or changed, never while waiting for a probe."""


@dataclass(frozen=True)
class ProbeLimits:
    """The limits at which a probe is ended."""

    whole_s: float = WORK_S
    """Seconds that a probe may take, which compiles a runtime where that is needed."""
    idle_s: float = 8.0
    """Seconds that a probe and its children may pass without any processor time; chosen, below the
    time that the shortest run waits for toolchains. Whoever loads a library, compiles, or polls the
    lock of another process that compiles uses some."""
    memory_share: float = MEMORY_SHARE
    """Share of the machine's memory that they may hold."""


class ProbeEnded(ToolchainError):
    """A probe reached a limit and was ended; the text says which."""


def run_probe(
    command: Sequence[str], environment: Mapping[str, str], limits: ProbeLimits
) -> tuple[int, str, str]:
    """Run a probe to its end.

    Returns:
        Its exit status, what it printed, and what it wrote to standard error.

    Raises:
        ProbeEnded: It reached a limit.
    """
    # The child ends when nobody holds the other end any more, however this process ends.
    life, held = os.pipe()
    # It has a session of its own: Ctrl-C is ours to handle, and its compiler ends with it.
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**environment, LIFE: str(life)},
        pass_fds=(life,),
        start_new_session=True,
    )
    os.close(life)
    _LOG.info("probe started: %s in process %d", command[-1], child.pid)
    with _lock:
        _children.add(child)
    try:
        return _watched(child, limits)
    except ProbeEnded:
        _end(child)
        child.communicate()
        raise
    finally:
        os.close(held)
        with _lock:
            _children.discard(child)


def end_probes() -> None:
    """End every probe under way."""
    with _lock:
        for child in _children:
            _end(child)


def end_with_parent() -> None:
    """Has a probe end itself, and what it has started, when its parent is gone."""
    life = os.environ.pop(LIFE, "")
    if not life:
        return

    def wait() -> None:
        os.read(int(life), 1)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


def _watched(child: subprocess.Popen[str], limits: ProbeLimits) -> tuple[int, str, str]:
    """Wait for a probe; raises ``ProbeEnded`` at a limit."""
    began = busy = time.monotonic()
    most_bytes = int(memory_bytes() * limits.memory_share)
    used_s = 0.0
    while True:
        now = time.monotonic()
        left_s = began + limits.whole_s - now
        try:
            printed, said = child.communicate(timeout=max(0.0, min(STEP_S, left_s)))
            return child.returncode, printed, said
        except subprocess.TimeoutExpired:
            pass
        if left_s <= 0:
            raise ProbeEnded(f"probing it took longer than {limits.whole_s:g} s")
        family = [child.pid, *descendants(child.pid)]
        if tree_private_bytes(child.pid) > most_bytes:
            raise ProbeEnded(f"probing it used more than {most_bytes / 2**30:.3g} GiB of memory")
        before_s, used_s = used_s, _processor_s(family)
        if used_s != before_s:
            busy = now
        elif now - busy > limits.idle_s:
            raise ProbeEnded(f"probing it did nothing for longer than {limits.idle_s:g} s")


def _processor_s(family: Sequence[int]) -> float:
    """Return the processor time of processes and of those of their children that have ended."""
    total_s = 0.0
    for pid in family:
        with contextlib.suppress(psutil.Error):
            total_s += sum(psutil.Process(pid).cpu_times()[:4])
    return total_s


def _end(child: subprocess.Popen[str]) -> None:
    """Kill a probe and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
