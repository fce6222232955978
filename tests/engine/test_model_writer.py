"""Sub-graphs as ONNX: slices and written ones give the values the whole model gives."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper

from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.model.onnx_slice import slice_model
from collage_engine.model.onnx_writer import to_onnx, write_onnx
from collage_engine.records.errors import ModelError, UnsupportedError
from tests import zoo
from tests.support.model_runs import relative_error, run_onnx
from tests.zoo.net import Net

NAMES = [n for n in zoo.SMALL if n not in ("outputs", "tiny")]
TOLERANCE = {"float16": 5e-3, "qdq": 1e-2}


def _import(name: str) -> ImportedModel:
    return import_onnx(zoo.build(name), name, zoo.SHAPES.get(name))


def _truth(model: ImportedModel, seed: int = 0) -> dict[int, np.ndarray]:
    """Every value: ONNX Runtime's where ONNX has it, else the whole model written out."""
    inputs = model.random_inputs(seed)
    graph = model.graph
    named = {n.index: n.onnx_value for n in graph.nodes if n.form in ("call", "projection")}
    values = [v for v in dict.fromkeys(named.values()) if v is not None]
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model.onnx)
    del exposed.graph.output[:]
    exposed.graph.output.extend(helper.make_empty_tensor_value_info(v) for v in values)
    found = dict(zip(values, run_onnx(exposed, inputs), strict=True))
    truth = {i: found[v] for i, v in named.items() if v is not None}
    for (name, _), index in zip(model.inputs, graph.record.inputs, strict=True):
        truth[index] = inputs[name]
    rest = tuple(i for i, v in named.items() if v is None and not graph.nodes[i].is_tuple)
    if rest:
        whole = write_onnx(model, _everything(model), graph.record.inputs, rest)
        feed = {f"v{i}": truth[i] for i in graph.record.inputs}
        truth.update(zip(rest, run_onnx(whole, feed), strict=True))
    return truth


def _everything(model: ImportedModel) -> int:
    nodes = (1 << len(model.graph)) - 1
    for index in model.graph.record.inputs:
        nodes &= ~(1 << index)
    return nodes


@pytest.mark.parametrize("name", NAMES)
def test_random_runs_of_operators_match_the_true_values(name: str) -> None:
    model = _import(name)
    graph, truth = model.graph, _truth(model)
    dice = random.Random(name)
    count = len(graph.operators)
    for _ in range(12):
        start = dice.randrange(count)
        stop = min(start + dice.choice([1, 2, 3, 5, 9]), count)
        nodes = graph.close(graph.to_indices(tuple(range(start, stop))))
        inputs, outputs = graph.boundary(nodes)
        feed = {f"v{i}": truth[i] for i in inputs}
        for made in (
            write_onnx(model, nodes, inputs, outputs),
            to_onnx(model, nodes, inputs, outputs),
        ):
            assert [i.name for i in made.graph.input] == [f"v{i}" for i in inputs]
            assert [o.name for o in made.graph.output] == [f"v{i}" for i in outputs]
            onnx.checker.check_model(made)
            for index, given in zip(outputs, run_onnx(made, feed), strict=True):
                assert given.dtype == truth[index].dtype
                error = relative_error(given, truth[index])
                assert error <= TOLERANCE.get(name, 2e-5), (start, stop, graph.nodes[index])


@pytest.mark.parametrize("name", ["light_squeezenet", "light_resnet50", "mobilenet_v2"])
def test_whole_networks_written_anew(name: str) -> None:
    model = _import(name)
    graph = model.graph
    inputs, outputs = graph.record.inputs, graph.record.outputs
    written = write_onnx(model, _everything(model), inputs, outputs)
    given = model.random_inputs(3)
    feed = {f"v{i}": given[n] for (n, _), i in zip(model.inputs, inputs, strict=True)}
    wanted = run_onnx(model.onnx, given)[0]
    assert relative_error(run_onnx(written, feed)[0], wanted) <= 1e-5
    assert relative_error(run_onnx(slice_model(model, inputs, outputs), feed)[0], wanted) == 0.0


def test_slice_refuses_borders_inside_a_node_and_the_writer_takes_over() -> None:
    model = _import("light_squeezenet")
    graph = model.graph
    conv = next(n for n in graph.nodes if n.op == "nn.conv2d")
    assert conv.onnx_value is None
    with pytest.raises(ModelError, match="inside the ONNX node"):
        slice_model(model, (0,), (conv.index,))
    nodes = graph.close(1 << conv.index)
    made = to_onnx(model, nodes, *graph.boundary(nodes))
    assert [n.op_type for n in made.graph.node] == ["Conv"]


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


def test_operator_without_a_form_is_named() -> None:
    model = _import("tiny")
    import msgspec

    nodes = [
        msgspec.structs.replace(n, op="no.such.operator") if n.op == "exp" else n
        for n in model.graph.nodes
    ]
    from collage_engine.model.dataflow_graph import DataflowGraph

    model.graph = DataflowGraph(msgspec.structs.replace(model.graph.record, nodes=tuple(nodes)))
    inputs, outputs = model.graph.record.inputs, model.graph.record.outputs
    with pytest.raises(UnsupportedError, match=r"no\.such\.operator"):
        write_onnx(model, _everything(model), inputs, outputs)
