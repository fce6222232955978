"""Pins as people write them."""

from __future__ import annotations

import pytest

from collage_engine.records.errors import UsageError
from collage_engine.records.graph import GraphRecord, ModelRecord, Node
from collage_engine.session.pins import parse_pin, rebind_pins

KNOWN = ("tvm", "onnxruntime", "onednn")


def graph(*names: str) -> GraphRecord:
    nodes = [Node(index=0, form="parameter", name="x")]
    for k, name in enumerate(names):
        nodes.append(
            Node(
                index=k + 1,
                form="call",
                op="nn.relu",
                inputs=(k,),
                onnx_nodes=tuple(name.split("+")),
            )
        )
    return GraphRecord(nodes=tuple(nodes), inputs=(0,), outputs=(len(names),))


MODEL = ModelRecord(path="m", sha256="", nodes=4, folded=("Dropout_1",))
G = graph("Conv1+BN1", "Conv1", "relu_a", "Conv2")


@pytest.mark.parametrize(
    ("text", "kind", "nodes", "toolchain", "device"),
    [
        ("conv*=onednn", "on", (0, 1, 3), "onednn", None),
        ("CONV2, relu_?=!tvm", "never", (2, 3), "tvm", None),
        ("bn1=exactly", "exactly", (0,), None, None),
        ("bn1=exactly:onnxruntime", "exactly", (0,), "onnxruntime", None),
        ("*=together", "together", (0, 1, 2, 3), None, None),
        ("conv2=@cuda:0", "device", (3,), None, "cuda:0"),
        ("conv2=onnxruntime[level=basic]", "on", (3,), "onnxruntime[level=basic]", None),
    ],
)
def test_every_kind_of_pin(text, kind, nodes, toolchain, device):
    # `=` inside a config is part of WHAT, so the split must not be at the last one there.
    pin = parse_pin(text, G, MODEL, KNOWN)
    assert (pin.kind, pin.nodes, pin.toolchain, pin.device) == (kind, nodes, toolchain, device)
    assert pin.text == text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("conv1", "is not a pin"),
        ("=tvm", "is not a pin"),
        ("conv1=", "is not a pin"),
        ("nothing*=tvm", "matches no node"),
        ("conv9=tvm", "near are"),
        ("conv1=cudnn5", "no toolchain 'cudnn5'"),
        ("dropout*=tvm", "clean-up removed"),
        ("conv1=@", "names no device"),
    ],
)
def test_wrong_pins_say_what_is_wrong(text, says):
    with pytest.raises(UsageError, match=says):
        parse_pin(text, G, MODEL, KNOWN)


def test_pins_move_to_the_next_version_of_a_model():
    pins = [parse_pin(t, G, MODEL, KNOWN) for t in ("conv*=onednn", "relu_a=tvm", "bn1=exactly")]
    kept, report = rebind_pins(pins, graph("new", "Conv1", "relu_a"))
    assert [p.nodes for p in kept] == [(1,), (2,)]
    assert any("no longer in the model: BN1, Conv2" in r or "Conv2" in r for r in report)
    assert any("dropped" in r for r in report)
