"""Importing the zoo: provenance, numbers, determinism, names, and the nodes it cannot take.

Sub-graphs as ONNX: slices of whole nodes give the values that the whole model gives.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from tvm.ir import Call

from collage_engine.model.attributes import operator_name
from collage_engine.model.importer import ImportedModel, import_model, import_onnx
from collage_engine.model.onnx_slice import slice_model
from collage_engine.support.errors import ModelError
from tests import zoo
from tests.support.command import python
from tests.support.model_runs import (
    check_accounting,
    check_numbers,
    run_onnx,
    whole_module,
)
from tests.zoo.net import Net

LIGHT_ENOUGH = [
    "light_densenet121",
    "light_inception_v1",
    "light_inception_v2",
    "light_shufflenet",
    "light_squeezenet",
    "mobilenet_v2",
]


def _import(name: str) -> tuple[onnx.ModelProto, ImportedModel]:
    model = zoo.build(name)
    return model, import_onnx(model, name, zoo.SHAPES.get(name))


@pytest.mark.parametrize("name", [*zoo.SMALL, *LIGHT_ENOUGH])
def test_every_node_is_accounted_for_and_the_numbers_stay(name: str) -> None:
    model, imported = _import(name)
    check_accounting(model, imported)
    check_numbers(model, imported, 2e-3 if name == "float16" else 1e-5)
    ops = {node.op for node in imported.graph.nodes}
    assert not [op for op in ops if op.startswith("call_tir")], "left to opaque TIR"


def test_leftovers_are_folded_and_unnamed_nodes_go_by_their_first_output() -> None:
    model, imported = _import("leftovers")
    folded = set(imported.record.folded)
    assert {"dead", "half"} <= folded
    unnamed = [n for n in model.graph.node if not n.name]
    lived = {n for node in imported.graph.nodes for n in node.onnx_nodes}
    assert {n.output[0] for n in unnamed} <= lived | folded
    kinds = {n.name or n.output[0]: n.op_type for n in model.graph.node}
    assert {kinds[n] for n in folded} >= {"Identity", "Dropout", "Shape", "Concat", "Constant"}
    sums = [n for n in imported.graph.nodes if any(kinds[x] == "Sum" for x in n.onnx_nodes)]
    assert [n.op for n in sums] == ["add", "add"]


def test_inputs_and_outputs_keep_file_order_and_names() -> None:
    _, imported = _import("several")
    assert [n for n, _ in imported.inputs] == ["a", "b", "unused"]
    unused = imported.graph.record.parameters[2]
    assert unused.name == "unused" and not imported.graph.readers[unused.index]
    assert [str(t) for _, t in imported.outputs] == ["float32[2,4]", "int64[2]"]


def test_outputs_that_are_inputs_constants_or_twice_the_same() -> None:
    _, imported = _import("outputs")
    graph = imported.graph
    given, relu, again, fixed, sigmoid = (graph.values[i] for i in graph.record.outputs)
    assert given == graph.record.parameters[0] and fixed.constant
    assert [value.producer is not None for value in (relu, again, sigmoid)] == [True] * 3
    assert graph.record.outputs[1] == graph.record.outputs[2]
    assert graph.record.output_names == ("same_as_x", "relu:0", "y_again", "fixed", "sigmoid:0")


def test_dynamic_batch_takes_the_size_it_is_given() -> None:
    model = zoo.build("dynamic_batch")
    for batch in (1, 7):
        imported = import_onnx(model, "d", {"image": (batch, 3, 8, 8)})
        assert imported.inputs[0][1].shape[0] == imported.outputs[0][1].shape[0] == batch
        assert imported.record.shapes == {"image": (batch, 3, 8, 8)}
    with pytest.raises(ModelError, match="--shape image=1,3,8,8"):
        import_onnx(model, "d")


def test_graph_is_in_post_dfs_order_with_consistent_relax() -> None:
    for name in ("gpt2", "split_concat", "unet"):
        _, imported = _import(name)
        graph = imported.graph
        bindings = whole_module(imported)["main"].body.blocks[0].bindings
        assert all(s < o for o, sources in enumerate(graph.inputs) for s in sources)
        calls = [b.value for b in bindings if isinstance(b.value, Call)]
        assert [operator_name(call) for call in calls] == [node.op for node in graph.nodes]
        for value in graph.record.constants:
            array = imported.constant(value.index)
            assert array.shape == value.type.shape and str(array.dtype) == value.type.dtype


_DIGEST = """
import sys, hashlib, msgspec
from collage_engine.model.importer import import_model
m = import_model(sys.argv[1])
print(hashlib.sha256(msgspec.json.encode([m.graph.record, m.record])).hexdigest())
"""


def test_same_file_same_numbers_in_every_process(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.onnx"
    path.write_bytes(zoo.build("gpt2").SerializeToString())
    imported = import_model(path)
    here = hashlib.sha256(msgspec.json.encode([imported.graph.record, imported.record])).hexdigest()
    there = python(
        _DIGEST,
        path,
        cwd=Path(__file__).parents[2],
        env={"PYTHONHASHSEED": "1", "PATH": "/usr/bin:/bin"},
        check=True,
    )
    assert there.stdout.strip() == here
    assert imported.record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_users_model_is_not_changed_by_importing_it() -> None:
    model = zoo.build("leftovers")
    before = model.SerializeToString(deterministic=True)
    import_onnx(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_slice_refuses_borders_inside_a_node() -> None:
    _, model = _import("light_squeezenet")
    conv = next(n for n in model.graph.nodes if n.op == "nn.conv2d")
    assert conv.results[0].onnx_value is None
    with pytest.raises(ModelError, match="inside the ONNX node"):
        slice_model(model, model.graph.record.inputs, (conv.index,))


def test_slice_refuses_what_its_inputs_do_not_give() -> None:
    _, model = _import("tiny")
    add = next(n for n in model.graph.nodes if n.op == "add")
    with pytest.raises(ModelError, match="also needs"):
        slice_model(model, (add.inputs[0],), (add.index,))


def test_user_values_called_like_ours_do_not_clash() -> None:
    net = Net("clash", opset=13)
    x = net.input("v3", [2, 3])
    a = net.op("Relu", x, outputs=["v0"])
    b = net.op("Exp", a, outputs=["v1"])
    net.output(net.op("Add", a, b, outputs=["v2"]))
    model = import_onnx(net.model())
    graph = model.graph
    part = slice_model(model, graph.record.inputs, graph.record.outputs)
    data = model.random_inputs(0)["v3"]
    index = graph.record.inputs[0]
    relu = np.maximum(data, 0)
    np.testing.assert_allclose(
        run_onnx(part, {f"v{index}": data})[0], relu + np.exp(relu), rtol=1e-6
    )
