"""Every candidate that the external toolchains are offered compiles and computes the truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto

from collage_engine.partition.enumerate import CandidateSource, enumerate_candidates
from collage_engine.records.toolchain import ToolchainInstance
from collage_engine.toolchains import registry
from collage_engine.toolchains.base import Function
from collage_engine.toolchains.capabilities import composites_of
from tests.support.toolchain_cases import default_instance, error, imported
from tests.zoo import text as zoo_text
from tests.zoo import vision as zoo_vision

MODELS: dict[str, Callable[[], ModelProto]] = {
    "encoder": lambda: zoo_text.encoder(layers=1),
    "gpt2": lambda: zoo_text.gpt2(layers=1),
    "senet": lambda: zoo_vision.senet(blocks=1),
    "unet": lambda: zoo_vision.unet(size=16),
    "vit": zoo_vision.vit,
}
PLAIN = ToolchainInstance(toolchain="onnxruntime", config=(("level", "none"),))


@pytest.mark.parametrize("toolchain", ["onnxruntime", "onednn", "openvino"])
@pytest.mark.parametrize("name", MODELS)
def test_candidates(name: str, toolchain: str) -> None:
    model = imported(MODELS[name]())
    graph = model.graph
    chosen = registry.get(toolchain)
    instance = default_instance(chosen)
    source = CandidateSource(
        instance,
        chosen.partition_spec(instance, graph),
        lambda index: chosen.supports(graph, index, instance),
        made_of=lambda nodes: composites_of(chosen, graph, instance, nodes),
    )
    candidates = enumerate_candidates(graph, [source]).candidates
    # A composite, a region and a block at least; not just single operators.
    assert sum(len(c.nodes) > 1 for c in candidates) > 10
    random = np.random.default_rng(0)
    for candidate in candidates[:: max(1, len(candidates) // 80)]:
        nodes = graph.close(graph.to_indices(candidate.nodes))
        inputs, outputs = graph.boundary(nodes)
        function = Function("f", model, graph, nodes, inputs, outputs, instance)
        truth = Function("f", model, graph, nodes, inputs, outputs, PLAIN)
        feeds = {}
        for index in inputs:
            kind = graph.nodes[index].type
            if kind.dtype == "float32":
                # Positive: some candidates begin at a square root.
                feeds[index] = random.uniform(0.1, 1.5, kind.shape).astype(np.float32)
            else:
                feeds[index] = random.integers(0, 2, kind.shape).astype(kind.dtype)
        found = _run(chosen.compile(function), function, feeds)
        wanted = _run(registry.get("onnxruntime").compile(truth), truth, feeds)
        for result, right in zip(found, wanted, strict=True):
            assert error(result, right) < 1e-4, candidate.label


def _run(module: object, function: Function, feeds: dict[int, np.ndarray]) -> list[np.ndarray]:
    import tvm_ffi

    nodes = function.graph.nodes
    results = [np.zeros(nodes[i].type.shape, nodes[i].type.dtype) for i in function.outputs]
    arguments = [feeds[i] for i in function.inputs] + results
    module[function.symbol](*map(tvm_ffi.from_dlpack, arguments))  # type: ignore[index]
    return results
