"""What trials learn of toolchains whose placements end their processes."""

from __future__ import annotations

from collage_engine.machine.worker import WorkerCrashed, WorkerTimeout
from collage_engine.records.candidate import Candidate
from collage_engine.records.errors import CollageError
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.trials.contender import Contender
from collage_engine.trials.suspects import HANGS, Suspects


def contender(*names: str) -> Contender:
    cover = tuple(
        Candidate(id=name, instance=ToolchainInstance(toolchain=name), nodes=(k,), label="relu")
        for k, name in enumerate(names)
    )
    return Contender(name="trial", kind="collage", cover=cover)


def test_a_process_that_ended_early_is_told_with_the_toolchains_in_it():
    suspects = Suspects()
    both = contender("evil", "tvm", "evil")
    crashed = suspects.sentence(both, WorkerCrashed("killed by SIGABRT: evil: abort"))
    assert crashed == "evil with tvm: killed by SIGABRT: evil: abort"
    late = suspects.sentence(both, WorkerTimeout(20), "it was built")
    assert late == "evil with tvm: no answer within 20 s while it was built"
    assert suspects.sentence(both, CollageError("wrong numbers")) == "wrong numbers"


def test_a_toolchain_that_hangs_again_and_again_is_not_tried_any_more():
    suspects = Suspects()
    for _ in range(HANGS):
        assert suspects.reason_against(contender("evil")) is None
        suspects.sentence(contender("evil", "tvm"), WorkerTimeout(20))
    suspects.runs(contender("tvm"))
    reason = suspects.reason_against(contender("tvm", "evil"))
    assert reason is not None and reason.startswith("evil hung in 2 placements")
    assert suspects.reason_against(contender("tvm")) is None


def test_crashes_do_not_count_since_they_cost_no_time():
    suspects = Suspects()
    for _ in range(5):
        suspects.sentence(contender("evil"), WorkerCrashed("killed by SIGSEGV"))
    assert suspects.reason_against(contender("evil")) is None
