"""A model's own rounding decides on what its outputs are compared with the reference by."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from collage_engine.candidates.inputs import run_tolerance
from collage_engine.lowering.accuracy import NOISE_FACTOR
from collage_engine.lowering.extract import function_of
from collage_engine.lowering.reference import TrueValues, run_onnx
from collage_engine.lowering.rounding_noise import rounding_noise, widened
from collage_engine.machine.loader.run_artifact import error_of
from collage_engine.model.importer import ImportedModel, import_model
from collage_engine.records.settings import RunSettings
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import Cancelled, MeasureError
from collage_engine.timing.bench import ModelBench, check
from collage_engine.timing.child import OpenRequest
from tests.support.covers import candidate_on
from tests.zoo.net import Net
from tests.zoo.quantized import quantize
from tests.zoo.small import amplifies_rounding
from tests.zoo.vision import mobilenet_v2

DEFAULT = 1e-4

Importing = Callable[[ModelProto], ImportedModel]


def plain() -> ModelProto:
    """Two dense layers, which damp rounding."""
    net = Net("plain", seed=4)
    net.output(net.dense(net.op("Relu", net.dense(net.input("x", [8, 64]), 64, 64)), 64, 64))
    return net.model()


def cancels() -> ModelProto:
    """Means of large numbers that cancel: they depend on the order in which these are added."""
    net = Net("cancels", seed=5)
    x = net.input("x", [8, 4096])
    large = net.op("Mul", x, net.const(np.float32(300)))
    both = net.op("Concat", large, net.op("Sub", x, large), axis=1)
    net.output(net.op("ReduceMean", both, axes=[1], keepdims=0))
    return net.model()


@pytest.fixture
def imported(tmp_path: Path) -> Importing:
    def make(model: ModelProto) -> ImportedModel:
        path = tmp_path / "m.onnx"
        onnx.save(model, path)
        return import_model(str(path))

    return make


def noise_of(model: ModelProto) -> list[float]:
    random = np.random.default_rng(0)
    inputs = {
        value.name: random.standard_normal(
            [d.dim_value for d in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
    }
    found = rounding_noise(model, inputs, DEFAULT)
    assert found is not None
    return found


def test_a_plain_model_moves_by_a_few_last_bits() -> None:
    (moved,) = noise_of(plain())
    assert 1e-8 < moved < 2e-6
    assert widened(DEFAULT, moved) == DEFAULT


def test_the_default_tolerance_refuses_what_only_sums_in_another_order() -> None:
    """The same model with its scores in another order is within the noise."""
    model, reordered = amplifies_rounding(), amplifies_rounding()
    order = np.random.default_rng(2).permutation(64)
    axes = {"w_5": 1, "w_6": 0}
    for tensor in reordered.graph.initializer:
        if tensor.name in axes:
            permuted = numpy_helper.to_array(tensor).take(order, axis=axes[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(permuted, tensor.name))
    inputs = {"x": np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)}
    (boxes, truth), (same_boxes, moved) = (run_onnx(m, inputs) for m in (model, reordered))
    truth = truth[:, order]
    found = rounding_noise(model, inputs, DEFAULT)
    assert found is not None
    assert error_of(same_boxes, boxes)[1] < 1e-5
    assert DEFAULT < error_of(moved, truth)[1] <= widened(DEFAULT, found[1])


def test_steps_of_a_quantised_model_flip() -> None:
    """A flip moves an output by steps, which are a million times the last bit."""
    small = mobilenet_v2(size=64, classes=10)
    (floats,), (steps,) = noise_of(small), noise_of(quantize(small))
    assert floats < 1e-4 and steps > 1e-3


def test_nobody_waits_for_it_after_a_stop() -> None:
    with pytest.raises(Cancelled):
        rounding_noise(plain(), {"x": np.ones((8, 64), np.float32)}, DEFAULT, stopped=lambda: True)


# -- the tolerance of a run ------------------------------------------------------------


def test_a_plain_model_is_held_to_what_its_precision_asks(imported: Importing) -> None:
    model = imported(plain())
    found = run_tolerance(model, RunSettings(), model.random_inputs(0))
    assert (found.value, found.source, found.noise) == (DEFAULT, "precision", {})


def test_only_outputs_that_amplify_rounding_are_allowed_more(imported: Importing) -> None:
    model = imported(amplifies_rounding())
    found = run_tolerance(model, RunSettings(), model.random_inputs(0))
    boxes, scores = (name for name, _ in model.outputs)
    assert found.source == "rounding" and list(found.noise) == [scores]
    assert found.of(boxes) == found.default == DEFAULT
    assert found.of(scores) == found.value == pytest.approx(NOISE_FACTOR * found.noise[scores])


def test_the_users_tolerance_wins_and_holds_for_every_output(imported: Importing) -> None:
    model = imported(amplifies_rounding())
    found = run_tolerance(model, RunSettings(tolerance=2e-5), model.random_inputs(0))
    assert (found.value, found.source) == (2e-5, "user")
    assert {found.of(name) for name, _ in model.outputs} == {2e-5}
    assert found.noise  # so that it can be said that it is too strict


# -- candidates ------------------------------------------------------------------------


def test_a_candidate_may_err_as_far_as_its_sub_graph_amplifies_rounding(
    imported: Importing,
) -> None:
    model = imported(plain())
    last = len(model.graph.operators) - 1
    function = function_of(model, ToolchainInstance(toolchain="tvm"), (last,), "last")
    truth = [np.ones(8, np.float32)]
    wrong = [truth[0] + np.float32(1e-3)]
    asked: list[float] = []

    def noise(bound: float) -> dict[int, float]:
        asked.append(bound)
        return {function.outputs[0]: 4e-4}

    assert check(function, truth, truth, noise) == 0.0 and not asked
    assert check(function, wrong, truth, noise) == pytest.approx(1e-3, rel=1e-3)
    assert asked == [DEFAULT]
    with pytest.raises(MeasureError, match=r"relative error 0\.001"):
        check(function, wrong, truth, lambda bound: {})
    with pytest.raises(MeasureError, match=r"relative error 0\.002"):
        check(function, [truth[0] + np.float32(2e-3)], truth, noise)


def test_a_whole_model_that_amplifies_rounding_is_measured_all_the_same(
    imported: Importing, tmp_path: Path
) -> None:
    """TVM adds up in another order than the reference, by more than the default tolerance."""
    model = imported(cancels())
    TrueValues.record(model, model.random_inputs(0), tmp_path / "truth")
    bench = ModelBench(OpenRequest(model.record, str(tmp_path / "truth")))
    everything = tuple(range(len(model.graph.operators)))
    whole = candidate_on(ToolchainInstance(toolchain="tvm"), everything)
    prepared = bench.prepare(whole, lambda: None)
    try:
        assert DEFAULT < prepared.max_rel_error < 1e-1
    finally:
        prepared.close()
