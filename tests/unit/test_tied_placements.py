"""What the rounds cannot tell from the chosen placement is said to be as fast, not slower."""

from __future__ import annotations

from typing import Any

from collage_engine.cli.print_run import print_run
from collage_engine.drawing.baselines import baseline_title
from collage_engine.drawing.latencies import latency_rows
from collage_engine.records.placement import Baseline, CandidateCounts, Placement, Run
from collage_engine.run.run_document import tied_with_winner
from collage_engine.trials.confirmation import Confirmation
from collage_engine.trials.contender import (
    Contender,
    ContenderKind,
    ContenderResult,
)
from collage_engine.trials.ranking import Difference
from tests.support.scripted_workers import cover


def result(name: str, kind: ContenderKind) -> ContenderResult:
    return ContenderResult(contender=Contender(name=name, kind=kind, cover=cover(name)))


def test_only_intervals_around_nought_are_ties() -> None:
    results = [
        result("collage", "collage"),
        result("collage 2", "collage"),
        result("tvm", "whole-model"),
        result("openvino", "whole-model"),
        result("onednn", "whole-model"),
    ]
    differences = {
        "collage 2": Difference(us=0.0, low_us=-1.0, high_us=1.0, coverage=0.96, rounds=9),
        "tvm": Difference(us=0.4, low_us=-0.1, high_us=1.0, coverage=0.96, rounds=9),
        "openvino": Difference(us=-9.0, low_us=-11.0, high_us=-8.0, coverage=0.96, rounds=9),
    }

    def confirmation(winner: ContenderResult, apart: dict[str, Difference]) -> Confirmation:
        return Confirmation(
            results=tuple(results),
            winner=winner,
            named=winner.contender.name,
            tied=(),
            differences=apart,
            in_place_us=(),
            residual=(),
        )

    first = confirmation(results[0], differences)
    assert tied_with_winner(first) == ["tvm"], "runners-up of our own are no baselines"
    against = differences | {
        "collage": Difference(us=-0.1, low_us=-1.0, high_us=1.0, coverage=0.96, rounds=9)
    }
    other = confirmation(results[3], against)
    assert tied_with_winner(other) == ["collage", "tvm"]


def test_a_difference_counts_only_where_both_sets_of_rounds_tell_it() -> None:
    slower = Difference(us=-3.0, low_us=-4.0, high_us=-2.0, coverage=0.96, rounds=9)
    little = Difference(us=-0.9, low_us=-1.0, high_us=-0.8, coverage=0.96, rounds=9)
    fast = ContenderResult(
        contender=Contender(name="collage", kind="collage", cover=cover("collage")),
        rounds_us=(100.0, 100.0, 100.0),
    )

    def tied(apart: Difference, *selection: str) -> list[str]:
        confirmation = Confirmation(
            results=(fast, result("tvm", "whole-model")),
            winner=fast,
            named="collage",
            tied=selection,
            differences={"tvm": apart},
            in_place_us=(),
            residual=(),
        )
        return tied_with_winner(confirmation)

    assert tied(slower) == []
    assert tied(slower, "tvm") == ["tvm"], "the rounds that chose the winner could not tell"
    assert tied(little) == ["tvm"], "equal modules in different processes differ by as much"


def test_no_tie_is_told_beside_a_large_difference() -> None:
    fast = ContenderResult(
        contender=Contender(name="collage", kind="collage", cover=cover("collage")),
        rounds_us=(100.0, 100.0, 100.0),
    )
    slow = Contender(name="tvm", kind="whole-model", cover=cover("tvm"))
    scattered = Difference(us=-2.0, low_us=-60.0, high_us=20.0, coverage=0.96, rounds=9)

    def tied(us: float) -> list[str]:
        confirmation = Confirmation(
            results=(fast, ContenderResult(contender=slow, rounds_us=(us, us, us))),
            winner=fast,
            named="collage",
            tied=("tvm",),
            differences={"tvm": scattered},
            in_place_us=(),
            residual=(),
        )
        return tied_with_winner(confirmation)

    assert tied(103.0) == ["tvm"]
    assert tied(80.0) == ["tvm"], "the winner is not shown as slower than what it beat"
    assert tied(116.6) == [], "the rounds scatter, but the times that are shown are far apart"


def test_who_shares_the_module_of_a_tied_contender_is_tied_too() -> None:
    shared = Contender(name="collage", kind="collage", cover=cover("tvm"))
    other = result("onednn", "whole-model")
    even = Difference(us=0.0, low_us=-1.0, high_us=1.0, coverage=0.96, rounds=9)
    confirmation = Confirmation(
        results=(ContenderResult(contender=shared), result("tvm", "whole-model"), other),
        winner=other,
        named="onednn",
        tied=(),
        differences={"collage": even},  # both were timed in one process
        in_place_us=(),
        residual=(),
    )
    assert tied_with_winner(confirmation) == ["collage", "tvm"]


def test_the_best_cover_is_the_first_that_is_another_module_than_the_winner() -> None:
    winner = result("tvm", "whole-model")
    same = Contender(name="collage", kind="collage", cover=cover("tvm"))
    second = result("collage 2", "collage")
    even = Difference(us=0.0, low_us=-1.0, high_us=1.0, coverage=0.96, rounds=9)
    confirmation = Confirmation(
        results=(ContenderResult(contender=same), second, winner),
        winner=winner,
        named="tvm",
        tied=(),
        differences={"collage 2": even},
        in_place_us=(),
        residual=(),
    )
    assert tied_with_winner(confirmation) == ["collage"]


def test_an_artifact_that_is_shown_under_no_name_may_tie() -> None:
    """The module of what is timed in its Python session has rounds, and no row unless it wins."""
    fast = ContenderResult(
        contender=Contender(name="collage", kind="collage", cover=cover("collage")),
        rounds_us=(100.0, 100.0, 100.0),
    )
    scattered = Difference(us=-2.0, low_us=-6.0, high_us=2.0, coverage=0.96, rounds=9)
    session = Contender(name="ort", kind="whole-model", cover=cover("ort"), python_session=True)
    confirmation = Confirmation(
        results=(fast, ContenderResult(contender=session, rounds_us=(103.0, 103.0, 103.0))),
        winner=fast,
        named="collage",
        tied=(),
        differences={"ort": scattered, "ort (artifact)": scattered},
        in_place_us=(),
        residual=(),
    )
    assert tied_with_winner(confirmation) == ["ort"]


def a_run(**fields: Any) -> Run:
    run = Run(
        id="r1",
        name="",
        model={"nodes": 3},
        target="cpu",
        threads=1,
        toolchains=[],
        candidates=CandidateCounts(),
        winner="collage",
        pins=[],
        max_abs_error=None,
        placement=Placement(partitions=(), estimated_us=90.0, measured_us=100.0),
        max_rel_error=None,
        seconds={},
        baselines=[
            Baseline(name="tvm", kind="whole-model", measured_us=99.0),
            Baseline(name="onednn", kind="whole-model", measured_us=150.0),
        ],
    )
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def test_rows_and_the_command_line_mark_them(capsys: Any) -> None:
    tied = a_run(tied=["tvm"])
    assert {row.name: row.tied for row in latency_rows(tied)} == {
        "Collage": False,
        baseline_title(tied.baselines[0]): True,
        baseline_title(tied.baselines[1]): False,
    }
    print_run(tied)
    said = capsys.readouterr().out
    (line,) = [line for line in said.splitlines() if "99.0" in line]
    assert line.lstrip().startswith("=") and "= is as fast as →" in said
    print_run(a_run())
    assert "as far as these rounds can tell" not in capsys.readouterr().out
