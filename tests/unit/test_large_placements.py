"""Placements of large models are loaded one at a time, and the memory of a run is watched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine.tree_memory import watched_memory
from collage_engine.trials import placement_process
from collage_engine.trials.confirmation import ROUNDS_ALONE, ConfirmationSettings, confirm
from collage_engine.trials.contender import Contender
from tests.support.scripted_workers import Script, cover


def contenders(names: str) -> list[Contender]:
    return [Contender(name=n, kind="collage", cover=cover(n)) for n in names]


def test_one_placement_is_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_process, "ONE_LOADED_FROM_BYTES", 0)
    script = Script()
    script.us |= {"a": 120.0, "b": 80.0, "c": 100.0}
    with script.runner(tmp_path) as runner:
        done = confirm(runner, contenders("abc"), settings=ConfirmationSettings())
    assert done.winner.contender.name == "b" and done.winner.measured_us == pytest.approx(80.0)
    assert script.most_loaded == 1
    assert script.opened["b"] >= ROUNDS_ALONE, "it was loaded anew for its rounds"
    assert len(done.results) == 3 and all(one.reason is None for one in done.results)


def test_small_placements_are_loaded_together(tmp_path: Path) -> None:
    script = Script()
    with script.runner(tmp_path) as runner:
        confirm(runner, contenders("abc"), settings=ConfirmationSettings())
    assert script.most_loaded == 3


def test_a_placement_that_fails_when_it_is_loaded_again_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement_process, "ONE_LOADED_FROM_BYTES", 0)
    script = Script()
    script.us |= {"a": 100.0, "b": 80.0}
    script.crash_in_round["b"] = 1
    with script.runner(tmp_path) as runner:
        done = confirm(runner, contenders("ab"), settings=ConfirmationSettings())
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
    if before is None:
        pytest.skip("there is no /proc here")
    assert during is not None and during - before > 0.9 * (megabytes << 20)
    assert after is not None and after >= during, "it is the largest so far"
