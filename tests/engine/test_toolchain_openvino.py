"""OpenVINO through its C API: results of whole models and regions, settings, precisions."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

from collage_engine.partition.call_graph import call_graph
from collage_engine.partition.regions import regions, supported_set
from collage_engine.records.errors import ToolchainError
from collage_engine.records.toolchain import Target, ToolchainInstance
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests import zoo
from tests.support.toolchain_cases import (
    Net,
    available,
    check_whole,
    default_instance,
    error,
    imported,
    one_node,
    reference,
    run,
    whole,
)
from tests.support.toolchain_models import MODELS, X, small_net

PLAIN = ToolchainInstance(toolchain="onnxruntime", config=(("level", "none"),))


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


# ---- the zoo: whole models and regions ---------------------------------------------------------


def _compare(toolchain: OpenVinoToolchain, function: Function, feeds: dict[int, np.ndarray]) -> int:
    """Against ONNX Runtime, unoptimised; returns how many values were compared."""
    truth = Function(
        "f",
        function.model,
        function.graph,
        function.nodes,
        function.inputs,
        function.outputs,
        PLAIN,
    )
    found = _run(toolchain.compile(function), function, feeds)
    right = _run(registry.get("onnxruntime").compile(truth), truth, feeds)
    for index, result, wanted in zip(function.outputs, found, right, strict=True):
        kind = function.graph.nodes[index].type
        if kind.dtype in ("int8", "uint8"):
            apart = np.abs(result.astype(np.int32) - wanted.astype(np.int32))
            assert apart.max(initial=0) <= 1, kind
        else:
            limit = 1e-2 if kind.dtype == "float16" else 1e-4
            assert error(result, wanted) < limit, (function.graph.nodes[index].op, kind)
    return len(found)


def _run(module: object, function: Function, feeds: dict[int, np.ndarray]) -> list[np.ndarray]:
    import tvm_ffi

    nodes = function.graph.nodes
    results = [np.zeros(nodes[i].type.shape, nodes[i].type.dtype) for i in function.outputs]
    arguments = [np.ascontiguousarray(feeds[i]) for i in function.inputs] + results
    module[function.symbol](*map(tvm_ffi.from_dlpack, arguments))  # type: ignore[index]
    return results


QUANTISED = ("qdq", "qdq_resnet_block")
"""Models whose values are right to one step; the step is checked below."""


@pytest.mark.parametrize("name", [n for n in zoo.SMALL if n not in QUANTISED])
def test_whole_models_and_regions(toolchain: OpenVinoToolchain, name: str) -> None:
    """The whole model, and the regions that remain without its products."""
    model = imported(zoo.build(name)) if name not in zoo.SHAPES else _shaped(name)
    graph = model.graph
    instance = default_instance(toolchain)
    calls = call_graph(graph)
    supported = supported_set(calls, lambda i: toolchain.supports(graph, i, instance))
    given = {
        index: value
        for index, (_, value) in zip(
            graph.record.inputs, model.random_inputs(1).items(), strict=True
        )
    }
    compared = 0
    if supported == calls.everything and calls.everything:
        function = whole(model, instance)
        compared += _compare(toolchain, function, given)
    random = np.random.default_rng(2)
    products = ("matmul", "nn.conv2d")
    rest = supported_set(
        calls,
        lambda i: (
            None
            if graph.nodes[i].op not in products and supported >> graph.operator_number[i] & 1
            else "a product"
        ),
    )
    for region in regions(calls, rest)[:12]:
        nodes = graph.close(calls.to_nodes(region))
        inputs, outputs = graph.boundary(nodes)
        if not outputs:
            continue
        feeds = {}
        for index in inputs:
            kind = graph.nodes[index].type
            if kind.dtype.startswith("float"):
                feeds[index] = random.uniform(0.1, 1.5, kind.shape).astype(kind.dtype)
            else:
                feeds[index] = random.integers(0, 2, kind.shape).astype(kind.dtype)
        function = Function("f", model, graph, nodes, inputs, outputs, instance)
        compared += _compare(toolchain, function, feeds)
    assert compared or not calls.everything


def _shaped(name: str):
    from collage_engine.model.importer import import_onnx

    return import_onnx(zoo.build(name), name, zoo.SHAPES[name])


# ---- settings and precisions -------------------------------------------------------------------


def test_settings_reach_the_library(toolchain: OpenVinoToolchain) -> None:
    net = imported(small_net())
    for spin in (False, True):
        inside = toolchain.inside(
            toolchain.compile(whole(net, default_instance(toolchain), spin=spin))
        )
        properties = inside["properties"]
        assert properties["INFERENCE_NUM_THREADS"] == "1"
        assert properties["NUM_STREAMS"] == "1"
        assert properties["INFERENCE_PRECISION_HINT"] == "f32"
        assert properties["PERFORMANCE_HINT"] == "LATENCY"
        assert properties["ENABLE_CPU_PINNING"] == ("YES" if spin else "NO")
    assert inside["library"].startswith("openvino 20")


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
    from collage_engine.toolchains.openvino import toolchain as module

    assert [i.id for i in toolchain.instances(Target.cpu(2), "float32")] == ["openvino"]
    monkeypatch.setattr(module, "has_bfloat16", lambda: False)
    assert [i.id for i in toolchain.instances(Target.cpu(2), "bfloat16")] == ["openvino"]
    monkeypatch.setattr(module, "has_bfloat16", lambda: True)
    plain, lower = toolchain.instances(Target.cpu(2), "bfloat16")
    assert (plain.precision, lower.precision) == ("float32", "bfloat16")
    assert lower.id == "openvino[precision=bf16]"
    assert plain.threads == lower.threads == 2


def test_bfloat16_rounds_only_when_asked(toolchain: OpenVinoToolchain) -> None:
    from collage_engine.toolchains.openvino.toolchain import has_bfloat16

    if not has_bfloat16():
        pytest.skip("this processor does not multiply in bfloat16")
    net = Net()
    x = net.input(1, 16, 28, 28)
    y = net.add("Conv", x, net.randn(32, 16, 3, 3, scale=0.1), net.randn(32), pads=[1] * 4)
    model = net.model(net.add("Relu", y))
    made = imported(model)
    feeds = made.random_inputs(0)
    errors, precisions = [], []
    for instance in toolchain.instances(Target.cpu(1), "bfloat16"):
        function = whole(made, instance)
        module = toolchain.compile(function)
        truth = reference(model, function, feeds)
        errors.append(error(run(module, function, feeds)[0], truth[0]))
        steps = toolchain.inside(module)["steps"]
        precisions += [s["precision"] for s in steps if s["what"] == "Convolution"]
    assert precisions == ["f32", "bf16"]
    assert errors[0] < 1e-5 < errors[1] < 2e-2


def test_unknown_precision_is_refused(toolchain: OpenVinoToolchain) -> None:
    net = imported(one_node("Relu", X))
    instance = ToolchainInstance(toolchain="openvino", config=(("precision", "int3"),))
    with pytest.raises(ToolchainError, match="int3"):
        toolchain.compile(whole(net, instance))


# ---- 8-bit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUANTISED)
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
