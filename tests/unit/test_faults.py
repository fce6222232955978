"""Who crashes or hangs twice in a run is out of it; what something outside killed is no fault.

Whom a process asks is noted with the time that the answer may take, for its parent to read.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from collage_engine.machine.faults import OWN_RISK, FaultTracker
from collage_engine.machine.worker import (
    Worker,
    WorkerCrashed,
    WorkerError,
    WorkerFault,
    WorkerTimeout,
    call_again,
)
from collage_engine.support.errors import CollageError, ToolchainError, ToolchainFault
from collage_engine.support.time_limits import ANSWER_S, LEAST_S, WORK_S
from collage_engine.toolchains import asking
from collage_engine.trials.contender import Contender
from collage_engine.trials.race import Race
from collage_engine.trials.trial_job import TrialJob
from tests.support.scripted_workers import Script, ScriptedWorker, cover, kind_of


def test_a_toolchain_that_fails_twice_is_out_of_the_run() -> None:
    told: list[str] = []
    faults = FaultTracker(told.append)
    faults.title_of = str.title
    faults.blame(["evil"], "killed by SIGSEGV")
    assert faults.reason_against(["evil"]) is None and not told
    for _ in range(2):
        faults.blame(["evil"], "no answer within 5 s")
    assert len(told) == 1 and told[0].startswith("Evil is left out of this run: ")
    assert "no answer within 5 s" in told[0]
    assert faults.left_out.keys() == {"evil"}
    assert faults.reason_against(["tvm", "evil"]) is not None
    assert faults.reason_against(["tvm"]) is None


def test_who_runs_elsewhere_is_not_to_blame_for_a_placement_of_several() -> None:
    faults = FaultTracker()
    faults.runs(["tvm"])
    for _ in range(2):
        faults.blame(["evil", "tvm"], "killed by SIGABRT")
    assert faults.left_out.keys() == {"evil"}
    faults.blame(["tvm"], "killed by SIGABRT")
    faults.blame(["tvm"], "killed by SIGABRT")
    assert faults.left_out.keys() == {"evil", "tvm"}, "by itself it is to blame"


# -- placements that fail -----------------------------------------------------------------------


class Failing(ScriptedWorker):
    """A worker whose placements fail when they are loaded."""

    error: Exception = WorkerCrashed("killed by SIGSEGV")
    limits: ClassVar[list[float]] = []

    def call(self, request: Any, timeout_s: float, cancel: Any = None) -> Any:
        if kind_of(request) is TrialJob.open:
            self.limits.append(timeout_s)
            raise self.error
        return super().call(request, timeout_s, cancel)


def failures(
    folder: Path, error: Exception, times: int, left_s: float = math.inf
) -> tuple[list[str], FaultTracker]:
    """Return why placements of one toolchain fail that end their processes, one after the other."""
    script, faults = Script(), FaultTracker()
    Failing.error = error
    Failing.limits.clear()
    script.worker = lambda target, *, env=None, name="": Failing(script, env or {})  # type: ignore[method-assign]
    with script.bench(folder, faults=faults, left_s=lambda: left_s) as bench:
        race = Race(bench)
        trials = [
            race.try_cover(Contender(name=f"p{k}", kind="collage", cover=cover(f"p{k}")))
            for k in range(times)
        ]
    return [trial.reason or "" for trial in trials], faults


@pytest.mark.parametrize("error", [WorkerCrashed("killed by SIGSEGV"), WorkerTimeout(5.0)])
def test_a_third_placement_of_a_toolchain_that_failed_twice_is_not_built(
    tmp_path: Path, error: WorkerError
) -> None:
    why, faults = failures(tmp_path, error, 3, left_s=60.0)
    assert all(str(error) in each for each in why)
    assert "is out of this run" in why[2] and len(Failing.limits) == 2
    assert faults.left_out.keys() == {"tvm"}


@pytest.mark.parametrize(
    ("error", "left_s"),
    [
        (WorkerCrashed("killed by SIGKILL", from_outside=True), 60.0),
        (WorkerTimeout(10.0), 0.0),
        (ToolchainError("it has no kernel for this"), 60.0),
    ],
    ids=["killed from outside", "the run's time is over", "refused"],
)
def test_what_is_no_fault_costs_the_placement_only(
    tmp_path: Path, error: CollageError, left_s: float
) -> None:
    _, faults = failures(tmp_path, error, 3, left_s)
    assert not faults.left_out


def test_a_placement_that_ran_stays_when_its_toolchain_goes_out(tmp_path: Path) -> None:
    script, faults = Script(), FaultTracker()
    with script.bench(tmp_path, faults=faults) as bench:
        ran, new = (
            bench.process(Contender(name=name, kind="collage", cover=cover(name)))
            for name in ("ran", "new")
        )
        for process in (ran, new):
            process.build()
        ran.load()
        faults.leave_out("tvm", "two of its candidates crashed")
        for process in (ran, new):
            process.load()
        assert ran.failure is None and ran.loaded
        assert "tvm is out of this run" in (new.failure or "")


@pytest.mark.parametrize(
    ("left_s", "limit_s", "expected_s"),
    [
        (math.inf, ANSWER_S, ANSWER_S),
        (math.inf, WORK_S, WORK_S),
        (600.0, WORK_S, 150.0),
        (40.0, ANSWER_S, 10.0),
        (8.0, ANSWER_S, LEAST_S),
    ],
)
def test_an_answer_may_take_a_quarter_of_the_time_that_is_left(
    monkeypatch, left_s: float, limit_s: float, expected_s: float
) -> None:
    monkeypatch.setattr(asking, "job_left_s", lambda: left_s)
    with asking.asking("evil", limit_s):
        at_risk = OWN_RISK.get()
        assert at_risk is not None and at_risk.limit_s == expected_s
        assert at_risk.until_s == pytest.approx(time.monotonic() + expected_s, abs=5.0)


def test_what_a_toolchain_raises_names_it() -> None:
    with pytest.raises(ToolchainFault, match=r"evil failed.*ValueError: no") as raised:
        asking.asked("evil", _raise)()
    assert raised.value.toolchain == "evil" and OWN_RISK.get() is None


def _raise() -> None:
    raise ValueError("no")


def misbehave(how: str) -> str:
    """Runs in the child."""
    with OWN_RISK.during("evil", "standing still", 0.5 if how == "hang" else 600.0):
        if how in ("hang", "exceed the call's time"):
            time.sleep(600)
        if how == "end":
            os._exit(3)
    return how


@pytest.mark.parametrize(
    ("how", "timeout_s", "expected"),
    [
        ("hang", 60.0, "gave no answer within 0.5 s while standing still"),
        ("end", 60.0, "crashed while standing still: ended with status 3"),
        ("exceed the call's time", 3.0, "gave no answer within 3 s"),
    ],
)
def test_who_ends_its_process_or_exceeds_its_own_time_is_to_blame(how, timeout_s, expected) -> None:
    with Worker(f"{__name__}:misbehave") as worker:
        with pytest.raises(WorkerFault) as raised:
            worker.call(how, timeout_s=timeout_s)
        assert raised.value.how == expected and not worker.alive
        assert worker.call("well") == "well"
    at_risk = raised.value.at_risk
    assert (at_risk.who if at_risk else None) == ("evil" if timeout_s == 60.0 else None)


def test_a_call_is_made_again_without_whom_its_end_is_to_blame_on() -> None:
    """One kill from outside is nobody's fault; a second one is as any other end."""
    ends = [
        WorkerCrashed("killed by SIGKILL", from_outside=True),
        WorkerCrashed("killed by SIGSEGV"),
        WorkerCrashed("killed by SIGKILL", from_outside=True),
    ]
    pending, left_out, prepared = list(ends), list[WorkerFault](), list[int]()

    def call() -> str:
        if pending:
            raise pending.pop(0)
        return "done"

    def leave_out(fault: WorkerFault) -> bool:
        left_out.append(fault)
        return True

    assert call_again(call, leave_out, lambda: prepared.append(len(pending))) == "done"
    assert left_out == ends[1:] and prepared == [2, 1, 0]
    pending = ends[1:]
    with pytest.raises(WorkerCrashed, match="SIGSEGV"):
        call_again(call)
