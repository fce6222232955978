"""One operator at a time: what OpenVINO makes of every form that models come in."""

from __future__ import annotations

import pytest

from collage_engine.support.errors import UnsupportedError
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


@pytest.fixture(scope="module")
def toolchain() -> OpenVinoToolchain:
    return available(OpenVinoToolchain())


@pytest.mark.parametrize("name", CASES)
def test_operator(toolchain: OpenVinoToolchain, name: str) -> None:
    model = CASES[name]
    made = imported(model)
    instance = default_instance(toolchain)
    graph = made.graph
    if not graph.operators:
        return  # Identity
    assert not [r for i in graph.operators if (r := toolchain.supports(graph, i, instance))]
    function = whole(made, instance)
    feeds = made.random_inputs(7)
    if any(toolchain.misreads(node, 13) for node in made.onnx.graph.node):
        with pytest.raises(UnsupportedError):
            toolchain.compile(function)
        return
    results = run(toolchain.compile(function), function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert result.shape == truth.shape and result.dtype == truth.dtype
        assert error(result, truth) < 1e-4


def test_an_old_softmax_over_several_axes_is_read_right(toolchain: OpenVinoToolchain) -> None:
    """Before operator set 13 it runs over all axes from ``axis`` on, which OpenVINO overlooks."""
    source = one_node("Softmax", (2, 3, 4), opset=11, axis=1)
    made = imported(source)
    function = whole(made, default_instance(toolchain))
    feeds = made.random_inputs(7)
    (result,) = run(toolchain.compile(function), function, feeds)
    assert error(result, reference(source, function, feeds)[0]) < 1e-5
