"""One operator at a time: what OpenVINO makes of every form that models come in."""

from __future__ import annotations

import pytest

from collage_engine.toolchains.openvino.toolchain import OpenVinoToolchain
from tests.engine.test_model_operators import CASES
from tests.support.toolchain_cases import (
    available,
    default_instance,
    error,
    imported,
    one_node,
    reference,
    run,
    whole,
)
from tests.zoo.net import Net


@pytest.fixture(scope="module")
def toolchain() -> OpenVinoToolchain:
    return available(OpenVinoToolchain())


@pytest.mark.parametrize("name", CASES)
def test_operator(toolchain: OpenVinoToolchain, name: str) -> None:
    build, opset, dtype = CASES[name]
    net = Net("case", opset=opset, seed=1)
    net.output(build(net), dtype)
    model = net.model()
    made = imported(model)
    instance = default_instance(toolchain)
    graph = made.graph
    if not graph.operators:
        return  # Identity
    assert not [r for i in graph.operators if (r := toolchain.supports(graph, i, instance))]
    function = whole(made, instance)
    feeds = made.random_inputs(7)
    results = run(toolchain.compile(function), function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and result.dtype == truth.dtype
        assert error(result, truth) < 1e-4


@pytest.mark.parametrize(("opset", "written"), [(11, True), (13, False)])
def test_only_what_is_misread_is_written_anew(
    toolchain: OpenVinoToolchain, opset: int, written: bool
) -> None:
    """The user's own nodes are kept wherever they are read right."""
    made = imported(one_node("Softmax", (2, 3, 4), opset=opset, axis=1))
    model = toolchain.onnx_of(whole(made, default_instance(toolchain)))
    kinds = [node.op_type for node in model.graph.node]
    assert kinds == (["Reshape", "Softmax", "Reshape"] if written else ["Softmax"])
