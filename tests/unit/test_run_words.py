"""What the rounds cannot tell from the chosen placement is said to be as fast, not slower.

Rows of placements side by side, and sessions that go on.

What is to be known of a run beside its times, and what differs between two.

Rates of partitions, and what memory they take: counted or measured, never invented.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from collage_engine.records.graph import GraphRecord
from collage_engine.records.pin import PinVerdict
from collage_engine.records.placement import (
    Baseline,
    LayerTime,
    MemorySeen,
    MemoryUse,
    Placement,
    Run,
)
from collage_engine.records.settings import RunSettings
from collage_engine.run.run_document import tied_with_winner
from collage_engine.support.errors import UsageError
from collage_engine.trials.baselines import check_placements
from collage_engine.trials.contender import (
    Contender,
    ContenderKind,
    ContenderResult,
)
from collage_engine.trials.standings import RaceResult
from collage_engine.wording import titles
from collage_engine.wording.facts import changed_facts, run_facts
from collage_engine.wording.figures import (
    answer_text,
    difference,
)
from collage_engine.wording.layers import partition_figures
from tests.support.graphs import GraphBuilder, operator, record_of
from tests.support.runs import partition, run_record
from tests.support.scripted_workers import cover


def result(name: str, kind: ContenderKind) -> ContenderResult:
    return ContenderResult(contender=Contender(name=name, kind=kind, cover=cover(name)))


def test_ties_are_told_by_the_names_of_the_faces() -> None:
    results = (
        result("collage", "collage"),
        result("collage", "collage"),
        result("tvm", "whole-model"),
        result("openvino", "whole-model"),
    )
    tied = ("collage", "collage", "tvm")
    baseline = RaceResult(results=results, winner=results[3], tied=tied)
    assert tied_with_winner(baseline) == ["collage", "tvm"]
    ours = RaceResult(results=results, winner=results[0], tied=("collage", "tvm"))
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


GRAPH = record_of(operator(0, "add", onnx_nodes=("sum",)))


@pytest.fixture(autouse=True)
def no_titles_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Toolchains have no titles here, whatever other tests taught the palette."""
    monkeypatch.setattr(titles, "_learned", {})


def test_a_users_placement_is_checked_before_anything_is_measured():
    def check(placement: dict[str, str]) -> None:
        check_placements(GRAPH, ["gone"], RunSettings(placements=(placement,)), ["tvm"])

    check({"SUM": "tvm[tuned=yes]", "gone": "tvm"})
    with pytest.raises(UsageError, match="no node 'sun'"):
        check({"sun": "tvm"})
    with pytest.raises(UsageError, match="'sum' is put on 'tvn', which is no toolchain"):
        check({"sum": "tvn"})


RUN = run_record(
    pins=[PinVerdict(pin="conv*=onednn", state="honoured", price_us=2.0)],
    pins_us=3.0,
    memory=MemoryUse(
        seen=MemorySeen(), weights_bytes=1024, artifact_bytes=5 << 20, library_bytes=4 << 20
    ),
)


def test_two_runs_side_by_side() -> None:
    assert RUN.memory is not None
    other = msgspec.structs.replace(
        RUN, pins=[], pins_us=None, memory=msgspec.structs.replace(RUN.memory, weights_bytes=2048)
    )
    rows = {
        (fact.group, fact.name): (old, new)
        for fact, old, new in changed_facts(run_facts(other), run_facts(RUN))
    }
    assert rows["Pins", "conv*=onednn"] == (None, "honoured, +2.00 µs")
    assert rows["Pins", "all together"] == (None, "+3.00 µs")
    assert rows["Memory", "the model's weights"] == ("2.00 KiB", "1.00 KiB")
    assert rows["Memory", "artifact"][0] == rows["Memory", "artifact"][1]
    groups = [group for group, _ in rows]
    assert groups == sorted(groups, key=groups.index), "a group's facts stay together"


def part(name: str, nodes: tuple[int, ...], us: float | None, last_us: float | None = None):
    toolchain = "tvm" if nodes[0] == 0 else "onednn"
    return partition(*nodes, id=name, toolchain=toolchain, us=us, in_place_us=last_us)


def network() -> GraphRecord:
    """Return two products with weights, and one of two values and a weight."""
    b = GraphBuilder((1, 10))
    x, weight = b.parameter(), b.constant((10, 20))
    first = b.call("matmul", x, weight, shape=(1, 20))
    second = b.call("matmul", first, b.constant((20, 10)))
    return b.build(b.call("concat", second, x, weight)).record


def test_rates_are_by_the_time_of_the_last_run_and_bytes_by_the_types_of_values() -> None:
    placement = Placement(
        partitions=(part("p0", (0, 1), 4.0, 2.0), part("p1", (2,), None)),
        estimated_us=None,
        layers=(LayerTime(name="matmul", us=2.0, partition=0, operators=(0, 1)),),
    )
    # Two products: 2·20·10 and 2·10·20 operations; inputs 40, weights 2·800, output 40 bytes.
    first, second = partition_figures(network(), placement)
    assert first.us == 2.0, "the last run rather than the expectation"
    assert first.gflops == 0.4 and first.gigabytes_per_s == 0.84
    assert second.gflops is None and second.gigabytes_per_s is None
    assert first.weights == 2 * 800 and first.inputs == 40
    assert first.outputs == 40 and first.inside == 80
    assert second.weights == 800, "a weight that two partitions read counts in both"
    assert second.inputs == 80, "the second product, and the input of the model"
    assert second.outputs == 40 and second.inside == 0
