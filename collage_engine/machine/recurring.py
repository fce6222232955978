"""Calls a function again and again beside a block of work, such as to tell that it is alive."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

JOIN_S = 1.0
"""Seconds that the end of a block waits for a call that is under way; chosen: a call takes some
milliseconds, and one that hangs, as on a connection that is gone, must not hold up the rest."""


@contextlib.contextmanager
def recurring(
    call: Callable[[], bool], every_s: float, *, name: str, at_once: bool = False
) -> Iterator[None]:
    """Call a function every so many seconds, from a thread of its own, while a block runs.

    Args:
        call: What is called; it says whether it wants to be called again, and handles its own
            errors: one that it raises ends the repetition.
        every_s: Seconds between the end of a call and the next one.
        name: Of the thread, as ``py-spy`` and the log show it.
        at_once: Whether the first call comes as the block begins, not ``every_s`` later.
    """
    over = threading.Event()

    def work() -> None:
        wanted = call() if at_once else True
        while wanted and not over.wait(every_s):
            wanted = call()

    thread = threading.Thread(target=work, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(JOIN_S)
