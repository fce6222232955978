"""Objectives other than latency: what is timed, what is chosen, and what is said of it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from collage_engine.farm import several_runs
from collage_engine.farm.several_runs import (
    MOST_WAYS,
    best_way,
    deployment_row,
    rates_in_turn,
    ways,
)
from collage_engine.machine.loader.run_artifact import Pool
from collage_engine.records.placement import Baseline, Placement
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import ArtifactError, ToolchainError
from collage_engine.trials.objective import confirming_settings, trial_settings
from collage_engine.wording.latencies import deployment_cells, objective_sentences
from collage_engine.wording.titles import toolchain_title
from tests.support.runs import run_record


def test_of_many_divisors_the_extreme_ones_are_tried():
    found = ways(64)
    assert len(found) == MOST_WAYS and found[0] == (64, 1) and found[-1] == (1, 64)
    assert all(streams * threads == 64 for streams, threads in found)


def test_confirmation_runs_contenders_as_they_are_deployed():
    many = RunSettings(objective="throughput", streams=3)
    assert confirming_settings(many).streams == 3
    assert confirming_settings(many).spin is False
    assert trial_settings(many).streams == 0 and trial_settings(many).spin is False
    tail = confirming_settings(RunSettings(objective="p99"))
    assert tail.tail and tail.streams == 0
    assert confirming_settings(RunSettings()) == trial_settings(RunSettings())


def test_an_instance_that_fails_ends_what_all_do_at_once():
    def work(number):
        if number == 1:
            raise ValueError("the second instance fails")

    with closing(Pool(lambda number: number, 3, 1)) as pool:
        with pytest.raises(ValueError, match="the second instance fails"):
            pool.at_once(work)
        assert sorted(pool.at_once(lambda number: number)) == [0, 1, 2]


def placed(us: float | None, objective: str = "throughput", streams: int = 1):
    return run_record(
        threads=2,
        placement=Placement(partitions=(), estimated_us=None, measured_us=us),
        baselines=[
            Baseline(name="onnxruntime", kind="whole-model", measured_us=40.0),
            Baseline(name="tvm", kind="whole-model", measured_us=30.0, barred="--max-runtimes"),
        ],
        objective=objective,
        streams=streams,
    )


def turns(monkeypatch: pytest.MonkeyPatch, rates: dict[int, list[float]]) -> list[Path]:
    """Have the artifact in folder k run at these rates, turn by turn."""
    left = {Path(str(k)): list(each) for k, each in rates.items()}

    def run(folder: Path, **_: object) -> dict[str, float]:
        if not left[folder]:
            raise ArtifactError("it hangs")
        return {"runs_per_s": left[folder].pop(0)}

    monkeypatch.setattr(several_runs, "run_artifact", run)
    return list(left)


def test_the_way_that_is_fastest_in_common_turns_is_chosen(monkeypatch):
    runs = [placed(20.0), placed(10.0), placed(1.0, "latency")]
    # The second run had a good minute of its own; in common turns it is the slower one.
    folders = turns(monkeypatch, {0: [100.0, 60.0, 61.0], 1: [98.0, 57.0, 60.0]})
    shares = rates_in_turn(runs, folders)
    assert set(shares) == {0, 1} and shares[0] / shares[1] == pytest.approx(1.02, abs=0.005)
    assert best_way(runs, shares) == 0


def test_where_no_turns_can_be_taken_the_times_of_the_runs_decide(monkeypatch):
    runs = [placed(20.0), placed(10.0)]
    folders = turns(monkeypatch, {0: [100.0, 100.0, 100.0], 1: [50.0]})
    assert rates_in_turn(runs, folders) == {} and best_way(runs, {}) == 1
    assert rates_in_turn([placed(20.0), placed(None)], folders) == {}
    assert best_way([placed(20.0), placed(None)], {}) == 0
    # What was only tried as a single instance counts where nothing was timed as deployed.
    assert best_way([placed(20.0), placed(10.0, "latency")], {}) == 0
    assert best_way([placed(10.0, "latency"), placed(9.0, "latency")], {}) == 1
    with pytest.raises(ToolchainError):
        best_way([placed(None)], {})


def test_a_row_says_items_per_second_beside_the_best_toolchain_that_may_be_deployed():
    run = placed(20.0, streams=4)
    row = deployment_row(run, items=2)
    assert row.items_per_s == 100_000 and row.best_single == "onnxruntime"
    assert row.best_single_items_per_s == 50_000
    cells = deployment_cells(row)
    alone = f"{toolchain_title('onnxruntime')}, 50,000"
    assert [*cells.values()] == ["4", "2", "100,000", "–", alone, "−50.0 %"]
    (said,) = objective_sentences(run)
    assert "4 instances at once with 2 threads each" in said and "50,000 runs per second" in said
    assert objective_sentences(placed(20.0, "latency")) == []
    assert "99th percentiles" in objective_sentences(placed(20.0, "p99"))[0]
