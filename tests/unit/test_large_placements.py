"""Placements of large models are loaded one at a time, and the memory of a run is watched."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

from collage_engine.build.build_job import BuildCover
from collage_engine.machine.processes import watched_memory
from collage_engine.machine.time_limits import WEIGHTS_BYTES_PER_S
from collage_engine.machine.worker import WorkerTimeout
from collage_engine.trials import placement_process
from collage_engine.trials.contender import Contender, Sample
from collage_engine.trials.placement_process import (
    BUILD_TIMEOUT_S,
    LOAD_TIMEOUT_S,
    Deployment,
    PlacementProcess,
    RoundSettings,
    TrialFiles,
)
from collage_engine.trials.race import COMMON_ROUNDS, Race
from collage_engine.trials.trial_job import OpenPlacement
from tests.support.scripted_workers import Script, ScriptedWorker, cover, trial_model


def contenders(names: str) -> list[Contender]:
    return [Contender(name=n, kind="collage", cover=cover(n)) for n in names]


def test_one_placement_is_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_process, "ONE_LOADED_FROM_BYTES", 0)
    script = Script()
    script.us |= {"a": 120.0, "b": 80.0, "c": 100.0}
    with Race(script.runner(tmp_path)) as race:
        race.enter(contenders("abc"))
        done = race.finish()
    assert done.winner.contender.name == "b" and done.winner.measured_us == pytest.approx(80.0)
    assert script.most_loaded == 1
    assert script.opened["b"] >= COMMON_ROUNDS, "it was loaded anew for its rounds"
    assert len(done.results) == 3 and all(one.reason is None for one in done.results)


def test_limits_of_time_follow_from_the_weights(tmp_path: Path) -> None:
    weights = 3_200_000_000
    script = Script()
    model = replace(trial_model(), weights_bytes=weights)
    one = np.ones(1, "float32")
    files = TrialFiles(model, [Sample({"x": one}, {"y": one})], tmp_path / "samples")
    process = PlacementProcess(
        contenders("a")[0],
        files,
        tmp_path / "module",
        1e-4,
        Event(),
        script.worker,
        deployed=Deployment(streams=2),
    )
    process.build(script.worker(""))
    process.load()
    assert process.failure is None
    read_s = weights / WEIGHTS_BYTES_PER_S
    assert script.limits_s[BuildCover] == [BUILD_TIMEOUT_S + read_s]
    assert script.limits_s[OpenPlacement] == [LOAD_TIMEOUT_S + 2 * read_s]
    process.rest()
    process.timed_round(RoundSettings())
    assert script.limits_s[OpenPlacement] == [LOAD_TIMEOUT_S + 2 * read_s] * 2, "loaded again"
    process.close()


def test_what_is_not_loaded_in_time_is_said_to_be_loading(tmp_path: Path) -> None:
    class Slow(ScriptedWorker):
        def call(self, request: Any, timeout_s: float, cancel: Any = None) -> Any:
            if isinstance(request, OpenPlacement):
                raise WorkerTimeout(timeout_s)
            return super().call(request, timeout_s, cancel)

    script = Script()
    script.worker = lambda target, *, env=None, name="": Slow(script, env or {})  # type: ignore[method-assign]
    with Race(script.runner(tmp_path)) as race:
        trial = race.try_cover(contenders("a")[0])
    (why,) = trial.failures
    limit = f"no answer within {LOAD_TIMEOUT_S:g} s"
    assert why.endswith(f"{limit} while it was loaded and run on the samples")


def test_small_placements_are_loaded_together(tmp_path: Path) -> None:
    script = Script()
    with Race(script.runner(tmp_path)) as race:
        race.enter(contenders("abc"))
    assert script.most_loaded == 3


def test_a_placement_that_fails_when_it_is_loaded_again_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_process, "ONE_LOADED_FROM_BYTES", 0)
    script = Script()
    script.us |= {"a": 100.0, "b": 80.0}
    script.crash_in_round["b"] = 1
    with Race(script.runner(tmp_path)) as race:
        race.enter(contenders("ab"))
        done = race.finish()
    assert done.winner.contender.name == "a"


def test_the_memory_of_children_counts() -> None:
    megabytes = 120
    program = f"x = bytearray({megabytes} << 20); print('there', flush=True); input()"
    with watched_memory(step_s=0.01) as largest:
        before = largest()
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert child.stdout is not None and child.stdout.readline()
        during = largest()
        child.communicate(b"\n")
        after = largest()
    assert during - before > 0.9 * (megabytes << 20)
    assert after >= during, "it is the largest so far"
