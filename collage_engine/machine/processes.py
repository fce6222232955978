"""Walks process trees: who descends from whom, what they occupy, and how to end them all.

A process may end between two looks at it: it then has no descendants, occupies nothing, and needs
no ending.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import psutil

STEP_S = 0.5
"""Seconds between two looks at the memory of a process tree; chosen: loading a placement of
gigabytes takes seconds, and a look at a machine with 85 processes takes 2 ms of one processor."""


def descendants(pid: int) -> list[int]:
    """Return every process below ``pid``, in no order."""
    with contextlib.suppress(psutil.Error):
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return []


def private_bytes(pid: int) -> int:
    """Return the resident bytes of one process without mapped files; 0 when it is gone.

    Processes share the pages of mapped files, such as those of libraries and of a large model's
    weights, and the system drops them whenever memory is short.
    """
    with contextlib.suppress(psutil.Error):
        memory = psutil.Process(pid).memory_info()
        return int(memory.rss - getattr(memory, "shared", 0))
    return 0


def processor_s(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of those of their children that have ended."""
    total_s = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            total_s += sum(psutil.Process(pid).cpu_times()[:4])
    return total_s


def tree_private_bytes(pid: int) -> int:
    """Return the private bytes of a process and of all that it started."""
    return sum(map(private_bytes, (pid, *descendants(pid))))


@contextmanager
def watched_memory(step_s: float = STEP_S) -> Iterator[Callable[[], int]]:
    """Watch the memory of this process and its descendants inside the ``with`` block.

    Args:
        step_s: Seconds between two looks.

    Yields:
        A function that looks once more and returns the largest sum so far, in bytes.
    """
    largest = 0
    lock = threading.Lock()  # the watching thread and the caller look at the same time

    def look() -> int:
        nonlocal largest
        now = tree_private_bytes(os.getpid())
        with lock:
            largest = max(largest, now)
            return largest

    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(step_s):
            look()

    thread = threading.Thread(target=watch, name="collage-memory", daemon=True)
    thread.start()
    try:
        yield look
    finally:
        ended.set()
        thread.join()


def kill(pid: int) -> None:
    """End a process at once; one that is gone, or not ours, is left alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int) -> None:
    """End everything below ``pid``; looks again, since a dying tree may still fork."""
    for _ in range(5):
        below = descendants(pid)
        if not below:
            return
        for each in below:
            kill(each)
        for each in below:
            # Direct children are ours to reap; others are reaped by init or a subreaper.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each, 0)


def signal_name(number: int) -> str:
    """Returns the name of a signal: ``SIGSEGV``, or ``signal 34`` where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
