"""Plans for the oneDNN runtime, made from records alone: layouts, composites, post-ops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.support.errors import UnsupportedError
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.onednn.generate import generate, reason_against
from tests.support.valued_graph import ValuedGraph


class Graph(ValuedGraph):
    """A graph that oneDNN's plan is made of."""

    def weights(self, *shape: int) -> int:
        return self.const(np.arange(np.prod(shape)).reshape(shape))

    def plan(self, *outputs: int) -> list[dict[str, Any]]:
        graph = self.build(*outputs)
        inputs, results = graph.boundary(graph.everything)
        model: Any = SimpleNamespace(constant=self.array)
        instance = ToolchainInstance(toolchain="onednn")
        function = Function("plan", model, graph, graph.everything, inputs, results, instance)
        plan, given, made = generate(function)
        steps: list[dict[str, Any]] = plan.as_json(given, made)["steps"]
        return steps


def ops(steps: list[dict[str, Any]]) -> list[str]:
    views = ("reshape", "permute", "slice")
    return [
        "+".join([s["op"], *(p["alg"] for p in s.get("post", []))])
        for s in steps
        if s["op"] not in views
    ]


def test_difference_with_the_convolution_on_the_right_is_negated() -> None:
    g = Graph()
    x, shape = g.input(1, 4, 8, 8), (1, 4, 8, 8)
    a = g.conv2d(x, g.weights(4, 4, 1, 1), shape)
    steps = g.plan(g.add_call("subtract", shape, x, a))
    assert ops(steps) == ["conv+linear+add"]
    assert steps[-1]["post"][0]["alpha"] == -1.0


REFUSED: dict[str, tuple[Any, str]] = {
    "unknown": (lambda g: g.add_call("sin", (2, 2), g.input(2, 2)), "oneDNN has no Sin"),
    "type": (
        lambda g: g.add_call("add", (2, 2), g.input(2, 2, dtype="int64"), g.input(2, 2)),
        "Add: .* float32, not int64",
    ),
    "empty": (lambda g: g.add_call("nn.relu", (0, 2), g.input(0, 2)), "without elements"),
    "rank": (lambda g: g.add_call("nn.relu", (1,) * 13, g.input(*[1] * 13)), "12 dimensions"),
    "exponent": (
        lambda g: g.add_call("power", (2, 2), g.input(2, 2), g.input(2, 2)),
        "Pow: .* constant exponent",
    ),
    "layout": (
        lambda g: g.conv2d(
            g.input(1, 1, 8, 8, 4), g.weights(4, 4, 1, 1), (1, 1, 8, 8, 4), data_layout="NCHW4c"
        ),
        "no layout NCHW4c",
    ),
    "norm axes": (
        lambda g: g.add_call(
            "nn.layer_norm",
            (4, 4),
            g.input(4, 4),
            g.weights(4),
            g.weights(4),
            axes=[0],
            epsilon=1e-5,
        ),
        "last axes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_operator_and_cause(name: str) -> None:
    make, reason = REFUSED[name]
    g = Graph()
    y = make(g)
    said = reason_against(g.build(y), y)
    assert said is not None
    with pytest.raises(UnsupportedError, match=reason) as caught:
        g.plan(y)
    assert str(caught.value) == said
