"""Rows of placements side by side, and sessions that go on."""

from __future__ import annotations

import pytest

from collage_engine.records.placement import Baseline, Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.support.errors import UsageError
from collage_engine.trials.baselines import check_placements
from collage_engine.wording import titles
from collage_engine.wording.figures import verdict_sentence
from tests.support.graphs import operator, record_of
from tests.support.runs import partition, run_record

GRAPH = record_of(operator(0, "add", onnx_nodes=("sum",)))


@pytest.fixture(autouse=True)
def no_titles_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolchains have no titles here, whatever other tests taught the palette."""
    monkeypatch.setattr(titles, "_learned", {})


def run(winner: str, measured: float) -> Run:
    return run_record(
        placement=Placement(partitions=(), estimated_us=1.0, measured_us=measured),
        baselines=[
            Baseline(name="onnxruntime", kind="whole-model", measured_us=12.0),
            Baseline(name="greedy a → b", kind="greedy", measured_us=9.0),
            Baseline(name="onednn", kind="whole-model", reason="cannot"),
        ],
        winner=winner,
        rivals=[Placement(partitions=(partition(0, us=1.0),), estimated_us=1.0, measured_us=9.0)],
    )


@pytest.mark.parametrize(
    ("winner", "says"),
    [
        (
            "collage",
            "Collage's placement takes 8.00 µs, −33.3 % against onnxruntime only (12.0 µs).",
        ),
        (
            "onnxruntime",
            "onnxruntime only is exported: it takes 8.00 µs. The best placement of the search "
            "(1 partition, onednn) takes 9.00 µs, +12.5 % against onnxruntime only.",
        ),
        ("greedy a → b", "greedy a → b is exported: it takes 8.00 µs."),
    ],
)
def test_the_report_begins_with_what_won(winner: str, says: str) -> None:
    """A greedy baseline is mixed itself, and its kind is not said twice."""
    assert says in verdict_sentence(run(winner, 8.0))


def test_a_users_placement_is_checked_before_anything_is_measured():
    def check(placement: dict[str, str]) -> None:
        check_placements(GRAPH, ["gone"], RunSettings(placements=(placement,)), ["tvm"])

    check({"SUM": "tvm[tuned=yes]", "gone": "tvm"})
    with pytest.raises(UsageError, match="no node 'sun'"):
        check({"sun": "tvm"})
    with pytest.raises(UsageError, match="'sum' is put on 'tvn', which is no toolchain"):
        check({"sum": "tvn"})
