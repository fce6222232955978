"""The pipeline's child with other jobs: ``sleep`` ends when cancelled, ``open`` takes memory."""

from __future__ import annotations

import time

from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import Cancelled
from collage_engine.run import child


def _sleep(control: RunControl, seconds: float, stubborn: bool = False) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        if control.cancelled.is_set() and not stubborn:
            raise Cancelled("asked to")
    return "slept"


def _eat(control: RunControl, path: str = "") -> None:
    taken = []
    while True:
        taken.append(bytearray(8 << 20))
        taken[-1][::4096] = b"x" * len(taken[-1][::4096])


child._JOBS["sleep"] = _sleep
child._JOBS["open"] = _eat
serve = child.serve
