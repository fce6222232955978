"""What the rounds cannot tell from the chosen placement is said to be as fast, not slower."""

from __future__ import annotations

from typing import Any

import msgspec

from collage_engine.cli.print_run import print_run
from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.run.run_document import tied_with_winner
from collage_engine.trials.contender import (
    Contender,
    ContenderKind,
    ContenderResult,
)
from collage_engine.trials.standings import RaceResult
from collage_engine.wording.figures import (
    answer_text,
    bound_text,
    difference,
    estimate_text,
    partition_us,
    untimed_text,
)
from collage_engine.wording.latencies import latency_rows
from collage_engine.wording.sentences import NO_TURN
from collage_engine.wording.titles import baseline_title, toolchain_title
from tests.support.runs import partition, run_record
from tests.support.scripted_workers import cover


def result(name: str, kind: ContenderKind) -> ContenderResult:
    return ContenderResult(contender=Contender(name=name, kind=kind, cover=cover(name)))


def test_ties_are_told_by_the_names_of_the_faces() -> None:
    results = (
        result("collage", "collage"),
        result("collage 2", "collage"),
        result("tvm", "whole-model"),
        result("openvino", "whole-model"),
    )
    tied = ("collage", "collage 2", "tvm")
    baseline = RaceResult(results=results, winner=results[3], tied=tied)
    assert tied_with_winner(baseline) == ["collage", "tvm"]
    ours = RaceResult(results=results, winner=results[0], tied=("collage 2", "tvm"))
    assert tied_with_winner(ours) == ["tvm"], "runners-up of our own are no baselines"


def a_run(**fields: Any) -> Run:
    return run_record(
        model={"nodes": 3},
        placement=Placement(partitions=(), estimated_us=90.0, measured_us=100.0),
        baselines=[
            Baseline(name="tvm", kind="whole-model", measured_us=99.0),
            Baseline(name="onednn", kind="whole-model", measured_us=150.0),
        ],
        **fields,
    )


def test_rows_and_the_command_line_mark_them(capsys: Any) -> None:
    tied = a_run(tied=["tvm"])
    assert {row.name: row.tied for row in latency_rows(tied)} == {
        "Collage": False,
        baseline_title(tied.baselines[0]): True,
        baseline_title(tied.baselines[1]): False,
    }
    print_run(tied)
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "99.0" in line and "whole" in line]
    assert line.lstrip().startswith("=") and "= is as fast as →" in said
    print_run(a_run())
    assert "is as fast as →" not in capsys.readouterr().out


def test_common_rounds_decide_however_far_apart_single_rounds_lie() -> None:
    run = a_run()
    assert run.placement is not None
    for spread_us in ((99.0, 101.0), (95.0, 900.0)):
        run.placement = msgspec.structs.replace(run.placement, spread_us=spread_us)
        for tied, decided in (([], True), (["tvm"], False)):
            run.tied = tied
            found = difference(run.placement, run, run.baselines[0])
            assert found is not None and found.is_decided is decided
            assert ("not decided" in answer_text(run.placement, run)) is not decided
        run.tied = []
        other = msgspec.structs.replace(run.placement)  # of another run, never beside the baselines
        found = difference(other, run, run.baselines[0])
        assert found is not None and found.text == "not timed together"


def test_the_answer_names_what_runs_and_how_few_had_their_turn() -> None:
    late = [
        Baseline(name=name, kind="whole-model", reason=NO_TURN)
        for name in ("tvm", "openvino", "onnxruntime", "openblas")
    ]
    own = Baseline(name="onednn", kind="whole-model", measured_us=29.5, candidates=("whole",))
    whole = Placement(
        partitions=(partition(0, candidate="whole", us=22.8),),
        estimated_us=26.6,
        measured_us=29.5,
        additive_error_us=2.9,
    )
    run = run_record(placement=whole, baselines=[own, *late], winner="onednn", lower_bound_us=24.6)
    told = answer_text(whole, run)
    title, tvm = toolchain_title("onednn"), toolchain_title("tvm")
    assert told == f"{title}, 29.5 µs · the only one of 5 toolchains that was timed"
    before = run_record(baselines=[Baseline(name="tvm", kind="whole-model", measured_us=24.6)])
    assert answer_text(whole, run, [before]) == f"{told}; {tvm} took 24.6 µs in another run"
    assert untimed_text(run_record(placement=whole, baselines=[own])) == ""
    # One partition has one figure: neither an estimate nor a bound below it is told.
    assert partition_us(whole, whole.partitions[0]) == 29.5
    assert estimate_text(whole) == bound_text(run) == ""
    run.lower_bound_us = 26.6
    assert bound_text(run) == "the best by these costs (proved)"


def test_a_quick_run_is_compared_with_what_it_timed_of_the_run_before() -> None:
    mix = Placement(
        partitions=(partition(0, candidate="a", toolchain="tvm"),),
        estimated_us=12.0,
        measured_us=12.0,
    )
    own = Baseline(name="onednn", kind="whole-model", measured_us=16.0, candidates=("whole",))
    whole = Placement(
        partitions=(partition(0, candidate="whole"),), estimated_us=16.0, measured_us=16.0
    )
    run = run_record(placement=whole, baselines=[own], winner="onednn", rivals=[mix])
    tvm = toolchain_title("tvm")
    assert answer_text(whole, run).endswith(f"16.0 µs · 33.3 % slower than {tvm} (12.0 µs)")
    run.tied = ["collage"]
    assert answer_text(whole, run).endswith(f"{tvm} (12.0 µs): not decided on this machine now")
