"""Pins as people write them."""

from __future__ import annotations

import msgspec
import pytest

from collage_engine.records.graph import GraphRecord, ModelRecord
from collage_engine.records.pin import written_name
from collage_engine.store.pins import parse_pin, rebind_pins
from collage_engine.support.errors import UsageError
from tests.support.graphs import operator, record_of

KNOWN = ("tvm", "onnxruntime", "onednn")


def graph(*names: str) -> GraphRecord:
    calls = (operator(k, "nn.relu", onnx_nodes=tuple(n.split("+"))) for k, n in enumerate(names))
    return record_of(*calls)


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


def test_a_pin_is_on_whole_nodes_also_where_one_part_alone_carries_the_name():
    nodes = [msgspec.structs.replace(node, onnx_node=min(node.index, 1)) for node in G.nodes]
    whole = msgspec.structs.replace(G, nodes=tuple(nodes))
    assert parse_pin("bn1=exactly", whole, MODEL, KNOWN).nodes == (0,)
    pin = parse_pin("relu_a=tvm", whole, MODEL, KNOWN)
    assert pin.nodes == (1, 2, 3)
    assert rebind_pins([pin], G)[0].nodes == (2,) and whole.count_nodes(range(4)) == 2


ODD = graph("[a-b]*{x}?", "same=on, 2", "a", "conv[0]", "conv0", 'say "so", it', "Größe=x", "b")


@pytest.mark.parametrize(
    ("text", "nodes", "toolchain"),
    [
        ("[a-b]*{x}?=tvm", (0,), "tvm"),
        ("same=on, 2=onednn", (1,), "onednn"),
        ("same=on, 2=onnxruntime[level=basic]", (1,), "onnxruntime[level=basic]"),
        ("conv[0]=tvm", (3,), "tvm"),  # the node of that name, not what the glob would match
        ("CONV[0]=tvm", (4,), "tvm"),  # no node's name, so a glob
        ("Größe=x=tvm", (6,), "tvm"),
        ('"same=on, 2",a=tvm', (1, 2), "tvm"),
        ('a , "say ""so"", it", "[a-b]*{x}?"=tvm', (0, 2, 5), "tvm"),
        ('say "so", it=tvm', (5,), "tvm"),
        ('"a"=tvm', (2,), "tvm"),
        ("[ab]=tvm", (2, 7), "tvm"),
    ],
)
def test_an_exact_name_wins_over_a_glob_and_names_can_be_quoted(text, nodes, toolchain):
    pin = parse_pin(text, ODD, MODEL, KNOWN)
    assert (pin.kind, pin.nodes, pin.toolchain) == ("on", nodes, toolchain)


@pytest.mark.parametrize("name", ["[a-b]*{x}?", "same=on, 2", "conv[0]", 'say "so", it', "b"])
def test_a_name_as_the_desktop_writes_it_means_that_node(name):
    names = [node.onnx_nodes[0] for node in ODD.nodes]
    pin = parse_pin(f"{written_name(name)},a=tvm", ODD, MODEL, KNOWN)
    assert pin.nodes == tuple(sorted((names.index("a"), names.index(name))))


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
    kept = rebind_pins(pins, graph("new", "Conv1", "relu_a"))
    assert [p.nodes for p in kept] == [(1,), (2,)]
    assert kept[0].onnx_nodes == ("Conv1",)
