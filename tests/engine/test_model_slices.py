"""Sub-graphs as ONNX: slices of whole nodes give the values that the whole model gives."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper

from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.model.index_set import NO_OPERATORS, members
from collage_engine.model.onnx_slice import slice_model
from collage_engine.partition.call_graph import call_graph
from collage_engine.records.errors import ModelError
from tests import zoo
from tests.support.model_runs import relative_error, run_onnx
from tests.zoo.net import Net

NAMES = [n for n in zoo.SMALL if n not in ("outputs", "tiny")]
TOLERANCE = {"float16": 5e-3, "qdq": 1e-2}


def _import(name: str) -> ImportedModel:
    return import_onnx(zoo.build(name), name, zoo.SHAPES.get(name))


def _truth(model: ImportedModel) -> dict[int, np.ndarray]:
    """Every value that the cleaned model has a name for, by node index."""
    inputs = model.random_inputs(0)
    graph = model.graph
    named = {
        n.index: n.onnx_value
        for n in graph.nodes
        if n.form in ("call", "projection") and n.onnx_value is not None
    }
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model.onnx)
    del exposed.graph.output[:]
    names = list(dict.fromkeys(named.values()))
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in names)
    found = dict(zip(names, run_onnx(exposed, inputs), strict=True))
    truth = {i: found[v] for i, v in named.items()}
    for (name, _), index in zip(model.inputs, graph.record.inputs, strict=True):
        truth[index] = inputs[name]
    return truth


@pytest.mark.parametrize("name", NAMES)
def test_slices_of_whole_nodes_give_the_true_values(name: str) -> None:
    model = _import(name)
    graph, truth = model.graph, _truth(model)
    dice = random.Random(name)
    places = call_graph(graph).whole([])
    tried = 0
    for _ in range(12):
        start = dice.randrange(len(places))
        chosen = NO_OPERATORS
        for atom in places[start : start + dice.choice([1, 2, 3, 5, 9])]:
            chosen |= atom
        nodes = graph.close(graph.to_indices(members(chosen)))
        inputs, outputs = graph.boundary(nodes)
        if any(graph.nodes[i].onnx_value is None for i in (*inputs, *outputs)):
            pytest.fail("a border of whole nodes without a name")
        try:
            made = slice_model(model, inputs, outputs)
        except ModelError:
            continue  # not convex: a value is made of what lies outside
        tried += 1
        assert [i.name for i in made.graph.input] == [f"v{i}" for i in inputs]
        assert [o.name for o in made.graph.output] == [f"v{i}" for i in outputs]
        onnx.checker.check_model(made)
        found = run_onnx(made, {f"v{i}": truth[i] for i in inputs})
        for index, given in zip(outputs, found, strict=True):
            assert given.dtype == truth[index].dtype
            assert relative_error(given, truth[index]) <= TOLERANCE.get(name, 2e-5)
    assert tried


def test_a_slice_refuses_borders_inside_a_node() -> None:
    model = _import("light_squeezenet")
    conv = next(n for n in model.graph.nodes if n.op == "nn.conv2d")
    assert conv.onnx_value is None
    with pytest.raises(ModelError, match="inside the ONNX node"):
        slice_model(model, (0,), (conv.index,))


def test_slice_refuses_what_its_inputs_do_not_give() -> None:
    model = _import("tiny")
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
