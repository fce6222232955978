"""The process of the run with other jobs: one ends when it is cancelled, one takes memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

from collage_engine.machine.run_control import RunControl
from collage_engine.records.answers import RunUpdate
from collage_engine.records.protocol import ChildRequest, Job, ModelOpen, RunStart
from collage_engine.run import child
from collage_engine.support.errors import Cancelled
from collage_engine.toolchains import asking


class Sleep(ChildRequest[None, str], frozen=True, kw_only=True):
    """Sleep some seconds, or until it is cancelled unless it is stubborn."""

    seconds: float
    stubborn: bool = False
    keeps: bool = False


class LimitedSleep(Sleep, frozen=True, kw_only=True):
    """A job with a limit."""

    limit_s = 12.0


class Ask(ChildRequest[None, dict[str, str]], frozen=True, kw_only=True):
    """Ask toolchains that are named after what they do to the process; answers those left out."""

    toolchains: tuple[str, ...]


class Die(ChildRequest[None, None], frozen=True, kw_only=True):
    """End the process by a signal, so many times, while no toolchain is asked."""

    signal: int = signal.SIGABRT
    times: int = 1000


def _sleep(job: Job[Sleep], control: RunControl) -> str:
    control.emit("asleep")
    end = time.monotonic() + job.request.seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        if control.cancelled.is_set() and not job.request.stubborn:
            raise Cancelled("asked to")
        if control.keep.is_set() and job.request.keeps:
            return "kept"
    return "slept"


def _ask(job: Job[Ask], control: RunControl) -> dict[str, str]:
    for name in job.request.toolchains:
        if name in control.faults.left_out:
            continue
        with asking.asking(name, limit_s=1.0 if name == "hang" else asking.ANSWER_S):
            if name == "abort":
                os.abort()
            if name == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            if name == "killed" and _visits() <= 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "exit":
                os._exit(0)
            if name == "hang":
                time.sleep(600)
    return control.faults.left_out


def _visits() -> int:
    """Count this visit, and return how many children of a test have been here."""
    with open(os.environ["COLLAGE_TEST_MARK"], "a+") as stream:
        stream.write("x")
        stream.seek(0)
        return len(stream.read())


def _die(job: Job[Die], control: RunControl) -> None:
    if _visits() <= job.request.times:
        os.kill(os.getpid(), job.request.signal)


def _open(job: Job[ModelOpen], control: RunControl) -> None:
    """Be killed, or take memory, as the file's name says; else there is nothing to open."""
    if "killed" in job.path:
        os.kill(os.getpid(), signal.SIGKILL)
    if "large" not in job.path:
        return
    taken = []
    while True:
        taken.append(bytearray(8 << 20))
        taken[-1][::4096] = b"x" * len(taken[-1][::4096])


def _run(job: Job[RunStart], control: RunControl) -> RunUpdate:
    """Be killed once; then answer with the seconds of the budget that were spent before."""
    if _visits() <= 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return RunUpdate(constants={"spent_s": job.request.spent_s})


def serve(job: Job[Any], send: Callable[[object], None]) -> Any:
    """Do one of these jobs in place of the engine's."""
    child.DO |= {
        Sleep: _sleep,
        LimitedSleep: _sleep,
        Ask: _ask,
        Die: _die,
        ModelOpen: _open,
        RunStart: _run,
    }
    return child.serve(job, send)
