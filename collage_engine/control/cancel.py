"""Cancelling: a flag that long stages check between two pieces of work."""

from __future__ import annotations

import threading

from collage_engine.records.errors import Cancelled

EVENT = threading.Event()
"""Set by the signal handler of the pipeline's child; cleared when a job begins."""


def check() -> None:
    """Stop here if the user has cancelled the work.

    Raises:
        Cancelled: The flag is set.
    """
    if EVENT.is_set():
        raise Cancelled("cancelled; what was measured is kept")
