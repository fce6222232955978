"""Why there is no placement: the user's own pins, the nodes' names, the toolchains' reasons.

A run without a placement says why; more time is advised only where it could help.

Why a toolchain has no candidate with an operator, in ONNX types and toolchains' titles.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from collage_engine.machine.run_control import RunControl
from collage_engine.planning.infeasible import infeasible_details
from collage_engine.planning.search_inputs import SearchInputs
from collage_engine.records.candidate import Cost, CostTable, Refusal
from collage_engine.records.graph import GraphRecord, TensorType
from collage_engine.records.pin import Pin
from collage_engine.records.settings import RunSettings
from collage_engine.run.stages.enumerate import _check_that_a_cover_exists, not_ready_in_words
from collage_engine.run.stages.search import search_covers
from collage_engine.search.problem import Answer, Infeasible
from collage_engine.support.errors import InfeasibleError
from tests.support.covers import candidate_on
from tests.support.graphs import chain, instance, operator, record_of

NO_ARGMAX = Refusal("judged", "argmax", "it has no ArgMax", "oneDNN")
REFUSED = {"onednn": {1: NO_ARGMAX}, "tvm": {}, "tvm[tuned=yes]": {}}
KIND = TensorType(shape=(1,), dtype="float32")


def graph() -> GraphRecord:
    calls = [
        ("relu", ("act",)),
        ("argmax", ("best",)),
        ("add", ()),
        ("add", ("sum",)),
        ("add", ("last",)),
    ]
    return record_of(*(operator(k, op, onnx_nodes=names) for k, (op, names) in enumerate(calls)))


def reason(pins: list[Pin], nodes: tuple[int, ...], refused=REFUSED) -> str:
    found = Infeasible(reason="numbers", pins=tuple(range(len(pins))), nodes=nodes)
    said = infeasible_details(graph(), pins, Answer(infeasible=found), refused)["reason"]
    assert isinstance(said, str)
    return said


def pin(kind: str, text: str, **more) -> Pin:
    return Pin(kind=kind, nodes=(1,), text=text, **more)


def test_a_node_no_toolchain_takes_is_named_with_every_reason():
    only = {"onednn": REFUSED["onednn"]}
    assert reason([], (1,), only) == (
        "no toolchain of this run takes 'best' (ArgMax) (oneDNN: it has no ArgMax); "
        "allow more toolchains"
    )


@pytest.mark.parametrize(
    ("pins", "nodes", "says"),
    [
        (
            [pin("on", "b=onednn", toolchain="onednn")],
            (1,),
            "the pin 'b=onednn' cannot be honoured: onednn has no candidate for 'best' (ArgMax) "
            "(it has no ArgMax)",
        ),
        (
            [pin("on", "b=x", toolchain="onnxruntime")],
            (1,),
            "the pin 'b=x' cannot be honoured: onnxruntime is not among the toolchains of this run "
            "(onednn, tvm)",
        ),
        (
            [pin("device", "b=@gpu", device="gpu")],
            (1,),
            "the pin 'b=@gpu' cannot be honoured: no candidate for 'best' (ArgMax) is on the "
            "device gpu; there is only cpu",
        ),
        (
            [pin("exactly", "b=exactly")],
            (1,),
            "the pin 'b=exactly' cannot be honoured: no candidate is exactly these nodes",
        ),
        (
            [pin("together", "b=together")],
            (),
            "the pin 'b=together' cannot be honoured: no candidate holds all of these nodes",
        ),
        (
            [pin("on", "b=tvm", toolchain="tvm"), pin("never", "b=!tvm", toolchain="tvm")],
            (1,),
            "the pins 'b=tvm' and 'b=!tvm' cannot hold together: no candidate is left for 'best' "
            "(ArgMax)",
        ),
    ],
)
def test_pins_are_quoted_and_explained(pins, nodes, says):
    assert reason(pins, nodes) == says


OPENVINO = instance("openvino")
FIRST, SECOND, BOTH = (candidate_on(OPENVINO, nodes) for nodes in ((0,), (1,), (0, 1)))
RIGHT = Cost(state="measured", median_us=5.0)
WRONG = Cost(state="invalid", reason="wrong numbers in PRelu")


def inputs_of(**costs: Cost) -> SearchInputs:
    known = {"first": FIRST, "second": SECOND, "both": BOTH}
    return SearchInputs(
        graph=chain("nn.relu", "nn.prelu").record,
        candidates=(FIRST, SECOND, BOTH),
        costs=CostTable({known[name].id: cost for name, cost in costs.items()}),
        constants={},
        pins=(),
        settings=RunSettings(),
    )


def refusal(out_of_time: bool, wrong_models: tuple[str, ...] = (), **costs: Cost) -> str:
    with pytest.raises(InfeasibleError) as caught:
        catalog: Any = SimpleNamespace(without_candidates={"openvino": {}})
        standings = SimpleNamespace(
            failures=lambda: ["OpenVINO only: wrong numbers in y"],
            wrong_models=lambda: frozenset(wrong_models),
        )
        race: Any = SimpleNamespace(standings=standings)
        control = RunControl()
        control.cut_short += ["measure"] if out_of_time else []
        inputs = inputs_of(**costs)
        state: Any = SimpleNamespace(catalog=catalog, inputs=inputs, race=race, control=control)
        search_covers(state)
    return str(caught.value)


ALL_WRONG = {"first": RIGHT, "second": WRONG, "both": WRONG}


@pytest.mark.parametrize(
    ("costs", "wrong", "asks"),
    [
        (ALL_WRONG, (), False),
        ({"first": RIGHT, "second": WRONG}, (BOTH.id,), False),
        ({"first": RIGHT, "both": WRONG}, (), True),  # the second operator alone is not measured
    ],
)
def test_reasons_are_told_and_time_is_asked_for_where_it_could_help(costs, wrong, asks) -> None:
    for out_of_time in (True, False):
        said = refusal(out_of_time, wrong, **costs)
        assert "OpenVINO only: wrong numbers in y" in said
        assert "wrong numbers in PRelu" in said or costs is not ALL_WRONG
        assert ("--budget" in said) == (asks and out_of_time)


def test_what_an_earlier_run_found_wrong_is_told_before_anything_is_measured() -> None:
    inputs = inputs_of(**ALL_WRONG)
    with pytest.raises(InfeasibleError) as caught:
        _check_that_a_cover_exists(inputs, {"openvino": {}}, [not_ready_in_words(["TVM"])])
    assert "wrong numbers in PRelu" in str(caught.value)
    assert "; TVM is left out of this run" in str(caught.value) and caught.value.details
