"""Searching again on a document's costs: what pins get where candidates were left unmeasured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.document_search import search_document
from collage_engine.planning.explanation import explain_document
from collage_engine.records.candidate import CandidateRecord, Cost, Refusal
from collage_engine.records.graph import ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import (
    Baseline,
    Placement,
    Run,
)
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState
from collage_engine.store.document import Document
from collage_engine.wording.sentences import NOT_MEASURED
from tests.support.candidates import row
from tests.support.graphs import chain
from tests.support.runs import partition, run_record

GRAPH = chain("nn.relu", "nn.relu")


def candidate(nodes: tuple[int, ...], cost: Cost, toolchain: str = "onednn") -> CandidateRecord:
    made = make_candidate(GRAPH, ToolchainInstance(toolchain=toolchain), nodes, rule="region")
    return row(made, cost)


def document(*candidates: CandidateRecord, pins: Sequence[Pin] = ()) -> Document:
    model = ModelRecord(path="m.onnx", sha256="00", nodes=2)
    return Document(model=model, graph=GRAPH.record, candidates=list(candidates), pins=list(pins))


MEASURED = Cost(state="measured", median_us=3.0, low_us=2.9, high_us=3.1)
FIRST_ALONE = Pin(kind="exactly", nodes=(0,), text="relu1=exactly")


def test_a_pin_on_what_was_left_unmeasured_asks_for_another_run():
    each = [candidate((0,), Cost()), candidate((1,), MEASURED), candidate((0, 1), MEASURED)]
    found, _ = search_document(document(*each, pins=[FIRST_ALONE]), RunSettings())
    assert found.placement is None and found.infeasible is not None
    assert found.infeasible["reason"] == NOT_MEASURED
    assert (found.verdicts[0].state, found.verdicts[0].reason) == ("pending", NOT_MEASURED)


def test_a_pin_that_nothing_can_honour_stays_infeasible():
    other = [candidate((0, 1), MEASURED), candidate((1,), Cost())]
    found, _ = search_document(document(*other, pins=[FIRST_ALONE]), RunSettings())
    assert found.infeasible is not None and found.infeasible["reason"] != NOT_MEASURED
    assert found.verdicts[0].state == "infeasible"


def test_what_was_searched_answers_until_costs_pins_or_settings_change():
    each = [candidate((0,), MEASURED), candidate((1,), MEASURED)]
    together = candidate((0, 1), Cost(state="measured", median_us=4.0, low_us=3.9, high_us=4.1))
    opened = document(together, *each)
    told, first = explain_document(opened, 0)
    assert told.chosen == together.id
    other, again = explain_document(opened, 1, first)
    assert again is first, "another node is another question about the same search"
    assert other == explain_document(opened, 1)[0]
    assert search_document(opened, opened.settings, first)[1] is first
    opened.pins = [FIRST_ALONE]
    told, pinned = explain_document(opened, 0, first)
    assert told.chosen == each[0].id and pinned.search is first.search
    opened.pins = []
    faster = Cost(state="measured", median_us=1.0, low_us=0.9, high_us=1.1)
    opened.candidates = [together, *(msgspec.structs.replace(c, cost=faster) for c in each)]
    told, costed = explain_document(opened, 0, pinned)
    assert told.chosen == each[0].id and costed.search is not first.search
    limited = msgspec.structs.replace(opened.settings, toolchains=("tvm",))
    found, _ = search_document(opened, limited, costed)
    assert found.infeasible is not None, "oneDNN's candidates do not take part"


def test_a_pinned_node_has_the_prices_of_other_pins_in_that_ones_place():
    each = [candidate((0,), MEASURED), candidate((1,), MEASURED)]
    together = candidate((0, 1), Cost(state="measured", median_us=4.0, low_us=3.9, high_us=4.1))
    slow = Cost(state="measured", median_us=5.0, low_us=4.9, high_us=5.1)
    other = [candidate((0,), slow, "tvm"), candidate((1,), slow, "tvm")]
    on_tvm = Pin(kind="on", nodes=(0,), toolchain="tvm", text="relu1=tvm")
    opened = document(together, *each, *other, pins=[on_tvm])
    told, _ = explain_document(opened, 0)
    assert told.prices[together.id].us is None, "the pin rules it out"
    assert told.prices_instead == {other[0].id: 0.0, each[0].id: -2.0, together.id: -4.0}
    assert explain_document(opened, 1)[0].prices_instead == {}, "the pin is not on this node"
    opened.pins = [Pin(kind="on", nodes=(0, 1), toolchain="tvm", text="relu*=tvm")]
    told, _ = explain_document(opened, 0)
    assert told.prices_instead == {other[0].id: 0.0, each[0].id: -2.0}, "node 1 stays pinned"
    opened.pins = [FIRST_ALONE]
    assert explain_document(opened, 0)[0].prices_instead == {}, "such a pin stays beside another"


def placement(*parts: CandidateRecord, measured_us: float | None) -> Placement:
    known = [c.cost.median_us for c in parts]
    return Placement(
        partitions=tuple(
            partition(
                *c.nodes,
                id=f"p{place}",
                candidate=c.id,
                toolchain=c.instance.toolchain,
                us=c.cost.median_us,
            )
            for place, c in enumerate(parts)
        ),
        estimated_us=sum(us for us in known if us is not None) if None not in known else None,
        measured_us=measured_us,
    )


def run(name: str, shown: Placement, *baselines: Baseline, **more: Any) -> Run:
    return run_record(
        id=name,
        placement=shown,
        baselines=list(baselines),
        max_abs_error=0.0,
        max_rel_error=0.0,
        **more,
    )


def cost(us: float) -> Cost:
    return Cost(state="measured", median_us=us, low_us=us, high_us=us)


def a_mix_that_won() -> tuple[Document, dict[str, CandidateRecord]]:
    """A document whose exported mix the search does not know: it was timed as a whole only."""
    parts = {
        "first": candidate((0,), Cost(), "tvm"),
        "second": candidate((1,), Cost(), "openblas"),
        "whole": candidate((0, 1), cost(49.7), "openvino"),
        "tvm": candidate((0, 1), cost(25.2), "tvm"),
    }
    alone = Baseline(
        name="tvm", kind="whole-model", measured_us=25.2, candidates=(parts["tvm"].id,)
    )
    slow = Baseline(
        name="openvino", kind="whole-model", measured_us=32.7, candidates=(parts["whole"].id,)
    )
    mix = placement(parts["first"], parts["second"], measured_us=7.68)
    opened = document(*parts.values())
    opened.runs = [run("r1", mix, alone, slow)]
    opened.toolchains = [
        ToolchainState(name=name, available=True, title=title)
        for name, title in (("tvm", "TVM"), ("openblas", "OpenBLAS"), ("openvino", "OpenVINO"))
    ]
    return opened, parts


def test_a_pin_costs_the_difference_of_what_was_measured():
    opened, parts = a_mix_that_won()
    opened.pins = [Pin(kind="on", nodes=(1,), toolchain="openvino", text="relu2=openvino")]
    found, _ = search_document(opened, RunSettings())
    assert found.placement is not None and found.placement.measured_us == 32.7
    assert found.verdicts[0].price_us == pytest.approx(32.7 - 7.68)
    confirmed = placement(parts["whole"], measured_us=33.5)
    opened.runs.append(run("r2", confirmed, pins=list(found.verdicts)))
    found, _ = search_document(opened, RunSettings(), None, confirmed)
    as_it_were = 7.68 * 33.5 / 32.7  # the machine was slower in the second run
    assert found.verdicts[0].price_us == pytest.approx(33.5 - as_it_were)
    opened.pins = [Pin(kind="on", nodes=(1,), toolchain="openblas", text="relu2=openblas")]
    found, _ = search_document(opened, RunSettings())
    assert found.placement is opened.runs[0].placement, "nothing else is known to keep the pin"
    assert (found.verdicts[0].state, found.verdicts[0].price_us) == ("honoured", 0.0)


def test_what_was_not_measured_is_compared_at_the_scale_of_what_was():
    """What the search expects is too little by as much everywhere: no choice gains by that."""
    each = [candidate((0,), cost(3.0)), candidate((1,), cost(3.0))]
    other = candidate((0,), cost(4.0), "tvm")
    opened = document(*each, other)
    opened.runs = [run("r1", placement(*each, measured_us=8.0))]
    found, _ = search_document(opened, RunSettings())
    assert found.placement is opened.runs[0].placement
    assert found.prices[other.id].us == pytest.approx(1.0)
    opened.pins = [Pin(kind="on", nodes=(0,), toolchain="tvm", text="relu1=tvm")]
    found, _ = search_document(opened, RunSettings())
    assert found.verdicts[0].price_us == pytest.approx(1.0), "7 µs are expected, 8 are measured"


def test_the_explanation_is_about_the_placement_that_is_shown():
    opened, parts = a_mix_that_won()
    told, search = explain_document(opened, 0)
    assert told.chosen == parts["first"].id and told.words[0].startswith("TVM runs ")
    assert told.prices[parts["whole"].id].us == pytest.approx(32.7 - 7.68)
    whole = placement(parts["whole"], measured_us=32.7)
    alone = Baseline(name="openvino", kind="whole-model", measured_us=32.7)
    opened.runs.append(run("r2", whole, alone, winner="openvino"))
    told, search = explain_document(opened, 0)
    assert told.chosen == parts["whole"].id, "by default it is the newest run's"
    assert told.words[0] == "Run 2 exports the baseline OpenVINO only."
    assert told.words[1].startswith("OpenVINO runs ")
    fused = Baseline(name="greedy tvm → openvino", kind="greedy", measured_us=32.7)
    opened.runs[1] = run("r2", whole, fused, winner=fused.name)
    told, search = explain_document(opened, 0)
    assert told.words[0] == "Run 2 exports the baseline greedy TVM → OpenVINO."
    told, _ = explain_document(opened, 0, search, opened.runs[0].placement)
    assert told.chosen == parts["first"].id and told.words[0].startswith("TVM runs ")
    assert not any("Run 2" in text for text in told.words)


@pytest.mark.parametrize(
    ("tied", "status"), [(["openvino"], ["tied", "slower"]), ([], ["slower", "slower"])]
)
def test_common_rounds_decide_what_ties_with_what_a_run_exports(tied, status):
    """However far single rounds lie apart, which a busy machine slows alike."""
    ours, near = candidate((0, 1), cost(8.0)), candidate((0, 1), cost(8.2), "openvino")
    far = candidate((0, 1), cost(20.0), "tvm")
    alone = Baseline(name="openvino", kind="whole-model", measured_us=8.2, candidates=(near.id,))
    opened = document(ours, near, far)
    shown = msgspec.structs.replace(placement(ours, measured_us=8.0), spread_us=(7.0, 9.0))
    opened.runs = [run("r1", shown, alone, tied=tied)]
    told, _ = explain_document(opened, 0)
    assert [line.status for line in told.alternatives] == ["chosen", *status]


def test_the_reason_of_a_pinned_node_is_the_pin():
    opened, parts = a_mix_that_won()
    opened.pins = [Pin(kind="on", nodes=(1,), toolchain="openvino", text="relu2=openvino")]
    told, search = explain_document(opened, 1)
    assert "relu2=openvino" in told.words[0] and told.chosen == parts["second"].id
    assert told.words[0] == (
        "This placement was made without the pin relu2=openvino, which it does not keep."
    )
    whole = placement(parts["whole"], measured_us=32.7)
    told, _ = explain_document(opened, 1, search, whole)
    assert told.words[0] == "The pin relu2=openvino puts it here: costs 25.0 µs."
    told, _ = explain_document(opened, 0, search, whole)
    assert "relu2" not in told.words[0], "the pin is on the other node"


def test_a_node_in_words():
    graph = chain("nn.relu", "nn.relu", "nn.relu", "nn.relu")

    def made(nodes: tuple[int, ...], toolchain: str, known: Cost) -> CandidateRecord:
        instance = ToolchainInstance(toolchain=toolchain)
        return row(make_candidate(graph, instance, nodes, rule="region"), known)

    ours = made((0, 1, 2), "onednn", cost(41.0))
    other = made((0, 1, 2), "onnxruntime", cost(53.0))
    near = made((0, 1, 2, 3), "tvm", cost(46.2))
    bad = made((0,), "openvino", Cost(state="invalid", reason="wrong numbers"))
    new = made((0, 1), "tvm", Cost())
    alone = made((1,), "openblas", cost(9.0))
    model = ModelRecord(path="m.onnx", sha256="00", nodes=4)
    opened = Document(model=model, graph=graph.record)
    opened.candidates = [ours, other, near, made((3,), "tvm", cost(5.0)), bad, new, alone]
    opened.without_candidates = {"cublas": {0: Refusal("judged", "relu", "no GPU", "cuBLAS")}}
    told, _ = explain_document(opened, 0)
    assert told.words == (
        "onednn runs Relu+Relu+Relu: 41.0 µs; by itself onnxruntime would take 12.0 µs more.",
        "Not decided on this machine now: tvm's Relu+Relu+Relu+Relu. A placement with one of these "
        "takes as long, as far as measurements tell.",
        "The second-best placement has tvm's Relu+Relu+Relu+Relu at Relu 0 instead of onednn's "
        "Relu+Relu+Relu at Relu 0, tvm's Relu at Relu 3 and takes 0.200 µs longer.",
    )
    found = [(line.candidate, line.status) for line in told.alternatives]
    assert found == [
        (ours.id, "chosen"),
        (near.id, "tied"),
        (other.id, "slower"),
        (new.id, "unmeasured"),
        (bad.id, "invalid"),
        (None, "no candidate"),
    ]
    assert told.alternatives[2].whole_us == pytest.approx(12.0)
    assert [line.reason for line in told.alternatives[4:]] == ["wrong numbers", "no GPU"]
    opened.pins = [Pin(kind="on", nodes=(0,), toolchain="onnxruntime", text="relu1=onnxruntime")]
    told, _ = explain_document(opened, 1)
    assert "by itself onednn would take 12.0 µs less, but no placement contains it" in told.words[0]
    assert {c.candidate for c in told.alternatives if c.status == "ruled out"} >= {alone.id}
    opened.pins = [Pin(kind="on", nodes=(0,), toolchain="openvino", text="relu1=openvino")]
    told, _ = explain_document(opened, 0)
    assert told.words == (
        "Relu 0 is not placed: the pin 'relu1=openvino' cannot be honoured: openvino is not among "
        "the toolchains of this run (cublas).",
    )


def test_a_run_that_shares_nothing_with_the_shown_one_says_nothing_of_it():
    """Its machine had another speed: nothing tells how its placements would compare."""
    opened, parts = a_mix_that_won()
    opened.runs.append(run("r2", placement(parts["first"], parts["second"], measured_us=70.0)))
    tvm = placement(parts["tvm"], measured_us=2.0)
    opened.runs.append(run("r3", tvm))
    first = opened.runs[0].placement
    found, _ = search_document(opened, RunSettings(), None, first)
    price = found.prices[parts["tvm"].id]
    assert price.us == pytest.approx(25.2 - 7.68), "not 2.0 of another minute"
    told, _ = explain_document(opened, 0, None, first)
    lines = {line.candidate: line for line in told.alternatives}
    assert lines[parts["tvm"].id].status == "slower"
    assert lines[parts["tvm"].id].whole_us == pytest.approx(25.2 - 7.68), "as in that run"


def test_a_tie_is_no_price_of_a_pin():
    """A run shows the simpler one of two that are tied; the faster one keeps the pin as well."""
    exported, best = candidate((0, 1), cost(15.2)), candidate((0, 1), cost(15.1), "tvm")
    opened = document(exported, best, pins=[Pin(kind="never", nodes=(0,), toolchain="openvino")])
    shown = placement(exported, measured_us=15.2)
    made = run("r1", shown, tied=["collage"])
    made.winner, made.rivals = "onednn", [placement(best, measured_us=15.1)]
    opened.runs = [made]
    found, _ = search_document(opened, RunSettings(), None, shown)
    assert found.verdicts[0].price_us == 0.0


def test_two_pins_that_rule_out_one_placement_have_a_price_together():
    """Neither costs anything while the other is kept."""
    ours, other = candidate((0, 1), cost(15.2)), candidate((0, 1), cost(14.1), "tvm")
    without_tvm = [
        Pin(kind="never", nodes=(k,), toolchain="tvm", text=f"relu{k + 1}=!tvm") for k in (0, 1)
    ]
    opened = document(ours, other, pins=without_tvm)
    alone = Baseline(name="tvm", kind="whole-model", measured_us=14.1, candidates=(other.id,))
    shown = placement(ours, measured_us=15.2)
    opened.runs = [run("r1", shown, alone)]
    found, _ = search_document(opened, RunSettings(), None, shown)
    assert [verdict.price_us for verdict in found.verdicts] == [0.0, 0.0]
    assert found.pins_us == pytest.approx(1.1)
    told, _ = explain_document(opened, 0)
    assert told.words[:2] == (
        "The pin relu1=!tvm puts it here: as the best placement without it does anyway.",
        "The 2 pins together cost 1.10 µs.",
    )
    opened.pins = without_tvm[:1]
    assert search_document(opened, RunSettings(), None, shown)[0].pins_us is None
