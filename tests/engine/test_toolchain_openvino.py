"""OpenVINO through its C API: results of whole models, settings, precisions, what a call costs."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from collage_engine.records.toolchain import Target
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests import zoo
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    default_instance,
    error,
    imported,
    reference,
    run,
    whole,
)
from tests.support.toolchain_models import MODELS, small_net


@pytest.fixture(scope="module")
def toolchain() -> OpenVinoToolchain:
    return available(OpenVinoToolchain())


@pytest.mark.parametrize("name", MODELS)
def test_results(toolchain: OpenVinoToolchain, name: str) -> None:
    check_whole(toolchain, MODELS[name], default_instance(toolchain), 1e-4)


def test_values_that_are_easily_mistaken(toolchain: OpenVinoToolchain) -> None:
    """Equal results, an output that is read inside too, integers, booleans, an empty tensor."""
    net = Net()
    a, b = net.input(2, 3), net.input(2, 3)
    total = net.add("Add", a, b)
    twin = net.add("Add", a, b)
    bigger = net.add("Greater", total, net.scalar(0.0))
    count = net.add("ReduceSum", net.add("Cast", bigger, to=7), keepdims=0)
    empty = net.add("Slice", total, net.const([0]), net.const([0]), net.const([1]))
    model = net.model(twin, net.add("Exp", total), total, bigger, count, empty)
    made = imported(model)
    function = whole(made, default_instance(toolchain))
    feeds = made.random_inputs(3)
    results = run(toolchain.compile(function), function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and error(result, truth) < 1e-6


# ---- settings and precisions -------------------------------------------------------------------


def test_inside_shows_executed_layers(toolchain: OpenVinoToolchain) -> None:
    net = imported(small_net())
    steps = toolchain.inside(toolchain.compile(whole(net, default_instance(toolchain))))["steps"]
    kinds = [step["what"] for step in steps]
    assert "Convolution" in kinds and "Const" not in kinds
    convolution = steps[kinds.index("Convolution")]
    assert convolution["precision"] == "f32"
    # The activation is part of the convolution; Winograd is no kernel that it has.
    assert "Relu" not in kinds and "wino" not in convolution["kernel"]


def test_bfloat16_is_an_instance_of_its_own(
    toolchain: OpenVinoToolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collage_engine.toolchains.runtime import toolchain as module

    assert [i.id for i in toolchain.instances(Target(threads=2), "float32")] == ["openvino"]
    monkeypatch.setattr(module, "has_bfloat16", lambda: False)
    assert [i.id for i in toolchain.instances(Target(threads=2), "bfloat16")] == ["openvino"]
    monkeypatch.setattr(module, "has_bfloat16", lambda: True)
    plain, lower = toolchain.instances(Target(threads=2), "bfloat16")
    assert (plain.precision, lower.precision) == ("float32", "bfloat16")
    assert lower.id == "openvino[precision=bf16]"
    assert plain.threads == lower.threads == 2


def test_bfloat16_rounds_only_when_asked(toolchain: OpenVinoToolchain) -> None:
    from collage_engine.toolchains.runtime.toolchain import has_bfloat16

    if not has_bfloat16():
        pytest.skip("this processor does not multiply in bfloat16")
    net = Net()
    x = net.input(1, 16, 28, 28)
    y = net.add("Conv", x, net.randn(32, 16, 3, 3, scale=0.1), net.randn(32), pads=[1] * 4)
    model = net.model(net.add("Relu", y))
    made = imported(model)
    feeds = made.random_inputs(0)
    errors, precisions = [], []
    for instance in toolchain.instances(Target(), "bfloat16"):
        function = whole(made, instance)
        module = toolchain.compile(function)
        truth = reference(model, function, feeds)
        errors.append(error(run(module, function, feeds)[0], truth[0]))
        steps = toolchain.inside(module)["steps"]
        precisions += [s["precision"] for s in steps if s["what"] == "Convolution"]
    assert precisions == ["f32", "bf16"]
    assert errors[0] < 1e-5 < errors[1] < 2e-2


# ---- 8-bit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["qdq", "qdq_resnet_block"])
def test_quantised_convolutions_run_in_8_bits(toolchain: OpenVinoToolchain, name: str) -> None:
    model = zoo.build(name)
    made = imported(model)
    function = whole(made, default_instance(toolchain))
    module = toolchain.compile(function)
    steps = toolchain.inside(module)["steps"]
    convolutions = [s for s in steps if s["what"] == "Convolution"]
    assert len(convolutions) == sum(n.op_type == "Conv" for n in model.graph.node)
    assert all(s["kernel"].upper().endswith("I8") for s in convolutions), convolutions
    last = next(n for n in model.graph.node if n.output[0] == model.graph.output[0].name)
    assert last.op_type == "DequantizeLinear"
    scale = next(i for i in model.graph.initializer if i.name == last.input[1])
    one_step = float(numpy_helper.to_array(scale))
    # Where quantised layers follow each other, a step in one moves the next ones.
    most = 1 if name == "qdq" else 3
    for seed in range(3):
        feeds = made.random_inputs(seed)
        result, truth = run(module, function, feeds)[0], reference(model, function, feeds)[0]
        apart = np.abs(result - truth) / one_step
        assert apart.max() <= most + 1e-3
        assert (apart > 1.5).mean() < 0.05
