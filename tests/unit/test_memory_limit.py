"""``--max-memory``: the measured peak of running decides who may win."""

from __future__ import annotations

from pathlib import Path

import pytest

from collage_engine.cli.parser import build_parser
from collage_engine.records.errors import InfeasibleError
from collage_engine.records.settings import RunSettings
from collage_engine.run.memory import memory_verdict
from collage_engine.trials.contender import Contender
from collage_engine.trials.objective import confirming_settings, trial_settings
from collage_engine.trials.race import Race, RaceResult
from tests.support.scripted_workers import Script, cover

MB = 10**6


def confirmed(folder: Path, most: int, *barred: Contender) -> RaceResult:
    """A large placement of 50 µs against a small one of 80, and others that may not win."""
    script = Script()
    script.us["large"], script.us["small"] = 50.0, 80.0
    script.us["pinned"], script.us["licence"] = 20.0, 30.0
    script.peak_bytes.update(large=700 * MB, small=300 * MB, pinned=800 * MB, licence=900 * MB)
    contenders = [Contender(name=n, kind="collage", cover=cover(n)) for n in ("large", "small")]
    contenders += barred
    with Race(script.runner(folder, most_memory_bytes=most)) as race:
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


def test_who_may_not_win_anyway_is_no_part_of_the_price(tmp_path: Path) -> None:
    """A baseline that breaks a pin, and one that breaks another limit, would be faster."""
    others = (
        Contender(name="pinned", kind="greedy", cover=cover("pinned"), eligible=False),
        Contender(
            name="licence",
            kind="greedy",
            cover=cover("licence"),
            eligible=False,
            barred="beyond the limits: its licence",
        ),
    )
    done = confirmed(tmp_path, 500 * MB, *others)
    (verdict,) = memory_verdict(RunSettings(max_memory_bytes=500 * MB), done)
    assert verdict.price_us == pytest.approx(30.0)
    licence = next(one for one in done.results if one.contender.name == "licence")
    assert licence.contender.barred == "beyond the limits: its licence"


def test_a_limit_that_nothing_breaks_costs_nothing(tmp_path: Path) -> None:
    done = confirmed(tmp_path, 800 * MB)
    assert done.winner.contender.name == "large"
    (verdict,) = memory_verdict(RunSettings(max_memory_bytes=800 * MB), done)
    assert (verdict.state, verdict.price_us) == ("honoured", 0.0)


def test_nothing_keeps_it(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match=r"limit on memory.*small.*300 MB while running"):
        confirmed(tmp_path, 100 * MB)


def test_without_a_limit_nothing_is_said(tmp_path: Path) -> None:
    done = confirmed(tmp_path, 0)
    assert done.winner.contender.name == "large"
    assert memory_verdict(RunSettings(), done) == []


@pytest.mark.parametrize("objective", ["latency", "throughput", "p99"])
def test_every_trial_knows_the_limit(objective: str) -> None:
    settings = RunSettings(max_memory_bytes=7, objective=objective)  # type: ignore[arg-type]
    assert trial_settings(settings).most_memory_bytes == 7
    assert confirming_settings(settings).most_memory_bytes == 7


def test_the_command_line_reads_a_size() -> None:
    options = build_parser().parse_args(["place", "m.onnx", "-o", "out", "--max-memory", "500M"])
    assert options.max_memory == 500 * MB
