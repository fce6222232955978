"""Watches the largest memory of this process and all its descendants, as Linux counts it.

Pages of mapped files, such as those of libraries and of a large model's weights, are left out:
processes share them, and the system drops them whenever memory is short.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from collage_engine.machine.processes import descendants, private_bytes

STEP_S = 0.25
"""Seconds between two looks; chosen: loading a placement of gigabytes takes seconds, and a look
at ten processes takes 0.3 ms of one processor."""


@contextmanager
def watched_memory(step_s: float = STEP_S) -> Iterator[Callable[[], int | None]]:
    """Watch the memory of this process and its descendants inside the ``with`` block.

    Args:
        step_s: Seconds between two looks.

    Yields:
        A function that returns the largest sum so far, in bytes; None where there is no /proc.
    """
    if not Path("/proc/self/statm").exists():
        yield lambda: None
        return
    largest = 0
    ended, lock = threading.Event(), threading.Lock()

    def look() -> int:
        nonlocal largest
        here = os.getpid()
        now = sum(map(private_bytes, (here, *descendants(here))))
        with lock:  # the watching thread and the caller look at the same time
            largest = max(largest, now)
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
