"""Checks that oneDNN's tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto

from collage_engine.toolchains.onednn.toolchain import OneDnnToolchain
from tests.toolchain_cases import error, imported, load_again, reference, run, saved, whole

F32 = np.float32


def weights(*shape: int, scale: float = 0.3) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (random.standard_normal(shape) * scale).astype(F32)


def check(
    toolchain: OneDnnToolchain, model: ModelProto, threads: int = 1, tolerance: float = 1e-5
) -> dict[str, Any]:
    """Compile the whole model, compare, serialise, load, compare again; what is inside."""
    net = imported(model)
    function = whole(net, toolchain.instances(threads, "float32")[0])
    for index in net.graph.operators:
        reason = toolchain.supports(net.graph, index, function.instance)
        assert reason is None, f"{net.graph.nodes[index].op}: {reason}"
    module = toolchain.compile(function)
    feeds = net.random_inputs(0)
    results = run(module, function, feeds)
    for result, truth in zip(results, reference(model, function, feeds), strict=True):
        assert error(result, truth) < tolerance
    bytes_before = saved(module)
    again = load_again(module)
    assert saved(again) == bytes_before
    for result, repeated in zip(results, run(again, function, feeds), strict=True):
        np.testing.assert_array_equal(result, repeated)
    return toolchain.inside(module)


def steps(inside: dict[str, Any]) -> list[str]:
    return [s["what"] + (":" + s["fused"] if s["fused"] else "") for s in inside["steps"]]
