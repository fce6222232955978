"""Every candidate that the external toolchains are offered compiles and computes the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.model.importer import import_onnx
from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.graph import TensorType, operator_set
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from tests import zoo
from tests.support.toolchain_cases import default_instance, error, name_of, run
from tests.zoo import text as zoo_text
from tests.zoo import vision as zoo_vision

LARGE: dict[str, Callable[[], ModelProto]] = {
    "bert": lambda: zoo_text.bert(layers=1),
    "gpt2": lambda: zoo_text.gpt2(layers=1),
    "unet": lambda: zoo_vision.unet(size=16),
}
QUANTISED = ("qdq", "qdq_resnet_block")
"""Models whose values are right to one step, which the tests of OpenVINO check."""
SMALL = [name for name in zoo.SMALL if name not in (*LARGE, *QUANTISED)]
"""Models of every element type and of several inputs and outputs, for the toolchain that is offered
whole regions."""
PLAIN = ToolchainInstance(toolchain="onnxruntime", config=(("level", "none"),))


def given(kind: TensorType, random: np.random.Generator) -> np.ndarray:
    """Return positive values, since some candidates begin at a square root."""
    if kind.dtype.startswith("float"):
        return random.uniform(0.1, 1.5, kind.shape).astype(kind.dtype)
    return random.integers(0, 2, kind.shape).astype(kind.dtype)


@pytest.mark.parametrize(
    ("name", "toolchain"),
    [
        *((name, tool) for name in LARGE for tool in ("onnxruntime", "onednn", "openvino")),
        *((name, "openvino") for name in SMALL),
    ],
)
def test_candidates(name: str, toolchain: str) -> None:
    source = LARGE[name]() if name in LARGE else zoo.build(name)
    model = import_onnx(source, shapes=None if name in LARGE else zoo.SHAPES.get(name))
    graph, chosen = model.graph, registry.get(toolchain)
    instance = default_instance(chosen)
    offered = CandidateSource(
        instance,
        chosen.partition_spec(instance, graph),
        lambda index: chosen.supports(graph, index, instance),
        takes_set=lambda nodes: chosen.takes_set(graph, instance, nodes),
    )
    candidates = enumerate_candidates(graph, [offered])
    if name in LARGE:
        # A composite, a region and a block at least; not just single operators.
        assert sum(len(c.nodes) > 1 for c in candidates) > 10
    random = np.random.default_rng(0)
    most = 40 if name in LARGE else 12
    by_size = sorted(candidates, key=lambda c: -len(c.nodes))
    for candidate in by_size[:: max(1, len(candidates) // most)]:
        nodes = operator_set(candidate.nodes)
        inputs, outputs = graph.boundary(nodes)
        function = Function("f", model, graph, nodes, inputs, outputs, instance)
        truth = Function("f", model, graph, nodes, inputs, outputs, PLAIN)
        feeds = {name_of(graph, i): given(graph.values[i].type, random) for i in inputs}
        found = run(chosen.compile(function), function, feeds)
        wanted = run(registry.get("onnxruntime").compile(truth), truth, feeds)
        for result, right in zip(found, wanted, strict=True):
            limit = 1e-2 if right.dtype == np.float16 else 1e-4
            assert error(result, right) < limit, candidate.label
