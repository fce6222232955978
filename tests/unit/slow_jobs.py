"""The process of the run with other jobs: one ends when it is cancelled, one takes memory."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from collage_engine.machine.run_control import RunControl
from collage_engine.records.answers import RunUpdate
from collage_engine.records.jobs import Job, JobCall, OpenModelJob, RunJob
from collage_engine.run import child
from collage_engine.support.errors import Cancelled
from collage_engine.toolchains import asking


@dataclass(frozen=True, kw_only=True)
class SleepJob(Job[str]):
    """Sleep some seconds, or until it is cancelled unless it is stubborn."""

    path: str = ""
    seconds: float
    stubborn: bool = False
    keeps: bool = False
    name = "sleep"


@dataclass(frozen=True, kw_only=True)
class LimitedSleepJob(SleepJob):
    """A job with a limit."""

    limit_s = 12.0


@dataclass(frozen=True, kw_only=True)
class AskJob(Job[dict[str, str]]):
    """Ask toolchains that are named after what they do to the process; answers those left out."""

    path: str = ""
    toolchains: tuple[str, ...]
    name = "ask"


@dataclass(frozen=True, kw_only=True)
class DieJob(Job[None]):
    """End the process by a signal, so many times, while no toolchain is asked."""

    path: str = ""
    signal: int = signal.SIGABRT
    times: int = 1000
    name = "die"


def _sleep(job: SleepJob, control: RunControl) -> str:
    control.emit("asleep")
    end = time.monotonic() + job.seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        if control.cancelled.is_set() and not job.stubborn:
            raise Cancelled("asked to")
        if control.keep.is_set() and job.keeps:
            return "kept"
    return "slept"


def _ask(job: AskJob, control: RunControl) -> dict[str, str]:
    for name in job.toolchains:
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


def _die(job: DieJob, control: RunControl) -> None:
    if _visits() <= job.times:
        os.kill(os.getpid(), job.signal)


def _open(job: OpenModelJob, control: RunControl) -> None:
    """Be killed, or take memory, as the file's name says; else there is nothing to open."""
    if "killed" in job.path:
        os.kill(os.getpid(), signal.SIGKILL)
    if "large" not in job.path:
        return
    taken = []
    while True:
        taken.append(bytearray(8 << 20))
        taken[-1][::4096] = b"x" * len(taken[-1][::4096])


def _run(job: RunJob, control: RunControl) -> RunUpdate:
    """Be killed once; then answer with the seconds of the budget that were spent before."""
    if _visits() <= 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    return RunUpdate(constants={"spent_s": job.spent_s})


def serve(call: JobCall, send: Callable[[object], None]) -> Any:
    """Do one of these jobs in place of the engine's."""
    child.DO |= {
        SleepJob: _sleep,
        LimitedSleepJob: _sleep,
        AskJob: _ask,
        DieJob: _die,
        OpenModelJob: _open,
        RunJob: _run,
    }
    return child.serve(call, send)
