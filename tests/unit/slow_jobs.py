"""The pipeline's child with other jobs: ``sleep`` ends when cancelled, ``open`` takes memory."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from collage_engine.control.run_control import RunControl
from collage_engine.records.errors import Cancelled
from collage_engine.run import child
from collage_engine.toolchains import at_risk


def _sleep(control: RunControl, seconds: float, stubborn: bool = False, keeps: bool = False) -> str:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        if control.cancelled.is_set() and not stubborn:
            raise Cancelled("asked to")
        if control.keep.is_set() and keeps:
            return "kept"
    return "slept"


def _ask(control: RunControl, toolchains: tuple[str, ...]) -> dict[str, str]:
    """Ask toolchains that are named after what they do to the process; those left out answer."""
    for name in toolchains:
        if name in at_risk.left_out():
            continue
        with at_risk.asking(name, limit_s=1.0 if name == "hang" else at_risk.ANSWER_S):
            if name == "abort":
                os.abort()
            if name == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if name == "killed" and _first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "exit":
                os._exit(0)
            if name == "hang":
                time.sleep(600)
    return at_risk.left_out()


def _first_time() -> bool:
    """Whether no child of this engine's has been here before."""
    path = Path(os.environ["COLLAGE_TEST_MARK"])
    known = path.exists()
    path.touch()
    return not known


def _die(control: RunControl) -> None:
    """End the process while no toolchain is asked."""
    os.abort()


def _eat(control: RunControl, path: str = "") -> None:
    taken = []
    while True:
        taken.append(bytearray(8 << 20))
        taken[-1][::4096] = b"x" * len(taken[-1][::4096])


child._JOBS |= {"sleep": _sleep, "open": _eat, "ask": _ask, "die": _die}
serve = child.serve
