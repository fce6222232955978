"""ONNX operators that Relax lacks are operators of the graph, which ONNX runtimes run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues
from collage_engine.lowering.reference import run_onnx as evaluate
from collage_engine.model.importer import ImportedModel, import_onnx
from collage_engine.records.toolchain import Target
from collage_engine.run.inspect_candidate import _nested_graphs
from collage_engine.support.errors import ModelError
from collage_engine.toolchains import registry
from tests import zoo
from tests.support.model_runs import run_onnx
from tests.support.written import written
from tests.zoo.net import Net

MODELS = ("tagger", "control_flow", "contrib")
OPAQUE = {
    "tagger": ["onnx:LSTM", "onnx:LSTM"],
    "control_flow": ["onnx:If", "onnx:Loop", "onnx:Det"],
    "contrib": ["onnx:com.microsoft.FusedMatMul"],
}


def opened(name: str) -> tuple[onnx.ModelProto, ImportedModel]:
    model = zoo.build(name)
    return model, import_onnx(model, f"{name}.onnx", evaluate=evaluate)


def names(model: ImportedModel) -> list[str]:
    return [model.graph.nodes[i].op for i in model.graph.operators]


@pytest.mark.parametrize("name", MODELS)
def test_they_keep_their_places_and_their_nodes(name: str) -> None:
    _, model = opened(name)
    assert [op for op in names(model) if op.startswith("onnx:")] == OPAQUE[name]
    for index in model.graph.operators:
        node = model.graph.nodes[index]
        if node.op.startswith("onnx:"):
            assert node.kind == "opaque" and len(node.onnx_nodes) == 1


@pytest.mark.parametrize("name", MODELS)
def test_their_values_are_recorded_as_onnx_computes_them(name: str, tmp_path: Path) -> None:
    source, model = opened(name)
    inputs = model.random_inputs(3)
    values = TrueValues.record(model, inputs, tmp_path)
    for wanted, index in zip(run_onnx(source, inputs), model.graph.record.outputs, strict=True):
        np.testing.assert_allclose(values.value(index), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_compiles_partitions_that_hold_them(name: str, tmp_path: Path) -> None:
    _, model = opened(name)
    inputs = model.random_inputs(3)
    values = TrueValues.record(model, inputs, tmp_path)
    runtime = registry.get("onnxruntime")
    instance = runtime.instances(Target(), "float32")[0]
    every = range(len(model.graph.operators))
    opaque = [n for n in every if names(model)[n].startswith("onnx:")]
    for operators in (every, opaque[:1], range(opaque[0], opaque[-1] + 1)):
        function = function_of(model, instance, operators, "f")
        with Compiled(function) as compiled:
            outputs = compiled.run([np.array(v) for v in values.inputs_of(function)])
        for found, wanted in zip(outputs, values.outputs_of(function), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_who_cannot_run_them_says_so(name: str) -> None:
    _, model = opened(name)
    nodes = [model.graph.nodes[index] for index in model.graph.operators]
    opaque = [node for node in nodes if node.op.startswith("onnx:")]
    assert opaque
    for node in opaque:
        index, op = node.index, node.op
        for toolchain in ("tvm", "onednn", "openblas"):
            if (toolchain, op) == ("onednn", "onnx:LSTM"):
                continue
            found = registry.get(toolchain)
            instance = found.instances(Target(), "float32")[0]
            reason = found.supports(model.graph, index, instance)
            assert reason is not None and op.split(":")[1] in reason


def test_branches_and_bodies_are_shown_as_nested_graphs() -> None:
    _, model = opened("control_flow")
    inside = {op: dict(_nested_graphs(model, number)) for number, op in enumerate(names(model))}
    branches = {title.split(":")[0]: rows for title, rows in inside["onnx:If"].items()}
    assert branches.keys() == {"then_branch", "else_branch"}
    assert {rows[0][0].split()[0] for rows in branches.values()} == {"Relu", "Neg"}
    ((title, rows),) = inside["onnx:Loop"].items()
    assert title.startswith("body: ") and title.count(",") >= 2
    assert [name.split()[0] for name, _ in rows] == ["Mul", "Add", "Identity"]
    assert not inside["matmul"] and not inside["onnx:Det"]


def test_onnx_nodes_that_must_run_together_are_shown_as_one_graph() -> None:
    model = import_onnx(zoo.build("detector"), "detector.onnx", evaluate=evaluate)
    number, op = next((k, op) for k, op in enumerate(names(model)) if "+" in op)
    (title, rows), *_ = _nested_graphs(model, number)
    assert title == "ONNX nodes that run together" and len(rows) > 1
    assert op.removeprefix("onnx:").startswith(rows[0][0].split()[0])


def reversed_sequence(time_axis: int, opset: int) -> dict[str, object]:
    net = Net("reversed", opset=opset)
    x = net.input("x", [3, 3])
    lengths = net.const([1, 2, 3], np.int64)
    net.output(net.op("ReverseSequence", x, lengths, time_axis=time_axis, batch_axis=1 - time_axis))
    model = import_onnx(net.model())
    return model.graph.nodes[0].attributes


def test_attributes_tell_two_of_them_apart_and_the_age_of_the_model_does_not() -> None:
    assert reversed_sequence(0, 17) == reversed_sequence(0, 13)
    assert reversed_sequence(0, 17) != reversed_sequence(1, 17)


def test_a_size_that_depends_on_the_data_is_not_taken_as_fixed() -> None:
    source = written(
        """(float[6] x) => (float[] y) {
            size = Abs(x)
            total = ReduceSum<keepdims=0>(size)
            turns = Cast<to=7>(total)
            yes = Constant<value = bool {1}>()
            [open] y = Loop(turns, yes) <
                body = g1 (int64 turn, bool go) => (bool on, float seen) {
                    on = Identity(go)
                    seen = Cast<to=1>(turn)
                }
            >
        }""",
        opset=17,
    )
    model = import_onnx(source, "m.onnx", evaluate=evaluate)
    assert str(model.outputs[0][1]) == "float32[?]"


def test_an_operator_that_runtimes_have_in_the_standards_own_domain(tmp_path: Path) -> None:
    """As ONNX Runtime's builder of decoders writes them; the true values are numpy's."""
    net = Net("norm", opset=21)
    rows, gain = net.input("x", [3, 8]), net.vector(8, 1.0)
    norm = net.op("SimplifiedLayerNormalization", rows, gain, axis=-1, epsilon=1e-2)
    net.output(net.op("Mul", norm, net.const(np.float32(2))), shape=[3, 8])
    model = import_onnx(net.model(check=False), evaluate=evaluate)
    assert names(model) == ["onnx:SimplifiedLayerNormalization", "multiply"]
    x = model.random_inputs(1)["x"]
    values = TrueValues.record(model, {"x": x}, tmp_path)
    g = onnx.numpy_helper.to_array(net.weights[0])
    wanted = 2 * g * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-2)
    instance = registry.get("onnxruntime").instances(Target(), "float32")[0]
    for operators in (range(1), range(2)):
        function = function_of(model, instance, operators, "f")
        with Compiled(function) as compiled:
            (y,) = compiled.run([np.array(v) for v in values.inputs_of(function)])
        scale = 1 if len(operators) == 2 else 2
        np.testing.assert_allclose(scale * y, wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Rellu", "FastGelu"])
def test_what_no_runtime_has_in_the_standards_domain_is_refused(kind: str) -> None:
    """Nor is FastGelu the one of com.microsoft, for which TVM's importer would take it."""
    net = Net("typo", opset=21)
    net.output(net.op(kind, net.input("x", [2, 2]), name="culprit"), shape=[2, 2])
    with pytest.raises(ModelError, match=rf"{kind} \(node 'culprit'\)"):
        import_onnx(net.model(check=False), evaluate=evaluate)
