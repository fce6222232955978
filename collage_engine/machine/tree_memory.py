"""The largest memory of this process and all its descendants together, as Linux counts it.

Counted is memory that no file stands behind (``RssAnon`` and ``RssShmem``). Pages of mapped files,
such as those of libraries and of a large model's weights, are left out: processes share them, and
the system drops them whenever memory is short.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STEP_S = 0.25
"""Seconds between two looks; chosen: loading a placement of gigabytes takes seconds, and a look
at ten processes takes 0.3 ms of one processor."""
PROC = Path("/proc")
_FIELDS = ("RssAnon:", "RssShmem:")


def private_bytes(process: int) -> int:
    """Return the memory of a process that no file stands behind; 0 where it has ended."""
    try:
        lines = (PROC / str(process) / "status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_FIELDS))


def descendants(process: int) -> list[int]:
    """Return a process and all that it has started, directly and indirectly."""
    found, waiting = [], [process]
    while waiting:
        one = waiting.pop()
        found.append(one)
        try:
            for thread in (PROC / str(one) / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # it has ended
    return found


@contextmanager
def watched_memory(step_s: float = STEP_S) -> Iterator[Callable[[], int | None]]:
    """Watch the memory of this process and its descendants inside the ``with`` block.

    Args:
        step_s: Seconds between two looks.

    Yields:
        A function that returns the largest sum so far, in bytes; None where there is no /proc.
    """
    if not (PROC / "self" / "status").exists():
        yield lambda: None
        return
    largest = 0
    ended = threading.Event()

    def look() -> int:
        nonlocal largest
        largest = max(largest, sum(map(private_bytes, descendants(os.getpid()))))
        return largest

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
