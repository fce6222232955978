"""``--max-memory``: the measured peak of running decides who may win.

Placements of large models are loaded one at a time, and the memory of a run is watched.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from collage_engine.machine.processes import watched_memory
from collage_engine.records.settings import RunSettings
from collage_engine.run.run_document import memory_verdict
from collage_engine.support.errors import InfeasibleError
from collage_engine.trials import placement_process
from collage_engine.trials.contender import Contender
from collage_engine.trials.race import Race
from collage_engine.trials.standings import COMMON_ROUNDS, RaceResult
from tests.support.scripted_workers import Script, cover

MB = 10**6


def confirmed(folder: Path, most: int) -> RaceResult:
    """A large placement of 50 µs against a small one of 80, and two that may not win anyway."""
    script = Script()
    script.us["large"], script.us["small"] = 50.0, 80.0
    script.us["pinned"], script.us["licence"] = 20.0, 30.0
    script.peak_bytes.update(large=700 * MB, small=300 * MB, pinned=800 * MB, licence=900 * MB)
    contenders = [Contender(name=n, kind="collage", cover=cover(n)) for n in ("large", "small")]
    for name, why in (("pinned", "a pin"), ("licence", "beyond the limits: its licence")):
        contenders.append(Contender(name=name, kind="greedy", cover=cover(name), barred=why))
    with script.bench(folder, most_memory_bytes=most) as bench:
        race = Race(bench)
        race.enter(contenders)
        return race.finish()


def test_the_fastest_that_keeps_the_limit_wins_and_the_price_is_said(tmp_path: Path) -> None:
    done = confirmed(tmp_path, 500 * MB)
    assert done.winner.contender.name == "small"
    (large,) = (one for one in done.results if one.contender.name == "large")
    assert large.measured_us == pytest.approx(50.0) and not large.contender.eligible
    assert large.contender.barred == ("beyond the limits: 700 MB while running, 500 MB are allowed")
    (verdict,) = memory_verdict(RunSettings(max_memory_bytes=500 * MB), done)
    assert (verdict.state, verdict.price_us) == ("honoured", pytest.approx(30.0))
    assert "300 MB" in str(verdict.reason) and "30.0 µs" in str(verdict.reason)
    licence = next(one for one in done.results if one.contender.name == "licence")
    assert licence.contender.barred == "beyond the limits: its licence"


def test_nothing_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"limit on memory.*small.*300 MB while running"):
        confirmed(tmp_path, 100 * MB)


def contenders(names: str) -> list[Contender]:
    return [Contender(name=n, kind="collage", cover=cover(n)) for n in names]


def test_one_placement_is_loaded_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_process, "ONE_LOADED_FROM_BYTES", 0)
    script = Script()
    script.us |= {"a": 120.0, "b": 80.0, "c": 100.0}
    with script.bench(tmp_path) as bench:
        race = Race(bench)
        race.enter(contenders("abc"))
        done = race.finish()
    assert done.winner.contender.name == "b" and done.winner.measured_us == pytest.approx(80.0)
    assert script.most_loaded == 1
    assert script.opened["b"] >= COMMON_ROUNDS, "it was loaded anew for its rounds"
    assert len(done.results) == 3 and all(one.reason is None for one in done.results)


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
