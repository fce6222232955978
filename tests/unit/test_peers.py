"""Statistics, table and verdicts of the benchmark against other runtimes, on canned figures."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from collage_engine.records.errors import UsageError
from tests.benchmarks import peers, peers_stats, peers_table
from tests.benchmarks import peers_report as report
from tests.benchmarks.peers_report import PeerEntry, PeersResult, PeerTime


def rounds(us: float, *, seed: int, count: int = 50, cpu: float = 1.0) -> list[tuple[float, float]]:
    """A machine that is sometimes slow for everybody at once."""
    shared, own = random.Random(1), random.Random(seed)
    found = []
    for _ in range(count):
        slow = shared.choice([1.0, 1.0, 1.0, 1.8])
        wall = us * slow * own.gauss(1.0, 0.005)
        found.append((wall, wall * cpu))
    return found


def entry(model: str = "net", **samples: list[tuple[float, float]]) -> PeerEntry:
    times = tuple(
        peers.timed(PeerTime(name=name, version="1"), found, "wall")
        for name, found in samples.items()
    )
    plain = PeerEntry(
        model=model,
        threads=1,
        peers=times,
        samples=samples,
        estimated_us=100.0,
        placed_us=103.0,
        toolchains={"onednn": 2, "tvm": 1},
    )
    return peers.judged(plain)


def test_a_paired_ratio_sees_through_the_machines_noise():
    ours, other = rounds(97.0, seed=2), rounds(100.0, seed=3)
    found = peers_stats.paired_ratio(
        peers_stats.column(ours, "wall"), peers_stats.column(other, "wall")
    )
    assert found is not None
    assert found.low < 0.97 < found.high and found.high < 0.98
    low, high = peers_stats.spread(peers_stats.column(ours, "wall"))
    assert low is not None and high is not None and high > 1.5 * low  # while the spread is wide


def test_rounds_that_one_sat_out_do_not_count():
    ours = [10.0, 11.0, 10.0, 12.0]
    found = peers_stats.paired_ratio(ours, [20.0, math.nan, 20.0, 24.0])
    assert found is not None and found.middle == found.low == found.high == 0.5
    assert peers_stats.paired_ratio(ours, [20.0, math.nan, 20.0, math.nan]) is None
    assert peers_stats.column([(5.0, 4.0), (-1.0, -1.0)], "cpu")[0] == 4.0
    assert math.isnan(peers_stats.column([(-1.0, -1.0)], "wall")[0])


def test_what_differs_between_two_launches_is_part_of_the_interval():
    """Ten rounds in each of five launches, steady within, ±4 % between them."""
    draw = np.random.default_rng(1)
    other = draw.normal(100.0, 0.1, 50)
    ours = other * np.repeat([0.96, 1.04, 1.0, 0.98, 1.02], 10)
    alike = peers_stats.paired_ratio(ours, other)
    launched = peers_stats.paired_ratio(ours, other, launches=5)
    assert alike.middle == launched.middle == pytest.approx(1.0, abs=0.001)
    assert launched.low <= 0.98 and launched.high >= 1.02
    assert launched.high - launched.low > 1.3 * (alike.high - alike.low)
    # 7 rounds in 2 launches are 4 and 3: the launches differ, and nothing within them does.
    uneven = peers_stats.paired_ratio([1.0] * 4 + [2.0] * 3, [1.0] * 7, launches=2)
    assert (uneven.low, uneven.middle, uneven.high) == (1.0, 1.0, 2.0)


def test_the_clock_follows_threads_and_load():
    assert peers_stats.pick_clock("auto", 1, 0.8) == "cpu"
    assert peers_stats.pick_clock("auto", 1, 0.02) == "wall"
    assert peers_stats.pick_clock("auto", 2, 0.8) == "wall"
    assert peers_stats.pick_clock("wall", 1, 0.8) == "wall"


def test_the_best_other_has_right_numbers_and_an_allowed_precision():
    samples = {
        "collage": rounds(90.0, seed=1),
        "quick": rounds(50.0, seed=2),
        "wrong": rounds(10.0, seed=3),
        "plain": rounds(100.0, seed=4),
    }
    times = [
        PeerTime(name="collage"),
        PeerTime(name="quick", precision="bf16"),
        PeerTime(name="wrong", reason="wrong numbers"),
        PeerTime(name="plain"),
    ]
    assert peers_stats.best_other(times, samples, "wall", ("float32",)) == "plain"
    assert peers_stats.best_other(times, samples, "wall", ("float32", "bf16")) == "quick"
    assert peers_stats.best_other(times[:1], samples, "wall", ("float32",)) is None


def test_an_entry_is_judged_against_the_best_other():
    found = entry(
        collage=rounds(90.0, seed=1), openvino=rounds(100.0, seed=2), torch=rounds(200.0, seed=3)
    )
    assert found.best_other == "openvino"
    assert found.slowdown == pytest.approx(-0.1, abs=0.01)
    assert found.slowdown_low is not None and found.slowdown_high is not None
    assert found.slowdown_low < found.slowdown < found.slowdown_high < -0.08
    assert found.speedup is None


def test_lower_precision_is_compared_twice():
    samples = {
        "collage": rounds(50.0, seed=1),
        "openvino": rounds(100.0, seed=2),
        "openvino bf16": rounds(52.0, seed=3),
    }
    times = tuple(
        peers.timed(PeerTime(name=n, precision="bf16" if n != "openvino" else "float32"), s, "wall")
        for n, s in samples.items()
    )
    found = peers.judged(
        PeerEntry(model="net", threads=1, precision="bf16", peers=times, samples=samples)
    )
    assert (found.best_other, found.best_float32) == ("openvino bf16", "openvino")
    assert found.slowdown == pytest.approx(-0.04, abs=0.01)
    assert found.speedup == pytest.approx(2.0, abs=0.03)
    assert any("×2.0" in line for line in report.verdicts([found]))


@pytest.fixture
def result() -> PeersResult:
    missing = PeerTime(name="tvm alone", reason="cannot take conv3d")
    faster = entry("fast", collage=rounds(90.0, seed=1), openvino=rounds(100.0, seed=2))
    slower = entry("slow", collage=rounds(105.0, seed=3), openvino=rounds(100.0, seed=4))
    slower = msgspec.structs.replace(slower, peers=(*slower.peers, missing))
    return PeersResult(machine="a machine", cores=2, versions={"x": "1"}, entries=(faster, slower))


def test_verdicts_name_who_misses_the_bar(result):
    ((heading, entries),) = report.groups(result)
    assert heading == "1 thread, float32"
    first, second = report.verdicts(entries)
    assert "1 of 2; not on slow +5." in first
    assert "1 of 2 (fast −1" in second or "1 of 2 (fast −9" in second
    assert report.notes(entries) == ["tvm alone on slow: cannot take conv3d"]
    assert report.verdicts([PeerEntry(model="x", threads=1)]) == [
        "nothing to compare with: no other runtime has a time"
    ]


def test_the_table_has_every_runtime_and_the_additive_error(result):
    head, rows = report.table(result.entries)
    assert head[:4] == ["model", "collage", "openvino", "tvm alone"]
    assert all(len(row) == len(head) for row in rows)
    assert rows[0][3] == "–" and rows[0][1].startswith("0.09")
    assert rows[0][head.index("additive error")] == "+3.0 %"
    assert rows[0][head.index("placed on")] == "onednn 2, tvm 1"
    text = peers_table.markdown(result)
    assert "a machine, 2 cores; x 1" in text and text.count("| fast |") == 1


def test_results_survive_their_file_and_others_are_refused(result, tmp_path: Path):
    path = tmp_path / "r.json"
    peers.save(path, result)
    assert peers_table.read_peers(path) == result
    path.write_text('{"entries": 3}')
    with pytest.raises(UsageError, match=r"r\.json is no results file"):
        peers_table.read_peers(path)
    with pytest.raises(UsageError, match="No such file"):
        peers_table.read_peers(tmp_path / "absent.json")
