"""Searching again on a document's costs: what pins get where candidates were left unmeasured."""

from __future__ import annotations

import msgspec

from collage_engine.partition.candidate import make_candidate
from collage_engine.planning.document_search import search_document
from collage_engine.planning.explanation import explain_document
from collage_engine.records.candidate import CandidateRecord
from collage_engine.records.cost import Cost
from collage_engine.records.graph import ModelRecord
from collage_engine.records.pin import Pin
from collage_engine.records.placement import CandidateCounts, Partition, Placement, Run
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance, ToolchainState
from collage_engine.session.document import Document
from collage_engine.wording.constraints import NOT_MEASURED
from tests.support.graphs import chain

GRAPH = chain("nn.relu", "nn.relu")


def candidate(nodes: tuple[int, ...], cost: Cost, toolchain: str = "onednn") -> CandidateRecord:
    made = make_candidate(GRAPH, ToolchainInstance(toolchain=toolchain), nodes, rule="region")
    fields = {name: getattr(made, name) for name in made.__struct_fields__ if name != "cost"}
    return CandidateRecord(**fields, cost=cost)


def document(*candidates: CandidateRecord, pin: Pin) -> Document:
    model = ModelRecord(path="m.onnx", sha256="00", nodes=2)
    return Document(model=model, graph=GRAPH.record, candidates=list(candidates), pins=[pin])


MEASURED = Cost(state="measured", median_us=3.0, low_us=2.9, high_us=3.1)
FIRST_ALONE = Pin(kind="exactly", nodes=(0,), text="relu1=exactly")


def test_a_pin_on_what_was_left_unmeasured_asks_for_another_run():
    unmeasured = [candidate((0,), Cost()), candidate((1,), MEASURED)]
    found, _ = search_document(
        document(candidate((0, 1), MEASURED), *unmeasured, pin=FIRST_ALONE), RunSettings()
    )
    assert found.placement is None and found.infeasible is not None
    assert found.infeasible["reason"] == NOT_MEASURED
    assert (found.verdicts[0].state, found.verdicts[0].reason) == ("pending", NOT_MEASURED)


def test_a_pin_that_nothing_can_honour_stays_infeasible():
    other = [candidate((0, 1), MEASURED), candidate((1,), Cost())]
    found, _ = search_document(document(*other, pin=FIRST_ALONE), RunSettings())
    assert found.infeasible is not None and found.infeasible["reason"] != NOT_MEASURED
    assert found.verdicts[0].state == "infeasible"


def test_a_pin_on_what_was_measured_is_honoured_at_its_price():
    each = [candidate((0,), MEASURED), candidate((1,), MEASURED)]
    found, _ = search_document(
        document(candidate((0, 1), MEASURED), *each, pin=FIRST_ALONE), RunSettings()
    )
    assert found.verdicts[0].state == "honoured" and found.verdicts[0].price_us == 3.0


def test_what_was_searched_answers_until_costs_pins_or_settings_change():
    each = [candidate((0,), MEASURED), candidate((1,), MEASURED)]
    together = candidate((0, 1), Cost(state="measured", median_us=4.0, low_us=3.9, high_us=4.1))
    opened = document(together, *each, pin=FIRST_ALONE)
    opened.pins = []
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
    opened = document(together, *each, *other, pin=on_tvm)
    told, _ = explain_document(opened, 0)
    assert told.regrets[together.id] is None, "the pin rules it out"
    assert told.prices_instead == {other[0].id: 0.0, each[0].id: -2.0, together.id: -4.0}
    assert explain_document(opened, 1)[0].prices_instead == {}, "the pin is not on this node"
    opened.pins = [Pin(kind="on", nodes=(0, 1), toolchain="tvm", text="relu*=tvm")]
    told, _ = explain_document(opened, 0)
    assert told.prices_instead == {other[0].id: 0.0, each[0].id: -2.0}, "node 1 stays pinned"
    opened.pins = [FIRST_ALONE]
    assert explain_document(opened, 0)[0].prices_instead == {}, "such a pin stays beside another"


def test_the_explanation_is_about_the_placement_that_the_run_exported():
    faster = Cost(state="measured", median_us=1.0, low_us=0.9, high_us=1.1)
    each = [candidate((0,), faster), candidate((1,), faster)]
    together = candidate((0, 1), MEASURED)
    opened = document(together, *each, pin=FIRST_ALONE)
    opened.pins = []
    part = Partition(
        id="p0",
        candidate=together.id,
        toolchain="onednn",
        config={},
        nodes=(0, 1),
        onnx_nodes=(),
        estimated_us=3.0,
    )
    opened.runs = [
        Run(
            id="r1",
            name="",
            model={},
            target="cpu",
            threads=1,
            toolchains=[],
            candidates=CandidateCounts(),
            placement=Placement(partitions=(part,), estimated_us=3.0),
            baselines=[],
            winner="collage",
            pins=[],
            max_abs_error=0.0,
            max_rel_error=0.0,
            seconds={},
        )
    ]
    opened.toolchains = [ToolchainState(name="onednn", available=True, title="oneDNN")]
    told, _ = explain_document(opened, 0)
    assert told.chosen == together.id
    assert told.words[0].startswith("oneDNN runs ")
    least = [text for text in told.words if "the least expected latency" in text]
    assert len(least) == 1 and "(2.00 µs) has" in least[0]
    opened.pins = [FIRST_ALONE]  # the run was made without this pin
    told, _ = explain_document(opened, 0)
    assert told.words[0].startswith("The run exported another placement of the search")
    assert "oneDNN (p0)" in told.words[0]
    opened.pins = []
    own = msgspec.structs.replace(part, candidate=each[0].id, nodes=(0,))
    opened.runs[0].placement = Placement(partitions=(own,), estimated_us=2.0)
    told, _ = explain_document(opened, 0)
    assert not told.words[0].startswith("The run exported")
