"""Why there is no placement: the user's own pins, the nodes' names, the toolchains' reasons."""

from __future__ import annotations

import pytest

from collage_engine.planning.infeasible import infeasible_details
from collage_engine.records.graph import GraphRecord, Node, TensorType
from collage_engine.records.pin import Pin
from collage_engine.records.refusal import Refusal
from collage_engine.search.problem import Answer, Infeasible

NO_ARGMAX = Refusal("judged", "argmax", "it has no ArgMax", "oneDNN")
REFUSED = {"onednn": {1: NO_ARGMAX}, "tvm": {}, "tvm[tuned=yes]": {}}
KIND = TensorType(shape=(1,), dtype="float32")


def graph() -> GraphRecord:
    calls = [("relu", ("act",)), ("argmax", ("best",)), ("add", ()), ("add", ("sum",))]
    nodes = tuple(
        Node(index=k, form="call", op=op, kind="opaque", types=(KIND,), onnx_nodes=names)
        for k, (op, names) in enumerate(calls)
    )
    return GraphRecord(nodes=nodes, inputs=(), outputs=(), input_names=(), output_names=())


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


def test_a_node_without_a_measured_candidate():
    assert reason([], (1, 2)) == "no candidate was measured for 'best' (ArgMax), node 2 (Add)"


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


def test_many_nodes_are_counted():
    assert reason([], (0, 1, 2, 3)).endswith(
        "for 'act' (relu), 'best' (ArgMax), node 2 (Add) and 1 more node"
    )
