"""True values, recorded, whole and right; and one candidate that is compiled alone."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest

from collage_engine.lowering import reference
from collage_engine.lowering.compile import Compiled
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues, original_outputs, run_onnx
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import Cancelled, MeasureError, ToolchainError
from tests.engine.test_lowering_rewrite import branches
from tests.support.plain_toolchain import PLAIN, register


def tensors(model):
    """Every value that is there at run time only."""
    return [value.index for value in model.graph.values if not value.constant]


def test_small_segments_give_the_same_values(tmp_path, monkeypatch):
    model = branches()
    inputs = model.random_inputs(0)
    whole = TrueValues.record(model, inputs, tmp_path / "a")
    monkeypatch.setattr(reference, "SEGMENT_BYTES", 1)
    parts = TrueValues.record(model, inputs, tmp_path / "b")
    for index in tensors(model):
        np.testing.assert_array_equal(whole.value(index), parts.value(index))


def test_values_of_a_function_come_in_its_argument_order(tmp_path):
    model = branches()
    values = TrueValues.record(model, model.random_inputs(0), tmp_path)
    function = function_of(model, PLAIN, (3,), "add")
    b, c = values.inputs_of(function)
    (d,) = values.outputs_of(function)
    np.testing.assert_allclose(d, b + c, rtol=1e-6)


def test_another_process_can_open_the_folder(tmp_path):
    model = branches()
    TrueValues.record(model, model.random_inputs(0), tmp_path)
    opened = TrueValues(tmp_path)
    assert all(opened.value(index) is not None for index in tensors(model))
    with pytest.raises(MeasureError, match="the value 99 was not recorded"):
        opened.value(99)


def test_a_cancel_stops_it(tmp_path):
    model = branches()
    cancel = threading.Event()
    cancel.set()
    with pytest.raises(Cancelled):
        TrueValues.record(model, model.random_inputs(0), tmp_path, cancel)


def test_without_onnx_runtime_the_reference_evaluator_runs_it(monkeypatch):
    model = branches()
    inputs = model.random_inputs(0)
    expected = run_onnx(model.onnx, inputs)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for ours, theirs in zip(run_onnx(model.onnx, inputs), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_an_operator_that_the_runtime_refuses_is_computed_by_definition(tmp_path, monkeypatch):
    """ONNX Runtime has no kernel for some of the standard's operators."""
    model = branches()
    inputs = model.random_inputs(0)
    expected = TrueValues.record(model, inputs, tmp_path / "a")
    refused = []

    def refuse(model, feeds):
        refused.append(model)
        raise RuntimeError("NOT_IMPLEMENTED")

    monkeypatch.setattr(reference, "run_onnx", refuse)
    found = TrueValues.record(model, inputs, tmp_path / "b")
    assert refused
    for index in tensors(model):
        np.testing.assert_allclose(found.value(index), expected.value(index), rtol=1e-5)
    outputs = original_outputs(model, inputs)
    for (name, _), index in zip(model.outputs, model.graph.record.outputs, strict=True):
        np.testing.assert_allclose(outputs[name], expected.value(index), rtol=1e-5)


CHAINED = ToolchainInstance(toolchain="onnxruntime")


@pytest.fixture(autouse=True)
def _plain(monkeypatch):
    register(monkeypatch)


def truth(x):
    a = np.maximum(x, 0)
    return {"exp": np.exp(a), "sum": np.exp(a) + np.tanh(a)}


@pytest.mark.parametrize("instance", [PLAIN, CHAINED], ids=lambda i: i.toolchain)
def test_inputs_and_outputs_are_those_of_the_border(instance):
    model = branches()
    # exp (read by add outside of it, and an output) and add; tanh stays outside.
    function = function_of(model, instance, (0, 1), "f")
    x = np.random.default_rng(0).standard_normal((2, 4), dtype="float32")
    assert [model.graph.values[i].name for i in function.inputs] == ["x"]
    with Compiled(function) as compiled:
        outputs = compiled.run([x])
        assert len(outputs) == 2  # relu is read outside as well
        np.testing.assert_allclose(outputs[0], np.maximum(x, 0), rtol=1e-6)
        np.testing.assert_allclose(outputs[1], truth(x)["exp"], rtol=1e-5)
        again = compiled.run([x * 0])
        np.testing.assert_allclose(outputs[1], truth(x)["exp"], rtol=1e-5)  # a copy, not a view
        np.testing.assert_allclose(again[1], 1.0)
        assert isinstance(compiled.inside(), dict)


def test_wrong_arguments_are_refused_with_a_sentence():
    model = branches()
    with Compiled(function_of(model, PLAIN, (0,), "f")) as compiled:
        with pytest.raises(ToolchainError, match="takes 1 inputs, 2 were given"):
            compiled.run([np.zeros((2, 4), "float32")] * 2)
        with pytest.raises(ToolchainError, match=r"expected float32\[2,4\], got float32\[4,2\]"):
            compiled.run([np.zeros((4, 2), "float32")])
        with pytest.raises(ToolchainError, match=r"got float64\[2,4\]"):
            compiled.run([np.zeros((2, 4))])
