"""Walks process trees: who descends from whom, what they occupy, and how to end them all.

A process may end between two looks at it: it then has no descendants, occupies nothing, and needs
no ending.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import psutil

from collage_engine.machine.device import allowed_processors, processor_quota

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
    """Return the private bytes of a process and of all that it started.

    Of one that ``on_all_processors`` forked, only what it has more than its parent: they share the
    pages that neither of them has written to since.
    """
    total = private_bytes(pid)
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                shared = private_bytes(child.ppid()) if child.name() == FORK_NAME else 0
                total += max(0, private_bytes(child.pid) - shared)
    return total


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
    """Return the name of a signal: ``SIGSEGV``, or ``signal 34`` where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# -- work on all processors ----------------------------------------------------------------

FORK_NAME = "collage-fork"
"""What the system shows of a process that ``on_all_processors`` forked."""
PR_SET_NAME = 15
"""The option of ``prctl`` (2) that names a process."""
_is_fork = False
"""Whether this process was forked by ``on_all_processors``: it then has one processor."""


def on_all_processors(work: Callable[[int], object], count: int, limit_s: float = math.inf) -> None:
    """Do independent pieces of work in forked processes, which take them one after the other.

    What has an effect is what the work writes into files. Pieces may be left undone, so that the
    caller does these itself, and sees why where they fail: there is one processor or one piece, it
    raises, its process crashes, or the time is over.

    Args:
        work: Does the piece of a number; it needs no other thread of this process.
        count: The number of pieces.
        limit_s: Seconds after which the processes are ended.
    """
    quota = processor_quota()  # of a control group that sees more processors than it may use
    processes = min(len(allowed_processors()), count, count if quota is None else math.ceil(quota))
    if processes < 2 or _is_fork:
        return
    take, give = os.pipe()
    context = multiprocessing.get_context("fork")
    children = [
        context.Process(target=_work_off, args=(work, take, give)) for _ in range(processes)
    ]
    for child in children:
        child.start()
    os.close(take)
    with contextlib.suppress(BrokenPipeError), os.fdopen(give, "wb") as pipe:
        pipe.write(b"".join(struct.pack("<I", number) for number in range(count)))
    deadline = time.monotonic() + limit_s
    for child in children:
        child.join(None if limit_s == math.inf else max(0.0, deadline - time.monotonic()))
        child.kill()
        child.join()


def prctl(option: int, value: int | bytes) -> None:
    """Call Linux's prctl."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _work_off(work: Callable[[int], object], take: int, give: int) -> None:
    """Do the pieces of work whose numbers a forked process takes from a pipe."""
    global _is_fork
    _is_fork = True
    prctl(PR_SET_NAME, FORK_NAME.encode())
    os.close(give)
    while number := os.read(take, 4):
        with contextlib.suppress(Exception):
            work(*struct.unpack("<I", number))
